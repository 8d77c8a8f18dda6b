"""Prompt rows of MOSS-Transcribe-Diarize, and its answers: who said what, from when to when.

Seconds are written as digits among the audio states, so that the model can tell the time. An answer is a row of
segments ``[start][S01]text[end]``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backends.json_file import read_json
from backends.models.config_errors import config_errors
from backends.models.qwen3_asr import MOSS_TYPE, check_config
from backends.models.text_rows import text_rows
from backends.models.text_stream import TextStream
from backends.models.text_tokenizer import TextTokenizer

# What the model was trained to be asked, word for word (README of the public release): transcribe, each segment with
# its start, its speaker, its text and its end.
INSTRUCTION = (
    "请将音频转写为文本，每一段需以起始时间戳和说话人编号（[S01]、[S02]、[S03]…）开头，正文为对应的语音内容，"
    "并在段末标注结束时间戳，以清晰标明该段语音范围。"
)
_HOTWORDS = "热词提示："
_SEGMENT = re.compile(r"\[(?P<start>[\d:.]+)\]\s*\[S(?P<speaker>\d+)\](?P<text>.*?)\[(?P<end>[\d:.]+)\]", re.DOTALL)
_SECONDS, _STATES_PER_SECOND = 2, 12.5


@dataclass(frozen=True, slots=True)
class SpokenSegment:
    """``text`` said by ``speaker`` (1, 2 ...) from ``start`` to ``end``, seconds."""

    start: float
    end: float
    speaker: int
    text: str


class MossTranscribePrompt:
    """Builds prompts and reads answers. Holds two tokenizers: one for the template, one for what users write."""

    def __init__(self, folder: Path) -> None:
        """``folder``: the checkpoint, with ``tokenizer.json``, ``config.json``, and ``processor_config.json`` where the
        seconds are marked in another way than every 2.
        """
        config = read_json(folder / "config.json")
        check_config(config, folder, (MOSS_TYPE,))
        path = folder / "processor_config.json"
        advice = read_json(path) if path.exists() else {}
        self._every = int(advice.get("time_marker_every_seconds", _SECONDS))
        self._rate = float(advice.get("audio_tokens_per_second", _STATES_PER_SECOND))
        with config_errors(folder / "config.json"):
            self._audio = config["audio_token_id"]
        self._tokenizer = TextTokenizer(folder)
        self._pieces = self._tokenizer.pieces()
        system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        self._before = self._tokenizer.template(f"{system}<|im_start|>user\n<|audio_start|>")
        self._after = self._tokenizer.template("<|im_end|>\n<|im_start|>assistant\n")

    def build(self, states: int, context: str = "") -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Rows int32 [P, 2] around ``states`` audio states, and the rows [states] where these stand.

        ``context``: words that may be heard, such as names, separated by commas.
        """
        ids = [*self._before, *self._span(states), *self._tokenizer.template(f"<|audio_end|>\n{INSTRUCTION}")]
        if context.strip():
            ids += [*self._tokenizer.template(_HOTWORDS), *self._tokenizer.plain(context.strip(), "context")]
        ids += self._after
        return text_rows(ids), np.flatnonzero(np.array(ids) == self._audio)

    def read(self, tokens: Sequence[int]) -> list[SpokenSegment]:
        """The whole segments of what the decoder wrote so far."""
        return [
            SpokenSegment(
                _seconds(found["start"]), _seconds(found["end"]), int(found["speaker"]), found["text"].strip()
            )
            for found in _SEGMENT.finditer(self.text(tokens))
        ]

    def stream(self) -> TextStream:
        """Turns tokens into text while they are written; in all what :meth:`text` gives."""
        return TextStream(self._pieces)

    def text(self, tokens: Sequence[int]) -> str:
        """What the decoder wrote, as it stands."""
        return self._tokenizer.text(tokens).strip()

    def _span(self, states: int) -> list[int]:
        """Audio tokens, with the second after every ``self._every`` seconds of them."""
        step, ids, done = int(self._rate * self._every), [], 0
        if step > 0:
            for second in range(self._every, int(states / self._rate) + 1, self._every):
                upto = second // self._every * step
                ids += [self._audio] * (upto - done) + self._tokenizer.template(str(second))
                done = upto
        return ids + [self._audio] * (states - done)


def _seconds(stamp: str) -> float:
    """``7.56``, ``1:23`` or ``01:02:03`` in seconds; 0 for what is none of these."""
    try:
        return sum(float(part) * 60**place for place, part in enumerate(reversed(stamp.split(":"))))
    except ValueError:
        return 0.0
