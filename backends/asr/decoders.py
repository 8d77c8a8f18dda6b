"""The decoders behind ``asr_decoder``, by the ``model_type`` of a checkpoint."""

from __future__ import annotations

from pathlib import Path

from backends.checkpoint import inspect_asr_checkpoint
from backends.decoder.engine_order import LoadModel
from backends.models.qwen3_asr import Qwen3ASR
from backends.models.whisper import Whisper


def load_decoder(folder: Path, dummy: bool) -> LoadModel:
    """What loads the decoder of the checkpoint in ``folder``. ``dummy``: with random weights, for benchmarks.

    MOSS-Transcribe-Diarize has the decoder of Qwen3-ASR. Raises CheckpointError for an unknown architecture.
    """
    if inspect_asr_checkpoint(folder).model_type == "whisper":
        return Whisper.dummy if dummy else Whisper.load
    return Qwen3ASR.dummy if dummy else Qwen3ASR.load
