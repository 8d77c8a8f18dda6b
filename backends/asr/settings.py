"""The parameters of the stages of ``asr``. No torch here: ``serve.py`` reads them before it starts anything."""

from __future__ import annotations

from dataclasses import dataclass

from backends.decoder.settings import EngineSettings
from backends.errors import InvalidArgument
from backends.settings import DEVICE, parameter

#: Where the default checkpoint lies, from the repository root; ``serve.py`` makes it at the first start.
DEFAULT_CHECKPOINT = ".cache/asr/whisper-tiny.en"


@dataclass(frozen=True)
class AsrPromptSettings:
    """Parameters of ``asr_prompt``; its config.pbtxt documents them."""

    checkpoint: str = parameter(DEFAULT_CHECKPOINT)
    max_requests: int = parameter(128, minimum=1)
    windows_per_request: int = parameter(4, minimum=1, maximum=1024)
    workers: int = parameter(16, minimum=1, maximum=256)
    nice: int = parameter(10, minimum=0, maximum=19)
    max_seconds: float = parameter(3600.0, minimum=1.0, maximum=14400.0)
    max_window_seconds: float = parameter(30.0, minimum=2.0, maximum=1800.0)
    max_file_mib: int = parameter(512, minimum=1, maximum=2047)
    cache_mib: float = parameter(0.0, minimum=0.0)
    max_context_bytes: int = parameter(4096, minimum=0)
    idle_seconds: float = parameter(600.0, minimum=1.0)


@dataclass(frozen=True)
class AsrEncoderSettings:
    """Parameters of ``asr_encoder``; its config.pbtxt documents them."""

    checkpoint: str = parameter(DEFAULT_CHECKPOINT)
    device: str = parameter("auto", form=DEVICE)
    dtype: str = parameter("auto", choices=("auto", "float32", "bfloat16", "float16"))
    load_format: str = parameter("safetensors", choices=("safetensors", "dummy"))
    num_threads: int = parameter(0, minimum=0)
    nice: int = parameter(10, minimum=0, maximum=19)
    pass_clips: int = parameter(0, minimum=0, maximum=256)
    pass_delay_ms: float = parameter(12.0, minimum=0.0, maximum=1000.0)
    cuda_graph: bool = parameter(True)
    cuda_graph_min_free_gib: float = parameter(2.0, minimum=0.0)
    max_waiting: int = parameter(512, minimum=1)


@dataclass(frozen=True)
class AsrDecoderSettings(EngineSettings):
    """Parameters of ``asr_decoder``; its config.pbtxt documents them."""

    checkpoint: str = parameter(DEFAULT_CHECKPOINT)
    max_waiting: int = parameter(512, minimum=0)
    max_positions: int = parameter(0, minimum=0)
    chunk_tokens: int = parameter(8, minimum=1)

    def __post_init__(self) -> None:
        """Raises InvalidArgument for sizes that do not fit together; what ``max_positions`` of 0 means is not known."""
        if self.max_positions:
            self.engine_config().pages()
        elif self.prefill_rows % self.page_rows:
            raise InvalidArgument(
                "prefill_rows", f"{self.prefill_rows} is not a multiple of page_rows {self.page_rows}"
            )


def check_room(prompt: AsrPromptSettings, decoder: AsrDecoderSettings) -> None:
    """Raise InvalidArgument where ``asr_prompt`` accepts more windows than ``asr_decoder`` takes: a request that was
    accepted would be refused half way.
    """
    windows, room = prompt.max_requests * prompt.windows_per_request, decoder.max_running + decoder.max_waiting
    if windows > room:
        raise InvalidArgument(
            "max_requests",
            f"{prompt.max_requests} requests of {prompt.windows_per_request} windows (windows_per_request) are above "
            f"{room}, the room of asr_decoder (max_running + max_waiting)",
        )
