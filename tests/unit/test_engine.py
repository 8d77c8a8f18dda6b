"""The decoder engine, in process: determinism under load, one lifecycle, faults that stay where they happen."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from backends.decoder.buckets import decode_buckets
from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.decoder.request import DecodeRequest
from backends.errors import Unavailable
from backends.models.moss_tts_local import MossTTSLocal
from backends.models.moss_tts_local_prompt import PromptBuilder
from tests.unit.decoding import make, play

SLOTS = 6


@pytest.fixture
def engine(model: MossTTSLocal) -> Iterator[DecoderEngine]:
    engine = DecoderEngine(model, EngineConfig(max_running=SLOTS, max_waiting=64, max_positions=256, num_threads=1))
    yield engine
    engine.check_idle()
    engine.close()


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


SWITCHES = [
    {"lookahead_min_batch": 1},
    {"lookahead": False},
    {"prefix_cache": False},
    {"deterministic": False},
    {"lookahead_min_batch": 1, "prefix_cache": False, "kv_pages": 16},
    {"lookahead_min_batch": 1, "kv_pages": 16},
    {"prefill_pieces": 3, "max_running": 3},
]


def run(engine: DecoderEngine, prompts: PromptBuilder, texts: list[str], together: bool) -> list[np.ndarray[Any, Any]]:
    """The codes of every text, seeds 0, 1, 2 ..., one after another or all at once."""
    frames = [40 if len(text) < 10 else 4 + 6 * (stream % 3) for stream, text in enumerate(texts)]
    requests = [make(prompts, text, stream, frames[stream]) for stream, text in enumerate(texts)]
    return play(engine, requests, together)


@pytest.fixture(scope="module")
def texts(sentences: list[str]) -> list[str]:
    """Sixteen requests, every text twice with another seed, so that the prefix cache has something to find.

    Two end by themselves (greedy "Hi." does after 7 frames), the others at their limit.
    """
    return [sentences[i // 2] for i in range(12)] + ["Hi."] * 4


@pytest.fixture(scope="module")
def reference(model: MossTTSLocal, prompts: PromptBuilder, texts: list[str]) -> list[np.ndarray[Any, Any]]:
    """One by one, everything off."""
    config = EngineConfig(max_running=SLOTS, max_positions=256, num_threads=1, lookahead=False, prefix_cache=False)
    engine = DecoderEngine(model, config)
    codes = run(engine, prompts, texts, together=False)
    engine.close()
    return codes


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_no_switch_and_no_load_changes_a_code(
    model: MossTTSLocal,
    prompts: PromptBuilder,
    texts: list[str],
    reference: list[np.ndarray[Any, Any]],
    switches: dict[str, Any],
) -> None:
    config = EngineConfig(**{"max_running": SLOTS, "max_positions": 256, "num_threads": 1, **switches})
    engine = DecoderEngine(model, config)
    for together in (True, False, True):  # cold, then warm where there is a cache
        codes = run(engine, prompts, texts, together)
        assert all(np.array_equal(a, b) for a, b in zip(codes, reference, strict=True)), together
        engine.check_idle()
    if config.prefix_cache and not config.kv_pages:
        assert engine.metrics.prefix_hits.value > 16
    if config.kv_pages:
        assert engine.metrics.retracted.value > 0
    if config.lookahead_min_batch:
        assert engine.metrics.overruns.value > 0
    engine.close()


def test_a_stop_at_batch_one_with_lookahead_ends_where_sync_does(model: MossTTSLocal, prompts: PromptBuilder) -> None:
    lengths = []
    for lookahead in (False, True):
        config = EngineConfig(
            max_running=2, max_positions=256, num_threads=1, lookahead=lookahead, lookahead_min_batch=1
        )
        engine = DecoderEngine(model, config)
        listener, request = make(prompts, "Hi.", 0, frames=100)
        engine.submit(request)
        lengths.append(len(listener.codes()))
        assert listener.chunks[-1].finish_reason == "stop"
        engine.check_idle()
        engine.close()
    assert lengths == [7, 7]  # as in the golden output greedy_4


def test_a_prompt_that_continues_audio_is_the_same_on_a_hit_and_on_a_miss(
    model: MossTTSLocal, prompts: PromptBuilder
) -> None:
    def play(engine: DecoderEngine, rows: torch.Tensor, stream: int) -> np.ndarray[Any, Any]:
        listener, request = make(prompts, "unused", stream, 20)
        request.rows, request.total = rows, len(rows)
        engine.submit(request)
        return listener.codes()

    config = EngineConfig(max_running=2, max_positions=256, num_threads=1)
    first = torch.from_numpy(prompts.build("The quick brown fox jumps over the lazy dog.")).long()
    warm = DecoderEngine(model, config)
    codes = play(warm, first, 0)
    made = torch.from_numpy(codes).long()
    slots = torch.full((len(made), 1), model.rows.assistant_slot_id)
    longer = torch.cat([first, torch.cat([slots, made], dim=1)])
    before = warm.metrics.prefix_hit_rows.value
    hit = play(warm, longer, 1)
    assert warm.metrics.prefix_hit_rows.value - before >= len(first) // 16 * 16
    cold = DecoderEngine(model, config)
    assert np.array_equal(play(cold, longer, 1), hit)
    warm.check_idle()
    for engine in (warm, cold):
        engine.close()


def test_a_thousand_staggered_finishes_return_every_slot_and_page(model: MossTTSLocal, prompts: PromptBuilder) -> None:
    config = EngineConfig(
        max_running=8, max_waiting=1000, max_positions=64, kv_pages=24, num_threads=1, lookahead_min_batch=1,
        prefill_pieces=4, check_integrity=True,
    )  # fmt: skip
    engine = DecoderEngine(model, config)
    rng, listeners = random.Random(3), []
    for stream in range(1000):
        listener, request = make(prompts, f"{stream % 50}", stream, rng.randint(1, 4))
        engine.submit(request)
        listeners.append((listener, request.max_frames))
    for listener, frames in listeners:
        assert 0 < len(listener.codes()) <= frames
    engine.check_idle()
    engine.close()
