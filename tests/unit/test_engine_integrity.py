"""An engine that finds itself broken says so: in a counter, in the log, and to every request."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import pytest

from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.errors import Internal
from backends.models.moss_tts_local import MossTTSLocal
from backends.models.moss_tts_local_prompt import PromptBuilder
from tests.unit.decoding import make

CONFIG: dict[str, Any] = {"max_running": 2, "max_positions": 256, "num_threads": 1, "check_integrity": True}
TEXT = "Somebody has lost a page."


def play(engine: DecoderEngine, prompts: PromptBuilder, stream: int = 2) -> np.ndarray[Any, Any]:
    listener, request = make(prompts, TEXT, stream, 3)
    engine.submit(request)
    return listener.codes()


def wait_idle(engine: DecoderEngine) -> None:
    """Until the engine's thread waits for work, its check behind it: it holds the condition from one to the other."""
    deadline = time.monotonic() + 10
    while True:
        with engine._condition:
            if not len(engine._scheduler) and engine._last_step == 0.0:
                return
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("what", ["page", "slot"])
def test_a_loss_is_counted_and_named_and_the_engine_goes_on(
    model: MossTTSLocal, prompts: PromptBuilder, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    engine = DecoderEngine(model, EngineConfig(**CONFIG))
    codes = play(engine, prompts)
    wait_idle(engine)
    assert engine.metrics.integrity_failures.value == 0
    if what == "page":
        assert engine._memory._pool.allocate(1) is not None
    else:
        engine._scheduler._free.pop()
    with caplog.at_level(logging.ERROR):
        assert np.array_equal(play(engine, prompts), codes)
        wait_idle(engine)
    assert engine.metrics.integrity_failures.value == 1
    assert f"the decoder is idle and its bookkeeping is wrong: {what}" in caplog.text
    assert np.array_equal(play(engine, prompts), codes), "it serves what it can"
    engine.close()


def test_no_check_without_the_switch(model: MossTTSLocal, prompts: PromptBuilder) -> None:
    engine = DecoderEngine(model, EngineConfig(**{**CONFIG, "check_integrity": False}))
    assert engine._memory._pool.allocate(1) is not None
    play(engine, prompts)
    wait_idle(engine)
    assert engine.metrics.integrity_failures.value == 0
    with pytest.raises(RuntimeError, match="counts 1 owners, 0 hold it"):
        engine.check_idle()
    engine.close()


def test_broken_bookkeeping_fails_every_request_and_hangs_none(
    model: MossTTSLocal, prompts: PromptBuilder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A page that is released twice cannot be given back: the thread ends, and says so to those inside and after."""
    engine = DecoderEngine(model, EngineConfig(**CONFIG))
    speaking, request = make(prompts, "The first stream has begun to speak.", 2, 200)
    engine.submit(request)
    assert speaking.started.wait(30)

    def released_twice(request: object) -> None:
        raise RuntimeError("page 3 is free already: released twice")

    with caplog.at_level(logging.ERROR):
        monkeypatch.setattr(engine._memory, "release", released_twice)
        waiting, second = make(prompts, TEXT, 4, 200)
        engine.submit(second)
        engine.cancel(request.stream_id)
        assert speaking.done.wait(30) and waiting.done.wait(30)
    message = "INTERNAL the decoder has broken down: page 3 is free already: released twice"
    assert (speaking.chunks[-1].finish_reason, speaking.chunks[-1].error) == ("error", message)
    assert str(waiting.error or waiting.chunks[-1].error) == message
    assert "the decoder has broken down; every request fails from now on" in caplog.text
    with pytest.raises(Internal, match="the decoder has broken down: page 3"):
        engine.submit(make(prompts, TEXT, 6, 3)[1])
    assert engine.metrics.failed.value == 2
    engine.close()


def test_an_engine_that_cannot_start_says_so(model: MossTTSLocal, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: DecoderEngine) -> None:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(DecoderEngine, "_capture", broken)
    with pytest.raises(Internal, match="the decoder could not start: no kernel image"):
        DecoderEngine(model, EngineConfig(**CONFIG))
