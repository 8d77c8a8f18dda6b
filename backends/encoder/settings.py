"""The parameters of ``audio_encoder``. No torch here: ``serve.py`` reads them before it starts anything."""

from __future__ import annotations

from dataclasses import dataclass

from backends.settings import DEVICE, parameter


@dataclass(frozen=True)
class EncoderSettings:
    """Parameters of ``audio_encoder``; its config.pbtxt documents them."""

    checkpoint: str = parameter("checkpoints/voice")
    device: str = parameter("auto", form=DEVICE)
    runtime: str = parameter("auto", choices=("auto", "onnx", "torch"))
    num_threads: int = parameter(0, minimum=0)
    nice: int = parameter(10, minimum=0, maximum=19)
    max_seconds: float = parameter(60.0, minimum=0.01, maximum=600.0)
    max_waiting: int = parameter(64, minimum=1)
    cache: str = parameter(".cache/encoder")
