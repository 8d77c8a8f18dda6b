"""A full decoder refuses at once: before it reads the request, whatever the step loop does, ahead of its own work."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.decoder.service import DecoderStage
from backends.device import give_way
from backends.errors import Unavailable
from backends.models.moss_tts_local import MossTTSLocal
from backends.models.moss_tts_local_prompt import PromptBuilder
from tests.unit.decoding import make


@pytest.fixture
def full(model: MossTTSLocal, prompts: PromptBuilder) -> Iterator[DecoderEngine]:
    """An engine with one slot, taken by a request of 200 frames, and no place to wait."""
    config = EngineConfig(max_running=1, max_waiting=0, max_positions=512, num_threads=1, nice=3, force_frames=200)
    engine = DecoderEngine(model, config)
    listener, request = make(prompts, "Good morning.", 2)
    engine.submit(request)
    yield engine
    engine.cancel(request.stream_id)
    assert listener.done.wait(60)
    engine.close()


class Request:
    """A request without a server that tells which of its inputs were read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def tensor(self, name: str) -> Any:
        self.read.append(name)
        return None


def test_the_stage_reads_nothing_of_a_request_that_it_refuses(full: DecoderEngine) -> None:
    stage = object.__new__(DecoderStage)  # the engine is all that admission needs
    stage.engine = full
    request: Any = Request()
    with pytest.raises(Unavailable, match="max_running 1 and max_waiting 0 are both reached"):
        stage.execute(request)
    assert request.read == ["cancel"]
    assert full.metrics.shed.value == 1


def test_a_refusal_does_not_wait_for_the_lock_of_the_step_loop(full: DecoderEngine) -> None:
    refused = threading.Event()

    def ask() -> None:
        with pytest.raises(Unavailable):
            full.check_room()
        refused.set()

    thread = threading.Thread(target=ask, daemon=True)
    with full._condition:  # as the step loop holds it
        thread.start()
        assert refused.wait(30)
    thread.join()


def test_room_is_room(model: MossTTSLocal) -> None:
    engine = DecoderEngine(model, EngineConfig(max_running=1, max_waiting=0, max_positions=64, num_threads=1))
    engine.check_room()
    assert engine.metrics.shed.value == 0
    engine.close()


def niceness(thread: threading.Thread) -> int:
    assert thread.native_id is not None
    return os.getpriority(os.PRIO_PROCESS, thread.native_id)


def test_the_computing_thread_gives_way_to_all_others(full: DecoderEngine) -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert niceness(full._thread) == min(19, mine + 3)
    assert niceness(threading.main_thread()) == mine


def test_giving_way_is_relative_and_the_threads_own() -> None:
    seen: list[int] = []

    def work() -> None:
        for steps in (0, 2, 2, 19):
            give_way(steps)
            seen.append(os.getpriority(os.PRIO_PROCESS, 0))

    mine = os.getpriority(os.PRIO_PROCESS, 0)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [mine, min(19, mine + 2), min(19, mine + 4), 19]
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine
