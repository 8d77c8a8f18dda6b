"""Checkpoint -> ONNX: written, checked, compared with torch."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from backends.errors import CheckpointError
from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from backends.models.moss_audio_tokenizer_onnx import write_encoder

#: A protobuf message ends at 2 GiB; leave room for the nodes.
_LARGEST_BYTES = 2_000_000_000


def export_encoder(folder: Path, max_frames: int, codebooks: int | None = None) -> bytes:
    """The encoder of the codec in ``folder`` as a checked, serialised ONNX model; same input, same bytes.

    ``audio`` float32 [batch, samples] -> ``codes`` int32 [batch, frames, codebooks], batch and time dynamic, float32
    weights. Takes 1 ... ``max_frames`` whole frames, the channels of the codec in turns. ``codebooks``: its first ones,
    None for all. CheckpointError for a codec that is unknown or too large for one file.
    """
    codec = MossAudioTokenizer.load(folder, codebooks=codebooks)
    size = sum(
        tensor.nbytes
        for module in codec.encoder
        if not isinstance(module, int)
        for layer in module.layers
        for tensor in (layer.qkv, layer.out, layer.up, layer.down)
    )
    if size > _LARGEST_BYTES:
        raise CheckpointError(
            f"{folder}: the encoder's {size / 1e9:.3g} GB of weights are above {_LARGEST_BYTES / 1e9:g} GB, the most "
            "that one ONNX file holds: serve it with audio_encoder.runtime=torch"
        )
    model = write_encoder(codec, max_frames)
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))


def write_atomically(path: Path, content: bytes) -> None:
    """Whoever reads ``path`` sees the old file or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp's 0600 would keep the file from a server of another user
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True)
class Agreement:
    """Codes of a runtime against torch's. ``frames`` that agree in every codebook, codes that agree."""

    codes: int
    equal_codes: int
    frames: int
    equal_frames: int

    @property
    def share(self) -> float:
        """Equal codes over all codes."""
        return self.equal_codes / self.codes


def compare(
    encode: Callable[[NDArray[np.float32]], NDArray[np.int32]],
    codec: MossAudioTokenizer,
    clips: Iterable[NDArray[np.float32]],
) -> Agreement:
    """Run ``encode`` ([samples] -> [frames, codebooks]) and ``codec.encode`` on the same clips."""
    totals = np.zeros(4, dtype=np.int64)
    for clip in clips:
        same = encode(clip) == codec.encode(torch.from_numpy(clip)).cpu().numpy()
        totals += (same.size, int(same.sum()), same.shape[0], int(same.all(axis=1).sum()))
    return Agreement(*map(int, totals))


def sample_clips(codec: MossAudioTokenizer, frames: Iterable[int], seed: int = 0) -> list[NDArray[np.float32]]:
    """Clips of so many frames that sound like the voice: random codes, decoded. The same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    clips = []
    for count in frames:
        codes = torch.randint(codec.entries, (count, codec.codebooks), generator=generator)
        clips.append(codec.decode(codes).cpu().numpy())
    return clips
