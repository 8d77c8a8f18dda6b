"""Prompt rows of MOSS-TTS-Local: the public chat template, with the user's text kept apart from it.

The template names its fields (reference, instruction, language, text ...) with control ids and fixed strings. A user's
text may hold the very same strings; it is tokenised by a second tokenizer that does not know them, so it can never
leave its field.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from backends.errors import CheckpointError, InvalidArgument
from backends.json_file import read_json
from backends.models.config_errors import config_errors

_BEFORE_REFERENCE = "<|im_start|>user\n<user_inst>\n- Reference(s):\n"
_UNUSED_FIELDS = "".join(
    f"\n- {name}:\nNone" for name in ("Instruction", "Tokens", "Quality", "Sound Event", "Ambient Sound")
)
_NUL = "\0"
_AFTER_TEXT = "\n</user_inst><|im_end|>\n<|im_start|>assistant\n<|audio_start|>"


class PromptBuilder:
    """Builds prompt rows from text. Holds two tokenizers: one for the template, one for what users write."""

    def __init__(self, folder: Path) -> None:
        """``folder``: the checkpoint, with ``tokenizer.json`` and ``config.json``."""
        config = read_json(folder / "config.json")
        specification = read_json(folder / "tokenizer.json")
        self._template = Tokenizer.from_str(json.dumps(specification))
        self._plain = Tokenizer.from_str(json.dumps(_without_control_tokens(specification)))
        with config_errors(folder / "config.json"):
            self._pad, self._codebooks = config["audio_pad_token_id"], config["n_vq"]
            self._codebook_size = config["audio_codebook_sizes"][0]
            self._user_slot = config["audio_user_slot_token_id"]
            self._assistant_slot = config["audio_assistant_slot_token_id"]
            self._audio_start, self._audio_end = config["audio_start_token_id"], config["audio_end_token_id"]
        self.control_ids = frozenset(token["id"] for token in specification["added_tokens"] if _is_control(token))
        if (suffix := self._template_ids(_AFTER_TEXT))[-1] != self._audio_start:
            raise CheckpointError(f"{folder}/tokenizer.json: the template ends with id {suffix[-1]}, not audio_start")

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return 1 + self._codebooks

    def build(
        self, text: str, language: str = "English", reference: NDArray[np.integer[Any]] | None = None
    ) -> NDArray[np.int32]:
        """Rows int32 [P, width] for ``text`` in ``language`` (a name such as English, or None for no hint).

        ``reference``: codes [frames, codebooks] of a clip whose voice is to be cloned. Its rows carry the user slot id.
        """
        head = self._text_rows(self._template_ids(_BEFORE_REFERENCE))
        if reference is None:
            voice = self._text_rows(self._template_ids("None"))
        else:
            voice = np.concatenate(
                [
                    self._text_rows([self._audio_start]),
                    self._code_rows(reference, self._user_slot),
                    self._text_rows([self._audio_end]),
                ]
            )
        fields = self._template_ids(f"{_UNUSED_FIELDS}\n- Language:\n{language}\n- Text:\n")
        ids = fields + self.text_ids(text) + self._template_ids(_AFTER_TEXT)
        return np.concatenate([head, voice, self._text_rows(ids)])

    def continue_from(
        self, codes: NDArray[np.integer[Any]], spoken: str, text: str, language: str = "English"
    ) -> NDArray[np.int32]:
        """Rows int32 [P, width] that go on from a clip: the model has said ``spoken``, which is what the clip says, and
        is to say ``text`` next.

        This is how the public processor uses a transcript: one text, and the clip's codes [frames, codebooks] as the
        beginning of the answer. The template has no field for a transcript beside a reference.
        """
        return np.concatenate([self.build(f"{spoken} {text}", language), self._code_rows(codes, self._assistant_slot)])

    def text_ids(self, text: str) -> list[int]:
        """Ids of what a user wrote: never a control id, whatever the text spells."""
        if _NUL in text:
            raise InvalidArgument("text", f"holds a NUL character at index {text.index(_NUL)}; it cannot be spoken")
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def _template_ids(self, text: str) -> list[int]:
        return list(self._template.encode(text, add_special_tokens=False).ids)

    def _text_rows(self, ids: list[int]) -> NDArray[np.int32]:
        rows = np.full((len(ids), self.width), self._pad, dtype=np.int32)
        rows[:, 0] = ids
        return rows

    def _code_rows(self, codes: NDArray[np.integer[Any]], slot: int) -> NDArray[np.int32]:
        if codes.ndim != 2 or codes.shape[1] != self._codebooks:
            raise InvalidArgument("reference", f"shape {list(codes.shape)} is not [frames, {self._codebooks}]")
        if codes.size and not 0 <= int(codes.min()) <= int(codes.max()) < self._codebook_size:
            raise InvalidArgument("reference", f"codes must lie in 0...{self._codebook_size - 1}")
        rows = np.empty((len(codes), self.width), dtype=np.int32)
        rows[:, 0], rows[:, 1:] = slot, codes
        return rows


def _is_control(token: dict[str, Any]) -> bool:
    """Everything added to the vocabulary steers the model, except ordinary whole words (``English``)."""
    return bool(token["special"]) or not token["single_word"]


def _without_control_tokens(specification: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer, with every control token spelled in a way that no text can contain.

    Leaving the tokens out would not do: the library numbers added tokens by position, and a later word would take a
    control token's id.
    """
    tokens = [
        {**token, "content": f"{_NUL}{token['id']}", "special": False} if _is_control(token) else token
        for token in specification["added_tokens"]
    ]
    return {**specification, "added_tokens": tokens, "post_processor": None}
