"""The parameters of ``tts_prompt``. Imports little, because ``serve.py`` reads them before it starts anything."""

from __future__ import annotations

from dataclasses import dataclass

from backends.settings import parameter


@dataclass(frozen=True)
class PromptSettings:
    """Parameters of ``tts_prompt``; its config.pbtxt documents them."""

    checkpoint: str = parameter("checkpoints/voice")
    language: str = parameter("English")
    max_positions: int = parameter(1024, minimum=64)
    max_frames_limit: int = parameter(750, minimum=1)
    max_chunk_frames: int = parameter(250, minimum=1)
    voices: str = parameter("voices")
    max_voice_seconds: float = parameter(30.0, minimum=1.0, maximum=100.0)
    voice_workers: int = parameter(4, minimum=1, maximum=64)
    max_waiting_voices: int = parameter(64, minimum=1)
    voice_cache_mib: float = parameter(64.0, minimum=0.0)
    voice_nice: int = parameter(10, minimum=0, maximum=19)
