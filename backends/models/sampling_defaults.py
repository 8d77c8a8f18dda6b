"""The sampling advice that a checkpoint brings along."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backends.json_file import read_json


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
        path = folder / "generation_defaults.json"
        advice = read_json(path) if path.exists() else {}
        sampled, greedy = advice.get("sampled", {}), not advice.get("recommended", {}).get("do_sample", True)
        return cls(
            temperature=0.0 if greedy else float(sampled.get("audio_temperature", 1.7)),
            top_p=float(sampled.get("audio_top_p", 0.8)),
            top_k=int(sampled.get("audio_top_k", 25)),
            text_temperature=float(sampled.get("text_temperature", 1.0)),
            max_frames=int(advice.get("max_new_frames", 750)),
        )
