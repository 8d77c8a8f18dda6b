"""Two ways to run the encoder in a Python process: ONNX Runtime on a CPU, torch anywhere. One clip at a time.

Why not several: a clip's codes must not depend on who came with it. In torch the bits of a product change with its
number of rows (docs/architecture.md, Determinism). ONNX Runtime's did not change with the batch where we looked
(benchmarks/encoder.py), but on a CPU a batch gains nothing either, and alone they cannot change.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


class Encoder(Protocol):
    """Float32 [samples], whole frames, channels in turns, checked by the caller -> int32 [frames, codebooks]."""

    name: str

    def encode(self, audio: NDArray[np.float32]) -> NDArray[np.int32]:
        """The codes of one clip."""
        ...


class OnnxEncoder:
    """ONNX Runtime on the CPU. Does not import torch: the process stays small."""

    name = "onnx"

    def __init__(self, model: Path | bytes, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        # A waiting thread must not spin on a core that the decoder needs.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        source: Any = model if isinstance(model, bytes) else str(model)
        self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    def encode(self, audio: NDArray[np.float32]) -> NDArray[np.int32]:
        return self.encode_batch(audio[None])[0]

    def encode_batch(self, audio: NDArray[np.float32]) -> NDArray[np.int32]:
        """Clips of one length: [batch, samples] -> [batch, frames, codebooks]. For measurements: the stage takes one
        clip at a time."""
        codes: NDArray[np.int32] = self._session.run(["codes"], {"audio": audio})[0]
        return codes


class TorchEncoder:
    """``MossAudioTokenizer.encode``, float32, on a CPU or a GPU. ``codebooks``: None for all that the codec has."""

    name = "torch"

    def __init__(self, folder: Path, device: torch.device, codebooks: int | None = None) -> None:
        from backends.models.moss_audio_tokenizer import MossAudioTokenizer

        self.codec = MossAudioTokenizer.load(folder, device, codebooks)

    def encode(self, audio: NDArray[np.float32]) -> NDArray[np.int32]:
        import torch

        codes: NDArray[np.int32] = self.codec.encode(torch.from_numpy(audio)).to(torch.int32).cpu().numpy()
        return codes
