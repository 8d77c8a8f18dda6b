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
