"""An engine in a process of its own: the same bits, the same refusals; and what happens when the process goes."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.decoder import engine_process
from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.decoder.engine_order import EngineOrder
from backends.decoder.engine_process import EngineProcess, start_engine_process
from backends.decoder.metrics import DecoderMetrics
from backends.decoder.prompt_audio import PromptAudio
from backends.decoder.request import DecodeRequest
from backends.errors import CheckpointError, Internal, InvalidArgument, Unavailable
from backends.models.moss_tts_local import MossTTSLocal
from backends.models.moss_tts_local_prompt import PromptBuilder
from tests.unit.decoding import Listener, make, play

CONFIG = EngineConfig(max_running=4, max_waiting=1, max_positions=512, num_threads=1, nice=0)
LONG = 400
Start = Callable[..., EngineProcess]


def order(folder: Path, config: EngineConfig = CONFIG) -> EngineOrder:
    return EngineOrder("tts_decoder", MossTTSLocal.load, folder, torch.device("cpu"), torch.float32, True, config)


@pytest.fixture(scope="module")
def apart(voice: Path) -> Iterator[EngineProcess]:
    """One engine that several tests may use; it has to survive them."""
    engine = EngineProcess(order(voice / "tts"), DecoderMetrics())
    yield engine
    engine.close()


@pytest.fixture
def start(voice: Path) -> Iterator[Start]:
    """Starts an engine for one test, which may do to it what it likes."""
    started = []

    def begin(lost: Callable[[], None] = lambda: None) -> EngineProcess:
        started.append(EngineProcess(order(voice / "tts"), DecoderMetrics(), lost))
        return started[-1]

    yield begin
    for engine in started:
        engine.close()


def wait_until(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


def test_the_bits_are_those_of_an_engine_in_this_process(
    apart: EngineProcess, model: MossTTSLocal, prompts: PromptBuilder
) -> None:
    texts = ["Good morning.", "The birch canoe slid on the smooth planks.", "One.", "Two."]

    def requests() -> list[tuple[Listener, DecodeRequest]]:
        return [make(prompts, text, number) for number, text in enumerate(texts)]  # odd streams sample

    here = DecoderEngine(model, CONFIG)
    wanted = play(here, requests(), together=True)
    here.close()
    for together in (True, False):
        found = play(apart, requests(), together)
        assert all(map(np.array_equal, found, wanted))


def test_stations_and_counts_come_across(apart: EngineProcess, prompts: PromptBuilder) -> None:
    metrics = apart._metrics
    time.sleep(0.2)  # what the test before has counted may be on its way
    frames, finished = metrics.frames.value, metrics.finished.value
    listener, request = make(prompts, "Good morning.", 10)
    request.timeline.stamp("built", 0.0)
    apart.submit(request)
    made = len(listener.codes())
    assert [*sorted(request.timeline.stamps, key=request.timeline.stamps.__getitem__)] == [
        "built", "queued", "scheduled", "first_step", "first_chunk", "last_chunk"
    ]  # fmt: skip
    assert listener.chunks[-1].timeline is request.timeline
    assert wait_until(lambda: metrics.finished.value == finished + 1 and not metrics.slots.value)
    assert metrics.frames.value == frames + made
    assert metrics.waiting.value == 0
    assert len(metrics.step_gap.drain()) > 0


def test_a_cancelled_stream_ends_without_a_last_chunk(apart: EngineProcess, prompts: PromptBuilder) -> None:
    listener, request = make(prompts, "Good morning, good morning.", 20, LONG)
    apart.submit(request)
    assert listener.started.wait(30)
    apart.cancel(20)
    assert listener.done.wait(30)
    assert not any(chunk.final for chunk in listener.chunks)
    apart.cancel(20)  # it is gone: nothing happens
    assert wait_until(lambda: not apart._metrics.slots.value)


def test_a_full_engine_refuses_at_once(apart: EngineProcess, prompts: PromptBuilder) -> None:
    inside = [make(prompts, "Good morning, good morning.", 30 + n, LONG) for n in range(5)]
    for _, request in inside:
        apart.submit(request)
    shed = apart._metrics.shed.value
    assert apart._metrics.slots.value + apart._metrics.waiting.value == 5
    for refuse in (apart.check_room, lambda: apart.submit(make(prompts, "One.", 39)[1])):
        with pytest.raises(Unavailable, match="max_running 4 and max_waiting 1 are both reached"):
            refuse()
    assert apart._metrics.shed.value == shed + 2
    for listener, request in inside:
        apart.cancel(request.stream_id)
        assert listener.done.wait(30)
    apart.check_room()


def test_what_the_engine_refuses_ends_that_request_alone(apart: EngineProcess, prompts: PromptBuilder) -> None:
    listener, request = make(prompts, "One.", 40)
    request.audio = PromptAudio(torch.zeros(1, 8), b"clip", torch.tensor([0]))
    apart.submit(request)
    assert listener.done.wait(30)
    assert isinstance(listener.error, InvalidArgument)
    assert str(listener.error) == "INVALID_ARG audio: is given, and this model reads none"
    listener, request = make(prompts, "One.", 41)
    apart.submit(request)
    assert len(listener.codes())


@pytest.mark.parametrize("positions", [0, 100_000])
def test_what_keeps_an_engine_from_being_made(voice: Path, tmp_path: Path, positions: int) -> None:
    if positions:
        with pytest.raises(
            InvalidArgument, match=r"tts_decoder.max_positions: 100000 is above \d+, the limit"
        ) as caught:
            EngineProcess(order(voice / "tts", EngineConfig(max_positions=positions)), DecoderMetrics())
        assert caught.value.field == "tts_decoder.max_positions"
    else:
        with pytest.raises(CheckpointError):
            EngineProcess(order(tmp_path), DecoderMetrics())


def test_a_process_that_dies_fails_its_streams_and_every_later_one(start: Start, prompts: PromptBuilder) -> None:
    lost = threading.Event()
    engine = start(lost.set)
    speaking, queued = make(prompts, "Good morning, good morning.", 1, LONG), make(prompts, "One.", 2, LONG)
    engine.submit(speaking[1])
    assert speaking[0].started.wait(30)
    os.kill(engine.pid, signal.SIGSTOP)  # so that it cannot speak of the second any more
    engine.submit(queued[1])
    os.kill(engine.pid, signal.SIGKILL)
    for listener, _ in (speaking, queued):
        assert listener.done.wait(30)
    last = speaking[0].chunks[-1]
    assert (last.final, last.finish_reason) == (True, "error")
    assert last.error == "INTERNAL the process of the decoder has ended with code -9"
    assert [chunk.index for chunk in speaking[0].chunks] == list(range(len(speaking[0].chunks)))
    assert isinstance(queued[0].error, Internal) and not queued[0].chunks
    assert lost.wait(30)
    assert (engine._metrics.failed.value, engine._metrics.slots.value, engine._metrics.waiting.value) == (2, 0, 0)
    with pytest.raises(Internal, match="has ended with code -9"):
        engine.submit(make(prompts, "Two.", 3)[1])


def test_closing_ends_what_runs_as_cancelled(start: Start, prompts: PromptBuilder) -> None:
    lost = threading.Event()
    engine = start(lost.set)
    listener, request = make(prompts, "Good morning, good morning.", 1, LONG)
    engine.submit(request)
    assert listener.started.wait(30)
    engine.close()
    assert listener.chunks[-1].finish_reason == "cancelled"
    assert engine._process.returncode == 0
    assert not lost.is_set()
    with pytest.raises(Internal, match="is shutting down"):
        engine.submit(make(prompts, "Two.", 2)[1])


def test_the_process_ends_when_the_stage_is_gone(start: Start) -> None:
    engine = start()
    with socket.socket(fileno=os.dup(engine._connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)
    assert engine._process.wait(30) == 1


@pytest.mark.parametrize("to_it", [True, False], ids=["to the process", "from the process"])
def test_nonsense_ends_the_process_and_every_stream(
    start: Start, prompts: PromptBuilder, monkeypatch: pytest.MonkeyPatch, to_it: bool
) -> None:
    lost = threading.Event()
    engine = start(lost.set)
    listener, request = make(prompts, "Good morning, good morning.", 1, LONG)
    engine.submit(request)
    assert listener.started.wait(30)
    if to_it:
        engine._connection.send_bytes(b"nonsense")
    else:

        def read(connection: object) -> None:
            raise pickle.UnpicklingError("nonsense")

        monkeypatch.setattr(engine_process, "read", read)
    assert lost.wait(30)
    assert listener.done.wait(30)
    assert listener.chunks[-1].error.startswith("INTERNAL the process of the decoder has ended with code")
    assert engine._process.wait(30) != 0


@pytest.mark.parametrize("executable", ["/nonexistent/python3", "/bin/false"])
def test_without_a_process_the_stage_goes_on_without(
    voice: Path, monkeypatch: pytest.MonkeyPatch, executable: str
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    metrics = DecoderMetrics()
    assert start_engine_process(order(voice / "tts"), metrics, lambda: None) is None
    assert metrics.process_failures.value == 1
