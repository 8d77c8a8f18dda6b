"""The parameters of ``tts_vocoder``. No torch here: ``serve.py`` reads them before it starts anything."""

from __future__ import annotations

from dataclasses import dataclass

from backends.settings import DEVICE, parameter


@dataclass(frozen=True)
class VocoderSettings:
    """Parameters of ``tts_vocoder``; its config.pbtxt documents them."""

    checkpoint: str = parameter("checkpoints/voice")
    device: str = parameter("auto", form=DEVICE)
    num_threads: int = parameter(0, minimum=0)
    nice: int = parameter(5, minimum=0, maximum=19)
    step_streams: int = parameter(0, minimum=0)
    slots: int = parameter(64, minimum=1)
    max_step_frames: int = parameter(0, minimum=0)
    dtype: str = parameter("auto", choices=("auto", "float32", "bfloat16"))
    codebooks: int = parameter(0, minimum=0)
    load_format: str = parameter("safetensors", choices=("safetensors", "dummy"))
    max_chunk_frames: int = parameter(1000, minimum=1)
    max_batch_wait_ms: float = parameter(2.0, minimum=0.0, maximum=1000.0)
    deterministic: bool = parameter(True)
    cuda_graph: bool = parameter(True)
    cuda_graph_frames: int = parameter(25, minimum=1)
    cuda_graph_min_free_gib: float = parameter(2.0, minimum=0.0)
    stream_idle_seconds: float = parameter(60.0, minimum=1.0)
    debug_fail_chunk: int = parameter(-1, minimum=-1)
