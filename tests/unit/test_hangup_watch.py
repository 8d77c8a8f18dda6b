"""Whoever has gone is noticed, and asking costs no more than it may."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from backends.decoder.hangup_watch import HangupWatch


class Request:
    """A request that counts how often it was asked about."""

    def __init__(self, gone: bool = False, broken: bool = False) -> None:
        self.gone, self._broken, self.asked = gone, broken, 0

    def cancelled(self) -> bool:
        self.asked += 1
        if self._broken:
            raise RuntimeError("no such request")
        return self.gone


@pytest.fixture
def cancelled() -> list[int]:
    return []


@pytest.fixture
def watch(cancelled: list[int]) -> Iterator[HangupWatch]:
    made = HangupWatch(cancelled.append)
    yield made
    made.close()
    assert not any(thread.name == "decoder-cancels" for thread in threading.enumerate())


def wait_for(done: Any) -> None:
    deadline = time.monotonic() + 10
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def add(watch: HangupWatch, stream: int, request: Any) -> None:
    watch.add(stream, request)


def test_only_who_has_gone_is_cancelled_and_whoever_ended_is_not_asked(
    watch: HangupWatch, cancelled: list[int]
) -> None:
    there, gone, ended = Request(), Request(), Request(gone=True)
    add(watch, 1, there)
    add(watch, 2, gone)
    add(watch, 3, ended)
    watch.forget(3)
    watch.forget(4)  # nobody knows it
    wait_for(lambda: there.asked >= 2)
    assert 2 not in cancelled and 1 not in cancelled
    gone.gone = True
    wait_for(lambda: 2 in cancelled)
    asked = ended.asked
    wait_for(lambda: there.asked >= 8)
    assert ended.asked == asked and set(cancelled) <= {2, 3}


def test_one_that_cannot_be_asked_about_leaves_the_others(watch: HangupWatch, cancelled: list[int]) -> None:
    broken, gone = Request(broken=True), Request(gone=True)
    add(watch, 1, broken)
    add(watch, 2, gone)
    wait_for(lambda: broken.asked >= 3 and cancelled.count(2) >= 3)


def test_many_streams_are_asked_about_less_often(watch: HangupWatch) -> None:
    few = Request()
    add(watch, 0, few)
    wait_for(lambda: few.asked >= 1)
    many = [Request() for _ in range(60)]
    for stream, request in enumerate(many, 1):
        add(watch, stream, request)
    began, before = time.monotonic(), sum(request.asked for request in many)
    wait_for(lambda: sum(request.asked for request in many) >= before + 180)
    seconds = time.monotonic() - began
    # 200 questions a second: three rounds of 60 take 0.9 s; the first may have been under way.
    assert seconds > 0.5
