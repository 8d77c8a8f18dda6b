"""Every refusal reads well twice: as ``FIELD: problem`` from the server, and as the sentence of the command line."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from backends.errors import InvalidArgument
from backends.fields import SEED, TEMPERATURE, TOP_K, TOP_P, frames_field, read_format, read_string
from backends.prompt.service import check_text
from client.commands.refusal import in_words_of
from client.commands.speak import OPTIONS
from client.errors import PREDICATES, from_message
from client.errors import InvalidArgument as Refused
from client.request import SpeechRequest, make_request
from tests.conftest import ROOT


def raised(call: object, *arguments: object) -> str:
    """The message with which the server refuses."""
    assert callable(call)
    with pytest.raises(InvalidArgument) as caught:
        call(*arguments)
    return str(caught.value)


def text(raw: bytes) -> np.ndarray:
    return np.array([raw], dtype=np.object_)


#: What the server says → what ``python -m client speak`` prints.
SENTENCES = {
    raised(check_text, ""): "text is empty.",
    raised(check_text, " \t"): "text holds nothing but white space.",
    raised(check_text, "a\0b"): "text holds a NUL character at index 1; it cannot be spoken.",
    raised(check_text, "?!"): (
        "The value of text is not valid: '?!' holds no letter and no digit, so there is nothing to speak."
    ),
    raised(read_string, "text", text(b"caf\xc3(")): "text is not valid UTF-8: byte 0xc3 at offset 3.",
    raised(read_string, "text", np.array([b"a", b"b"], dtype=np.object_)): (
        "text has shape [2], expected [1]: one string a request."
    ),
    raised(read_format, text(b"mp3")): "The value of format is not valid: 'mp3' is not one of f32, s16, b64.",
    raised(read_format, text(b"\xff")): "format is not valid UTF-8: byte 0xff at offset 0.",
    raised(SEED.check, -1): "The value of seed is not valid: -1 is below 0, the smallest value.",
    raised(SEED.read, np.zeros(2, np.int64)): "seed has shape [2], expected [1].",
    raised(TEMPERATURE.check, float("nan")): "The value of temperature is not valid: nan is not a finite number.",
    raised(TEMPERATURE.check, 1e9): "The value of temperature is not valid: 1000000000 is above 10, the largest value.",
    raised(TOP_P.check, 0.0): "The value of top_p is not valid: 0 is too small; it must be above 0.",
    raised(TOP_P.check, -0.5): "The value of top_p is not valid: -0.5 is too small; it must be above 0.",
    raised(TOP_P.check, 1.5): "The value of top_p is not valid: 1.5 is above 1, the largest value.",
    raised(TOP_K.check, -1): "The value of top_k is not valid: -1 is below 0, the smallest value.",
    raised(frames_field("max_frames", 750).check, 751): (
        "The value of max_frames is not valid: 751 is above 750, the largest value."
    ),
    raised(frames_field("chunk_frames", 250).read, np.zeros(0, np.int32)): "chunk_frames has shape [0], expected [1].",
    "INVALID_ARG text: is missing": "text is missing.",
    "INVALID_ARG text: makes 863 prompt rows, above the 649 prompt rows that max_frames 375 leaves": (
        "text makes 863 prompt rows, above the 649 prompt rows that max_frames 375 leaves."
    ),
    "INVALID_ARG voice: is not an input of tts; it has text, seed": "voice is not an input of tts; it has text, seed.",
    "in ensemble 'tts', UNAVAILABLE 32 requests are in the decoder; try again later": (
        "The server cannot take this request now: 32 requests are in the decoder; try again later."
    ),
    "UNAVAILABLE all slots are taken": (
        "The server cannot take this request now: all slots are taken. Try again later."
    ),
    "unexpected inference input 'sed' for model 'tts'": (
        "sed is not an input of the model: unexpected inference input 'sed' for model 'tts'."
    ),
    "CANCELLED the server stops": "The server cancelled the request: the server stops.",
    "INTERNAL the decoder failed: no memory": "The server failed: the decoder failed: no memory. Its log says more.",
}


@pytest.mark.parametrize("message", SENTENCES)
def test_what_the_command_line_makes_of_it(message: str) -> None:
    assert str(from_message(message)) == SENTENCES[message]


@pytest.mark.parametrize(
    ("fields", "printed"),
    [
        ({"seed": 1.5}, "The value of seed is not valid: 1.5 is a float; give an integer."),
        ({"temperature": "hot"}, "The value of temperature is not valid: 'hot' is a str; give a number."),
        ({"format": "mp3"}, "The value of format is not valid: 'mp3' is unknown to this client; use f32 or s16."),
        ({"extra": {"x": {}}}, "The value of x is not valid: a dict cannot be sent; give an array, str, bytes, bool,"),
        ({"sed": 1}, "sed is not a field of a request; use one of chunk_frames, extra,"),
    ],
)
def test_what_the_client_itself_refuses(fields: dict[str, object], printed: str) -> None:
    with pytest.raises(Refused) as caught:
        make_request(SpeechRequest("Hi."), fields).inputs()
    assert str(caught.value).startswith(printed)


@pytest.mark.parametrize(
    ("answer", "printed"),
    [
        ("reference_file: is empty", "--voice my/clip.mp3 is empty."),
        (
            "reference_file: 8 channels; a clip has 1 or 2",
            "The value of --voice my/clip.mp3 is not valid: 8 channels; a clip has 1 or 2.",
        ),
        ("reference_text: is empty", "--voice-text is empty."),
        ("voice: 'max' is unknown", "The value of --voice is not valid: 'max' is unknown."),
        ("text: makes 863 rows with reference_text, above the 649 that max_frames 375 leaves of max_positions 1024",
         "text makes 863 rows with --voice-text, above the 649 that --max-frames 375 leaves of max_positions 1024."),
        ("top_p: 'voice' is no number", "The value of --top-p is not valid: 'voice' is no number."),
        ("has nothing to speak", "The request is not valid: has nothing to speak."),
    ],
)  # fmt: skip
def test_the_command_line_speaks_of_what_was_typed(answer: str, printed: str) -> None:
    error = from_message(f"in ensemble 'tts', INVALID_ARG {answer}")
    assert isinstance(error, Refused)
    assert str(in_words_of(OPTIONS | {"reference_file": "--voice my/clip.mp3"}, error)) == printed


def problems() -> list[tuple[str, str]]:
    """(place, first word of the problem) of every InvalidArgument in the tree that begins with words of its own."""
    found = []
    for path in sorted([*(ROOT / "backends").rglob("*.py"), *(ROOT / "client").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "InvalidArgument":
                for value in _branches(node.args[0 if path.is_relative_to(ROOT / "client") else 1]):
                    first = value.values[0] if isinstance(value, ast.JoinedStr) else value
                    if isinstance(first, ast.Constant):
                        found.append((f"{path.relative_to(ROOT)}:{node.lineno}", str(first.value).partition(" ")[0]))
    return found


def _branches(node: ast.expr) -> list[ast.expr]:
    return [*_branches(node.body), *_branches(node.orelse)] if isinstance(node, ast.IfExp) else [node]


#: First words that begin a clause of its own. "it" would be nobody: the field is named by what stands in front.
NOUNS = {
    "''", "'dummy'", "'onnx'", "a", "arrays", "character", "codes", "dtype", "its", "sample", "shape", "states", "the",
    "this",
}  # fmt: skip


def test_every_problem_begins_so_that_both_read_well() -> None:
    found = problems()
    assert len(found) > 20
    assert [place for place, word in found if word not in PREDICATES and word not in NOUNS] == []


def test_the_server_names_the_field_before_the_problem() -> None:
    for message in SENTENCES:
        if message.startswith("INVALID_ARG"):
            field = message.removeprefix("INVALID_ARG ").partition(": ")[0]
            assert field.isidentifier(), message


def test_sources_are_where_the_scan_looks() -> None:
    places = {place.partition(":")[0] for place, _ in problems()}
    assert {str(Path("backends") / "fields.py"), str(Path("client") / "commands" / "speak.py")} <= places
