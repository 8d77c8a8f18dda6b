"""Fingerprints: of a file, of a codec's folder, and of the code that writes a graph."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from backends.errors import CheckpointError

_BACKENDS = Path(__file__).resolve().parents[1]
#: What an exported graph depends on beside the checkpoint.
_SOURCES = (
    "encoder/graph.py",
    "models/moss_audio_tokenizer_onnx.py",
    "models/moss_audio_tokenizer.py",
    "models/causal_transformer.py",
    "models/residual_quantizer.py",
)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal, as ``sha256sum`` prints it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def checkpoint_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of the config and the weights of a codec's folder."""
    files = sorted([*folder.glob("*.safetensors"), folder / "config.json"])
    try:
        return _digest(files)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error}") from None


def graph_key(folder: Path, max_frames: int, codebooks: int | None = None) -> str:
    """Names the graph of a checkpoint: another checkpoint, limit, number of codebooks or version of this code has
    another key."""
    sources = _digest([_BACKENDS / name for name in _SOURCES])
    text = f"{checkpoint_digest(folder)} {sources} {max_frames} {codebooks}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _digest(paths: Iterable[Path]) -> str:
    lines = "".join(f"{file_sha256(path)}  {path.name}\n" for path in paths)
    return hashlib.sha256(lines.encode()).hexdigest()
