"""The encoders behind ``asr_encoder``: windows in, states out, several together and each as if it were alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backends.checkpoint import inspect_asr_checkpoint
from backends.encoder.metrics import EncoderMetrics
from backends.models.moss_transcribe_encoder import MossTranscribeEncoder
from backends.models.qwen3_asr_encoder import Qwen3ASREncoder
from backends.models.whisper_encoder import WhisperEncoder

#: float32 [parts, mels, frames], and the frames of each part that hold audio, int32 [parts].
Features = tuple[NDArray[np.float32], NDArray[np.int32]]


class StateEncoder(Protocol):
    """``frames``: of a part; 0: any number, up to the whole of it in one part. ``lengths``: frames of a window, one for
    each shape that a pass can have.
    """

    mels: int
    frames: int
    lengths: tuple[int, ...]

    def encode(self, windows: Sequence[Features]) -> list[NDArray[np.float32]]:
        """The states of each window, float32 [N, width]. Fixed shapes: a window's states do not depend on others."""
        ...

    def begin(self, windows: Sequence[Features]) -> Callable[[], list[NDArray[np.float32]]]:
        """Start :meth:`encode`; the result, when it is called, waits for it. Results are called in order."""
        ...


class _AtOnce:
    """Encoders that have nothing to do while the device works."""

    def encode(self, windows: Sequence[Features]) -> list[NDArray[np.float32]]:
        raise NotImplementedError

    def begin(self, windows: Sequence[Features]) -> Callable[[], list[NDArray[np.float32]]]:
        found = self.encode(windows)
        return lambda: found


class WhisperStates(_AtOnce):
    """Every window is one part."""

    def __init__(self, encoder: WhisperEncoder) -> None:
        self._encoder = encoder
        self.mels, self.frames = encoder.config.mels, encoder.config.mel_frames
        self.lengths: tuple[int, ...] = (self.frames,)

    def encode(self, windows: Sequence[Features]) -> list[NDArray[np.float32]]:
        mels = torch.from_numpy(np.concatenate([parts for parts, _ in windows]))
        states = self._encoder(mels)
        found, at = [], 0
        for parts, _ in windows:
            found.append(_numpy(states[at : at + len(parts)].flatten(0, 1)))
            at += len(parts)
        return found


class Qwen3ASRStates:
    """One part of any length; the encoder packs windows of 8 s of all of them."""

    frames = 0

    def __init__(self, encoder: Qwen3ASREncoder) -> None:
        self._encoder, self.mels = encoder, encoder.mels
        self.lengths: tuple[int, ...] = tuple(encoder.chunk * chunks for chunks in range(1, encoder.window + 1))

    def capture(self, metrics: EncoderMetrics, min_free: int) -> int:
        """Make CUDA graphs of the passes, in the thread that encodes; how many."""
        self._encoder.capture(metrics, min_free)
        return len(self._encoder.graphs or ())

    def encode(self, windows: Sequence[Features]) -> list[NDArray[np.float32]]:
        return self.begin(windows)()

    def begin(self, windows: Sequence[Features]) -> Callable[[], list[NDArray[np.float32]]]:
        # One copy brings a pass to the host: see Qwen3ASREncoder.
        end = self._encoder.begin([torch.from_numpy(parts[0]) for parts, _ in windows])
        return lambda: [_numpy(states) for states in end()]


class MossTranscribeStates(_AtOnce):
    """Parts of 30 s, of all windows together."""

    def __init__(self, encoder: MossTranscribeEncoder) -> None:
        self._encoder = encoder
        self.mels, self.frames = encoder.tower.config.mels, encoder.tower.config.mel_frames
        self.lengths: tuple[int, ...] = (self.frames,)

    def encode(self, windows: Sequence[Features]) -> list[NDArray[np.float32]]:
        parts = torch.from_numpy(np.concatenate([parts for parts, _ in windows]))
        states = self._encoder(parts, [int(count) for _, counts in windows for count in counts])
        found, at = [], 0
        for _, counts in windows:
            found.append(_numpy(torch.cat(states[at : at + len(counts)])))
            at += len(counts)
        return found


def load_encoder(folder: Path, device: torch.device, dtype: torch.dtype, pass_clips: int, dummy: bool) -> StateEncoder:
    """The encoder of the checkpoint in ``folder``, by ``model_type``; ``dummy``: random weights, for benchmarks.

    ``pass_clips``: windows of 30 s (Qwen3-ASR: of 8 s) that it computes at a time, at one shape.
    """
    kind = inspect_asr_checkpoint(folder).model_type
    if kind == "whisper":
        make = WhisperEncoder.dummy if dummy else WhisperEncoder.load
        return WhisperStates(make(folder, device, dtype, pass_clips))
    if kind == "qwen3_asr":
        packed = Qwen3ASREncoder.dummy if dummy else Qwen3ASREncoder.load
        return Qwen3ASRStates(packed(folder, device, dtype, pass_clips))
    merged = MossTranscribeEncoder.dummy if dummy else MossTranscribeEncoder.load
    return MossTranscribeStates(merged(folder, device, dtype, pass_clips))


def _numpy(states: Tensor) -> NDArray[np.float32]:
    """On the CPU and in float32, which holds every value of the narrower types."""
    found: NDArray[np.float32] = states.float().cpu().numpy()
    return found
