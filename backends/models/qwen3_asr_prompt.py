"""Prompt rows of Qwen3-ASR: the public chat template, with the user's words kept apart from it; and its answers.

The model begins an answer with ``language NAME<asr_text>``. A prompt that ends with these words forces the language;
without them the model says which one it hears.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backends.errors import InvalidArgument
from backends.json_file import read_json
from backends.models.config_errors import config_errors
from backends.models.qwen3_asr import MODEL_TYPE, check_config
from backends.models.text_rows import text_rows
from backends.models.text_stream import TextStream
from backends.models.text_tokenizer import TextTokenizer

# Shorter clips get silence up to this, which counts as audio: as the public implementation does it.
MIN_SAMPLES = 8_000
# The names that the model was trained with, by code.
LANGUAGES = {
    "ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": "English", "es": "Spanish",
    "fa": "Persian", "fi": "Finnish", "fil": "Filipino", "fr": "French", "hi": "Hindi", "hu": "Hungarian",
    "id": "Indonesian", "it": "Italian", "ja": "Japanese", "ko": "Korean", "mk": "Macedonian", "ms": "Malay",
    "nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish",
    "th": "Thai", "tr": "Turkish", "vi": "Vietnamese", "yue": "Cantonese", "zh": "Chinese",
}  # fmt: skip
_NAMES = {name.lower(): name for name in LANGUAGES.values()}
_NOTHING_HEARD = "None"


class Qwen3ASRPrompt:
    """Builds prompts and reads answers. Holds two tokenizers: one for the template, one for what users write."""

    def __init__(self, folder: Path) -> None:
        """``folder``: the checkpoint, with ``tokenizer.json`` and ``config.json``."""
        config = read_json(folder / "config.json")
        check_config(config, folder, (MODEL_TYPE,))
        self._tokenizer = TextTokenizer(folder)
        self._pieces = self._tokenizer.pieces()
        self.marker = self._tokenizer.token("<asr_text>")
        with config_errors(folder / "config.json"):
            self._audio = config["audio_token_id"]
        self._head = self._tokenizer.template("<|im_start|>system\n")
        self._before = self._tokenizer.template("<|im_end|>\n<|im_start|>user\n<|audio_start|>")
        self._after = self._tokenizer.template("<|audio_end|><|im_end|>\n<|im_start|>assistant\n")
        self._forced = {
            name: [*self._tokenizer.template(f"language {name}"), self.marker] for name in LANGUAGES.values()
        }

    def build(self, states: int, language: str = "", context: str = "") -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Rows int32 [P, 2] around ``states`` audio states, and the rows [states] where these stand.

        ``language``: a code (``en``) or a name (``English``), empty to let the model decide. ``context``: words that
        may be heard, such as names. Raises InvalidArgument for a language that the model does not know.
        """
        ids = [*self._head, *self._tokenizer.plain(context.strip(), "context"), *self._before]
        at = np.arange(len(ids), len(ids) + states)
        ids += [self._audio] * states + self._after
        if language:
            ids += self._forced[self.language_name(language)]
        return text_rows(ids), at

    @staticmethod
    def language_name(language: str) -> str:
        """The model's name of a language, given by code or by name."""
        name = LANGUAGES.get(language.lower()) or _NAMES.get(language.lower())
        if name is None:
            raise InvalidArgument("language", f"{language!r} is not one of {', '.join(sorted(LANGUAGES))}")
        return name

    def stream(self) -> TextStream:
        """Turns the tokens after ``<asr_text>`` (:attr:`marker`) into text while they are written."""
        return TextStream(self._pieces)

    def read(self, tokens: Sequence[int], language: str = "") -> tuple[str, str]:
        """(language, transcript) of what the decoder wrote after a prompt that forced ``language``, or none.

        Before the end of ``language NAME<asr_text>`` the transcript is empty. The marker is found as a token, so no
        word that the model writes is taken for it. Nothing heard: both are empty.
        """
        tokens = list(tokens)
        if not language:
            if self.marker not in tokens:
                return "", ""
            cut = tokens.index(self.marker)
            said = self._tokenizer.text(tokens[:cut]).strip()
            tokens, language = tokens[cut + 1 :], said.removeprefix("language").strip()
        name = "" if language == _NOTHING_HEARD else _NAMES.get(language.lower(), language)
        return LANGUAGES.get(name.lower(), name), self._tokenizer.text(tokens).strip()
