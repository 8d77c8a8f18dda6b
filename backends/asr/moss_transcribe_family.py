"""MOSS-Transcribe-Diarize: parts of 30 s, states and seconds in the prompt, and answers that name speakers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backends.asr.log_mel import HOP, log_mel
from backends.asr.transcript import Segment
from backends.errors import InvalidArgument
from backends.json_file import read_json
from backends.models.moss_transcribe_prompt import MossTranscribePrompt


class MossTranscribeFamily:
    """See :class:`backends.asr.family.Family`. Speakers are numbered anew in each window."""

    max_seconds = math.inf

    def __init__(self, folder: Path) -> None:
        config = read_json(folder / "config.json")
        audio, self.max_tokens = config["audio_config"], int(config["text_config"]["max_position_embeddings"])
        self.mels, self._frames = int(audio["num_mel_bins"]), 2 * int(audio["max_source_positions"])
        self.prompts = MossTranscribePrompt(folder)

    def features(self, samples: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        size = self._frames * HOP
        parts = [samples[start : start + size] for start in range(0, len(samples), size)]
        counts = [-(-len(part) // HOP) for part in parts]
        return np.stack([log_mel(part, self.mels, size) for part in parts]), np.array(counts, dtype=np.int32)

    def check(self, language: str, context: str) -> None:
        if language:
            raise InvalidArgument("language", f"{language!r}: this checkpoint hears it by itself, leave it out")
        self.prompts.build(0, context)

    def detection(self, language: str) -> NDArray[np.int32] | None:
        return None

    def detected(self, token: int) -> str:
        return ""

    def build(self, states: int, language: str, context: str) -> tuple[NDArray[np.int32], NDArray[np.int64] | None]:
        return self.prompts.build(states, context)

    def reader(self, language: str) -> MossTranscribeReader:
        return MossTranscribeReader(self.prompts)


class MossTranscribeReader:
    """See :class:`backends.asr.transcript.Reader`. Text is as the model writes it, with seconds of its window."""

    language = ""

    def __init__(self, prompts: MossTranscribePrompt) -> None:
        self._prompts, self._stream, self._tokens = prompts, prompts.stream(), list[int]()

    def feed(self, tokens: Sequence[int]) -> str:
        self._tokens += tokens
        return self._stream.feed(tokens)

    def end(self) -> str:
        return self._stream.end()

    def segments(self, begin: float, end: float) -> list[Segment]:
        """With the speaker's number in its window; times are the model's, kept inside of the window."""
        return [
            {
                "start": round(min(begin + each.start, end), 3),
                "end": round(min(begin + each.end, end), 3),
                "text": each.text,
                "speaker": each.speaker,
            }
            for each in self._prompts.read(self._tokens)
        ]
