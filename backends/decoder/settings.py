"""The parameters of stages behind a decoder engine. No torch: ``serve.py`` reads them before it starts anything."""

from __future__ import annotations

from dataclasses import dataclass, fields

from backends.decoder.config import EngineConfig
from backends.settings import DEVICE, parameter


@dataclass(frozen=True)
class EngineSettings:
    """Parameters that every stage behind a :class:`backends.decoder.engine.DecoderEngine` has."""

    checkpoint: str = parameter("checkpoints/voice")
    device: str = parameter("auto", form=DEVICE)
    dtype: str = parameter("auto", choices=("auto", "float32", "bfloat16", "float16"))
    load_format: str = parameter("safetensors", choices=("safetensors", "dummy"))
    stream_weights: bool = parameter(True)
    engine_process: str = parameter("auto", choices=("auto", "true", "false"))
    num_threads: int = parameter(0, minimum=0)
    nice: int = parameter(5, minimum=0, maximum=19)
    max_running: int = parameter(16, minimum=1, maximum=1024)
    max_waiting: int = parameter(256, minimum=0)
    max_positions: int = parameter(1024, minimum=64)
    prefill_rows: int = parameter(32, minimum=2)
    prefill_pieces: int = parameter(0, minimum=0, maximum=64)
    deterministic: bool = parameter(True)
    page_rows: int = parameter(16, minimum=1)
    kv_pages: int = parameter(0, minimum=0)
    prefix_cache: bool = parameter(True)
    lookahead: bool = parameter(True)
    lookahead_min_batch: int = parameter(0, minimum=0)
    cuda_graph: bool = parameter(True)
    cuda_graph_min_free_gib: float = parameter(2.0, minimum=0.0)
    force_frames: int = parameter(0, minimum=0)
    check_integrity: bool = parameter(False)

    def __post_init__(self) -> None:
        """Raises InvalidArgument for sizes that do not fit together."""
        self.engine_config().pages()

    def engine_config(self) -> EngineConfig:
        """What an engine is built with."""
        names = {field.name for field in fields(EngineConfig)}
        return EngineConfig(**{field.name: getattr(self, field.name) for field in fields(self) if field.name in names})


@dataclass(frozen=True)
class DecoderSettings(EngineSettings):
    """Parameters of ``tts_decoder``; its config.pbtxt documents them."""

    first_chunk_frames: int = parameter(4, minimum=1, maximum=1000)
    chunk_frames: int = parameter(25, minimum=1, maximum=1000)
    slowest_rate: float = parameter(0.8, minimum=0.1, maximum=1.0)
