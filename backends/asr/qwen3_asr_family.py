"""Qwen3-ASR: one part of any length a window, states in the prompt, and an answer that may begin with its language."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backends.asr.family import WholeWindow
from backends.asr.log_mel import log_mel
from backends.json_file import read_json
from backends.models.qwen3_asr_prompt import LANGUAGES, MIN_SAMPLES, Qwen3ASRPrompt

_CODES = {name: code for code, name in LANGUAGES.items()}


class Qwen3ASRFamily:
    """See :class:`backends.asr.family.Family`."""

    max_seconds = math.inf

    def __init__(self, folder: Path) -> None:
        config = read_json(folder / "config.json")
        self.mels = int(config["audio_config"]["num_mel_bins"])
        self.max_tokens = int(config["text_config"]["max_position_embeddings"])
        self.prompts = Qwen3ASRPrompt(folder)

    def features(self, samples: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        found = log_mel(samples, self.mels, max(len(samples), MIN_SAMPLES))
        return found[None], np.array([found.shape[1]], dtype=np.int32)

    def check(self, language: str, context: str) -> None:
        if language:
            self.prompts.language_name(language)
        if context:
            self.prompts.build(0, "", context)

    def detection(self, language: str) -> NDArray[np.int32] | None:
        return None

    def detected(self, token: int) -> str:
        return ""

    def build(self, states: int, language: str, context: str) -> tuple[NDArray[np.int32], NDArray[np.int64] | None]:
        return self.prompts.build(states, language, context)

    def reader(self, language: str) -> Qwen3ASRReader:
        return Qwen3ASRReader(self.prompts, language)


class Qwen3ASRReader(WholeWindow):
    """See :class:`backends.asr.transcript.Reader`. Text begins behind the marker, unless the prompt ended with it."""

    def __init__(self, prompts: Qwen3ASRPrompt, language: str) -> None:
        super().__init__()
        self._prompts, self._stream = prompts, prompts.stream()
        self._head: list[int] | None = None if language else []
        self.language = _CODES[prompts.language_name(language)] if language else ""

    def feed(self, tokens: Sequence[int]) -> str:
        if self._head is not None:
            self._head += tokens
            if self._prompts.marker not in self._head:
                return ""
            cut = self._head.index(self._prompts.marker) + 1
            self.language, _ = self._prompts.read(self._head[:cut])
            tokens, self._head = self._head[cut:], None
        return self.said(self._stream.feed(tokens))

    def end(self) -> str:
        return self.said(self._stream.end())
