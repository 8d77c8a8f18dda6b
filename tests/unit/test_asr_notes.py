"""What the stages of ``asr`` tell each other: notes, all of them and in order; and the message of a window."""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends.asr.notes import DONE, STOP, Notes, read_notes
from backends.asr.window import WindowMessage
from backends.errors import Internal, InvalidArgument

Sent = list[dict[str, list[int]]]


def test_notes_that_gather_go_out_together_and_close_sends_the_rest() -> None:
    sent: Sent = []
    begun, go = threading.Event(), threading.Event()

    def send(notes: Any) -> None:
        sent.append({name: numbers.tolist() for name, numbers in notes.items()})
        begun.set()
        assert go.wait(10)

    notes = Notes(send)
    notes.put(DONE, 1)
    assert begun.wait(10)
    for name, number in ((STOP, 1), (DONE, 2), (DONE, 2), (STOP, 3)):
        notes.put(name, number)
    go.set()
    notes.close()
    assert sent == [{DONE: [1]}, {STOP: [1, 3], DONE: [2, 2]}]


def test_a_note_that_fails_is_logged_and_the_next_one_goes(caplog: pytest.LogCaptureFixture) -> None:
    sent: Sent = []

    def send(notes: Any) -> None:
        if not sent:
            sent.append({})
            raise Internal("nobody there")
        sent.append({name: numbers.tolist() for name, numbers in notes.items()})

    notes = Notes(send)
    with caplog.at_level(logging.ERROR):
        notes.put(STOP, 1)
        while not sent:
            threading.Event().wait(0.001)
        notes.put(STOP, 2)
        notes.close()
    assert sent == [{}, {STOP: [2]}] and "asr_prompt was not told" in caplog.text


@pytest.mark.parametrize(
    ("tensor", "sentence"),
    [
        (np.array([1.0]), r"is float64 \[1\], expected int64"),
        (np.zeros((1, 1), np.int64), r"is int64 \[1, 1\]"),
        (np.zeros(0, np.int64), r"is int64 \[0\]"),
        (np.array([3, -1]), "-1 is below 0"),
    ],
)
def test_what_is_no_note_is_refused(tensor: Any, sentence: str) -> None:
    assert read_notes(DONE, None) == [] and read_notes(DONE, np.array([5, 5])) == [5, 5]
    with pytest.raises(InvalidArgument, match=sentence):
        read_notes(DONE, tensor)


class Request:
    """The tensors of a message."""

    def __init__(self, **tensors: Any) -> None:
        self.tensor = tensors.get


def test_a_window_arrives_as_it_was_sent_to_the_last_bit() -> None:
    message = WindowMessage(
        2**62 + 1, 3, True, 0.1 + 0.2, 29.5, "ab" * 32, "en", "caf\u00e9 \"x\"", 0, 0.7, 2**63 - 1,
        (12345.678901234567, 0.1), "INTERNAL no",
    )  # fmt: skip
    states = np.arange(6, dtype=np.float32).reshape(3, 2)
    request: Any = Request(**message.tensors(states))
    read, found = WindowMessage.read(request)
    assert WindowMessage(**{**vars_of(read), "stamps": tuple(read.stamps)}) == message
    assert np.array_equal(found, states) and not np.shares_memory(found, states)


def vars_of(message: WindowMessage) -> dict[str, Any]:
    return {name: getattr(message, name) for name in WindowMessage.__slots__}


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"window": np.array([b"{}"], dtype=object)},
        {"states": np.zeros((1, 2), np.float32)},
        {"window": np.array([b"{}"], dtype=object), "states": np.zeros((1, 2), np.float32)},
        {"window": np.array([b"[1"], dtype=object), "states": np.zeros((1, 2), np.float32)},
        {"window": np.array([], dtype=object), "states": np.zeros((1, 2), np.float32)},
    ],
)
def test_a_broken_message_is_refused(tensors: dict[str, Any]) -> None:
    request: Any = Request(**tensors)
    with pytest.raises(Internal, match=r"is missing|is no message"):
        WindowMessage.read(request)


GOOD = WindowMessage(5, 0, True, 0.0, 4.7, "ab" * 32, "en", "", 0, 0.0, 0, (1.0, 2.0))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("transcription", -1), ("transcription", 2**63), ("transcription", "x"), ("transcription", 1.0), ("window", -1),
        ("max_tokens", -5), ("max_tokens", 2**31), ("seed", 2**64), ("seed", -1), ("temperature", math.nan),
        ("temperature", 11.0), ("temperature", "hot"), ("begin", math.inf), ("end", None), ("stamps", (10**400,)),
        ("stamps", 7), ("digest", "zz"), ("digest", 3), ("language", 3), ("error", None),
    ],
)  # fmt: skip
def test_a_number_that_no_transcription_has_is_refused(field: str, value: Any) -> None:
    states = np.zeros((1, 2), np.float32)
    message: Any = replace(GOOD, **{field: value})
    request: Any = Request(**message.tensors(states))
    with pytest.raises(Internal, match="is no message"):
        WindowMessage.read(request)
    request = Request(**GOOD.tensors(states))
    assert WindowMessage.read(request)[0].digest == GOOD.digest
