"""The decoder engine, in process: determinism under load, one lifecycle, faults that stay where they happen."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.decoder.buckets import decode_buckets
from backends.decoder.chunks import ChunkSchedule
from backends.decoder.engine import DecoderEngine, EngineConfig
from backends.decoder.request import Chunk, DecodeRequest
from backends.decoder.sampler import SamplingParams
from backends.errors import Unavailable, VoxstageError
from backends.models.moss_tts_local import MossTTSLocal
from backends.models.moss_tts_local_prompt import PromptBuilder

SLOTS = 6


class Listener:
    """Collects one stream."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.error: VoxstageError | None = None
        self.done, self.started = threading.Event(), threading.Event()

    def chunk(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.started.set()
        if chunk.final:
            self.done.set()

    def fail(self, error: VoxstageError) -> None:
        self.error = error
        self.done.set()

    def end(self) -> None:
        self.done.set()

    def codes(self) -> np.ndarray[Any, Any]:
        assert self.done.wait(60) and self.error is None
        assert [chunk.index for chunk in self.chunks] == list(range(len(self.chunks)))
        assert [chunk.final for chunk in self.chunks] == [False] * (len(self.chunks) - 1) + [True]
        return np.concatenate([chunk.codes for chunk in self.chunks])


@pytest.fixture(scope="module")
def model(voice: Path) -> MossTTSLocal:
    torch.set_num_threads(1)
    return MossTTSLocal.load(voice / "tts", torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def prompts(voice: Path) -> PromptBuilder:
    return PromptBuilder(voice / "tts")


@pytest.fixture
def engine(model: MossTTSLocal) -> Iterator[DecoderEngine]:
    engine = DecoderEngine(model, EngineConfig(max_running=SLOTS, max_waiting=64, max_positions=256, num_threads=1))
    yield engine
    engine.check_idle()
    engine.close()


def make(prompts: PromptBuilder, text: str, stream: int, frames: int = 12) -> tuple[Listener, DecodeRequest]:
    listener = Listener()
    sampling = SamplingParams(stream, 0.8 if stream % 2 else 0.0, 0.95, 40, 0.7)
    rows = torch.from_numpy(prompts.build(text)).long()
    return listener, DecodeRequest(stream, rows, sampling, frames, ChunkSchedule(2, 6), listener)


def test_alone_and_under_load_give_the_same_codes(
    engine: DecoderEngine, prompts: PromptBuilder, sentences: list[str]
) -> None:
    alone = []
    for stream in range(16):
        listener, request = make(prompts, sentences[stream], stream)
        engine.submit(request)
        alone.append(listener.codes())
    listeners = []
    for stream in range(16):
        listener, request = make(prompts, sentences[stream], stream)
        engine.submit(request)
        listeners.append(listener)
    assert all(np.array_equal(a, b.codes()) for a, b in zip(alone, listeners, strict=True))


def test_random_joins_leaves_and_aborts_change_nothing(
    engine: DecoderEngine, prompts: PromptBuilder, sentences: list[str]
) -> None:
    rng, expected = random.Random(7), {}
    for stream in range(8):
        listener, request = make(prompts, sentences[stream], stream)
        engine.submit(request)
        expected[stream] = listener.codes()
    kept, aborted = [], []
    for turn in range(40):
        stream = turn % 8
        listener, request = make(prompts, sentences[stream], stream)
        request.stream_id = 1000 + turn
        engine.submit(request)
        if rng.random() < 0.4:
            if rng.random() < 0.5:
                listener.started.wait(30)
            engine.cancel(request.stream_id)
            aborted.append(listener)
        else:
            kept.append((stream, listener))
    assert all(np.array_equal(expected[stream], listener.codes()) for stream, listener in kept)
    assert all(listener.done.wait(30) for listener in aborted)
    assert engine.metrics.slots.value == 0 or engine.metrics.slots.value <= SLOTS


def test_length_and_chunks_are_exact(engine: DecoderEngine, prompts: PromptBuilder) -> None:
    for frames in (1, 2, 3, 8, 9):
        listener, request = make(prompts, "This sentence is long enough for any of these limits.", 2 * frames, frames)
        engine.submit(request)
        assert len(listener.codes()) == frames
        assert listener.chunks[-1].finish_reason == "length"
        assert len(listener.chunks[-1].codes) > 0


def test_a_full_engine_refuses_and_goes_on(model: MossTTSLocal, prompts: PromptBuilder) -> None:
    engine = DecoderEngine(model, EngineConfig(max_running=2, max_waiting=1, max_positions=256, num_threads=1))
    made = [make(prompts, "Please wait for your turn.", stream) for stream in range(8)]
    accepted, refused = [], 0
    for listener, request in made:
        try:
            engine.submit(request)
            accepted.append(listener)
        except Unavailable:
            refused += 1
    assert refused >= 8 - 3 - 2 and engine.metrics.shed.value == refused
    assert all(len(listener.codes()) for listener in accepted)
    engine.check_idle()
    engine.close()


def test_a_failing_step_ends_its_streams_in_band_and_serves_the_next(
    engine: DecoderEngine, prompts: PromptBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = engine._runner.launch
    started, request = make(prompts, "The first stream has begun to speak.", 2)
    engine.submit(request)
    assert started.started.wait(30)

    def broken(requests: object) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(engine._runner, "launch", broken)
    fresh, request = make(prompts, "The second stream has not.", 4)
    engine.submit(request)
    assert started.done.wait(30) and fresh.done.wait(30)
    assert started.error is None and started.chunks[-1].finish_reason == "error"
    assert "INTERNAL the decoder failed: the device is gone" in started.chunks[-1].error
    assert fresh.error is not None and not fresh.chunks
    monkeypatch.setattr(engine._runner, "launch", good)
    after, request = make(prompts, "The third one is served.", 6)
    engine.submit(request)
    assert len(after.codes())


def test_a_failing_prompt_fails_alone(
    engine: DecoderEngine, prompts: PromptBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, request = make(prompts, "A good neighbour.", 2)
    engine.submit(request)
    codes = expected.codes()
    good = engine._runner.prefill

    def sometimes(request: DecodeRequest) -> int:
        if len(request.rows) == 3:
            raise RuntimeError("bad prompt")
        return good(request)

    monkeypatch.setattr(engine._runner, "prefill", sometimes)
    neighbour, good_request = make(prompts, "A good neighbour.", 2)
    bad, bad_request = make(prompts, "Hi.", 4)
    bad_request.rows = bad_request.rows[:3]
    engine.submit(good_request)
    engine.submit(bad_request)
    assert np.array_equal(neighbour.codes(), codes)
    assert bad.done.wait(30) and "bad prompt" in str(bad.error)


def test_closing_ends_every_stream(model: MossTTSLocal, prompts: PromptBuilder) -> None:
    engine = DecoderEngine(model, EngineConfig(max_running=2, max_positions=256, num_threads=1))
    listeners = []
    for stream in range(5):
        listener, request = make(prompts, "A long sentence that is still being spoken.", stream, 100)
        engine.submit(request)
        listeners.append(listener)
    engine.close()
    assert all(listener.done.is_set() for listener in listeners)
    engine.check_idle()


class Uneven:
    """A model whose results depend on the number of rows below four, as a careless library's would."""

    def __init__(self, model: MossTTSLocal) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def backbone(self, x: torch.Tensor, positions: torch.Tensor, attend: Any) -> torch.Tensor:
        hidden = self._model.backbone(x, positions, attend)
        return torch.nextafter(hidden, hidden + 1) if len(x) < 4 else hidden


def test_buckets_that_change_a_bit_are_dropped(model: MossTTSLocal) -> None:
    every = decode_buckets(model, 16, deterministic=False)
    assert every == (2, 4, 8, 16)
    kept = decode_buckets(model, 16, deterministic=True)
    assert kept[-1] == 16 and set(kept) <= set(every)
    uneven: Any = Uneven(model)
    assert 2 not in decode_buckets(uneven, 16, deterministic=True)
    assert decode_buckets(uneven, 16, deterministic=False) == every


def test_the_largest_bucket_holds_every_slot(model: MossTTSLocal) -> None:
    assert decode_buckets(model, 5, deterministic=False) == (2, 4, 5)
    assert decode_buckets(model, 1, deterministic=False) == (2,)
