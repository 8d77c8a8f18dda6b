"""The sampling advice that a checkpoint brings along."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backends.models.generation_defaults import read_generation_defaults


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Used where a request is silent. ``temperature`` 0 means greedy; the rest is for requests that sample."""

    temperature: float
    top_p: float
    top_k: int
    text_temperature: float
    max_frames: int

    @classmethod
    def load(cls, folder: Path) -> SamplingDefaults:
        """``generation_defaults.json`` of ``folder``; without one, the defaults of the public MOSS-TTS-Local v1.5."""
        advice = read_generation_defaults(folder)
        greedy = not advice.get("recommended.do_sample", True)
        return cls(
            temperature=0.0 if greedy else float(advice.get("sampled.audio_temperature", 1.7)),
            top_p=float(advice.get("sampled.audio_top_p", 0.8)),
            top_k=int(advice.get("sampled.audio_top_k", 25)),
            text_temperature=float(advice.get("sampled.text_temperature", 1.0)),
            max_frames=int(advice.get("max_new_frames", 750)),
        )
