"""Prompt rows of Whisper, and the text of what it writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backends.errors import InvalidArgument
from backends.json_file import read_json
from backends.models.text_rows import text_rows
from backends.models.text_stream import TextStream
from backends.models.text_tokenizer import TextTokenizer
from backends.models.whisper_config import WhisperConfig

TASKS = ("transcribe", "translate")


class WhisperPrompt:
    """Builds prompts without timestamps: ``[previous text] <|startoftranscript|> [language task] <|notimestamps|>``."""

    def __init__(self, folder: Path) -> None:
        """``folder``: the checkpoint, with ``tokenizer.json``, ``config.json`` and ``generation_config.json``."""
        config, advice = WhisperConfig.load(folder), read_json(folder / "generation_config.json")
        self._tokenizer = TextTokenizer(folder)
        self._pieces = self._tokenizer.pieces()
        self._start, self._no_timestamps = config.start, advice["no_timestamps_token_id"]
        self._previous = advice.get("prev_sot_token_id") or self._tokenizer.token("<|startofprev|>")
        # Half of the positions, less the token in front: what the model was trained with.
        self._context_limit = config.target_positions // 2 - 1
        self._tasks: dict[str, int] = advice.get("task_to_id") or {}
        self.languages = {name.strip("<|>"): token for name, token in (advice.get("lang_to_id") or {}).items()}
        self._codes = {token: code for code, token in self.languages.items()}

    @property
    def multilingual(self) -> bool:
        """Whether a prompt names a language."""
        return bool(self.languages)

    def build(self, language: str = "", task: str = "transcribe", context: str = "") -> NDArray[np.int32]:
        """Rows int32 [P, 2]. ``language``: a code such as ``en``; ``context``: words that may be heard, of which the
        last 223 tokens count. Raises InvalidArgument for a language or task that the checkpoint does not know.
        """
        ids: list[int] = []
        if context.strip():
            ids = [self._previous, *self._tokenizer.plain(" " + context.strip(), "context")[-self._context_limit :]]
        ids.append(self._start)
        if task not in TASKS or (task != "transcribe" and not self.multilingual):
            raise InvalidArgument("task", f"{task!r} is not one of {TASKS if self.multilingual else TASKS[:1]}")
        if self.multilingual:
            if language not in self.languages:
                raise InvalidArgument("language", f"{language!r} is not one of {', '.join(sorted(self.languages))}")
            ids += [self.languages[language], self._tasks[task]]
        elif language not in ("", "en"):
            raise InvalidArgument("language", f"{language!r}: this checkpoint hears English only")
        return text_rows([*ids, self._no_timestamps])

    def detection(self) -> NDArray[np.int32]:
        """Rows int32 [1, 2] after which a multilingual model names the language it hears: ask for one token, and
        :meth:`language_of` reads it. Raises InvalidArgument for a model of one language.
        """
        if not self.multilingual:
            raise InvalidArgument("language", "this checkpoint hears English only, there is nothing to detect")
        return text_rows([self._start])

    def language_of(self, token: int) -> str:
        """The code of the language that ``token`` names; empty when it names none."""
        return self._codes.get(token, "")

    def stream(self) -> TextStream:
        """Turns tokens into text while they are written; in all what :meth:`text` gives."""
        return TextStream(self._pieces)

    def text(self, tokens: Sequence[int]) -> str:
        """The transcript of what the decoder wrote."""
        return self._tokenizer.text(tokens).strip()
