"""Prompts read together in passes of one shape. The GPU's way; here it runs on a CPU, where the same code is eager."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.decoder import buckets, runner
from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.decoder.prefill_pass import Piece
from backends.decoder.prompt_audio import PromptAudio
from backends.models.moss_tts_local import MossTTSLocal
from backends.models.moss_tts_local_prompt import PromptBuilder
from backends.models.qwen3_asr import Qwen3ASR
from tests.unit import decoding
from tests.unit.decoding import make
from tests.unit.tiny_asr import AUDIO, Tokens, play, request, tiny_qwen3_asr

STREAMS = 8
SWITCHES: list[dict[str, Any]] = [
    {},
    {"prefix_cache": False},
    {"lookahead_min_batch": 1},
    {"lookahead_min_batch": 1, "kv_pages": 20},
    {"max_running": 2},
]


@pytest.fixture(autouse=True)
def _together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "reads_together", lambda model: True)


def engine_of(model: MossTTSLocal | Qwen3ASR, **switches: Any) -> DecoderEngine:
    sizes = {"max_running": 6, "max_waiting": 64, "max_positions": 256, "num_threads": 1, "prefill_pieces": 4}
    return DecoderEngine(model, EngineConfig(**{**sizes, **switches}))


def speak(engine: DecoderEngine, prompts: PromptBuilder, texts: Sequence[str], together: bool) -> list[Any]:
    requests = [make(prompts, text, stream, 6 + stream) for stream, text in enumerate(texts)]
    return decoding.play(engine, requests, together)


@pytest.fixture(scope="module")
def texts(sentences: list[str]) -> list[str]:
    """One is longer than a pass, two are the same."""
    return [*sentences[: STREAMS - 2], " ".join(sentences[:6])[:180], sentences[0]]


@pytest.fixture
def alone(model: MossTTSLocal, prompts: PromptBuilder, texts: list[str]) -> list[Any]:
    engine = engine_of(model, prefix_cache=False)
    codes = speak(engine, prompts, texts, together=False)
    engine.close()
    return codes


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_who_shares_a_pass_changes_no_code(
    model: MossTTSLocal, prompts: PromptBuilder, texts: list[str], alone: list[Any], switches: dict[str, Any]
) -> None:
    engine = engine_of(model, **switches)
    for _ in range(2):  # cold, then warm where there is a cache
        found = speak(engine, prompts, texts, together=True)
        assert all(np.array_equal(a, b) for a, b in zip(found, alone, strict=True))
        engine.check_idle()
    assert engine.metrics.prefill_passes.value > 0
    if switches.get("prefix_cache", True) and "kv_pages" not in switches:
        assert engine.metrics.prefix_hits.value >= STREAMS
    if "kv_pages" in switches:
        assert engine.metrics.retracted.value > 0
    engine.close()


class Passes:
    """Notes what every pass read."""

    def __init__(self, engine: DecoderEngine) -> None:
        self.pieces: list[list[Piece]] = []
        self._read = engine._runner.read
        engine._runner.read = self.read  # type: ignore[method-assign]

    def read(self, pieces: Sequence[Piece]) -> int:
        self.pieces.append(list(pieces))
        return self._read(pieces)


def test_a_pass_is_shared_and_never_too_large(model: MossTTSLocal, prompts: PromptBuilder, texts: list[str]) -> None:
    engine = engine_of(model, prefix_cache=False)
    passes = Passes(engine)
    speak(engine, prompts, texts, together=True)
    assert all(1 <= len(each) <= 4 for each in passes.pieces)
    assert any(len({id(piece.request) for piece in each}) > 1 for each in passes.pieces)
    assert any(len({id(piece.request) for piece in each}) < len(each) for each in passes.pieces)
    engine.close()


def test_a_prompt_that_cannot_be_read_fails_alone(
    model: MossTTSLocal, prompts: PromptBuilder, texts: list[str], alone: list[Any]
) -> None:
    engine = engine_of(model, prefix_cache=False)
    good = engine._runner.read

    def sometimes(pieces: Sequence[Piece]) -> int:
        if any(piece.request.stream_id == 3 for piece in pieces):
            raise RuntimeError("no such prompt")
        return good(pieces)

    engine._runner.read = sometimes  # type: ignore[method-assign]
    listeners = []
    for stream, text in enumerate(texts):
        listener, each = make(prompts, text, stream, 6 + stream)
        each.stream_id = stream
        engine.submit(each)
        listeners.append(listener)
    assert listeners[3].done.wait(60)
    assert listeners[3].error is not None and "no such prompt" in str(listeners[3].error)
    for stream in set(range(STREAMS)) - {3}:
        assert np.array_equal(listeners[stream].codes(), alone[stream])
    engine.check_idle()
    engine.close()


def test_a_request_that_cannot_join_fails_alone(
    model: MossTTSLocal, prompts: PromptBuilder, texts: list[str], alone: list[Any]
) -> None:
    engine = engine_of(model, prefix_cache=False)
    join = engine._runner.join

    def sometimes(request: Any) -> None:
        if request.stream_id == 3:
            raise RuntimeError("no place for it")
        join(request)

    engine._runner.join = sometimes  # type: ignore[method-assign]
    listeners = []
    for stream, text in enumerate(texts):
        listener, each = make(prompts, text, stream, 6 + stream)
        each.stream_id = stream
        engine.submit(each)
        listeners.append(listener)
    for stream in range(STREAMS):
        assert listeners[stream].done.wait(60)
    assert listeners[3].error is not None and "no place for it" in str(listeners[3].error)
    for stream in set(range(STREAMS)) - {3}:
        assert np.array_equal(listeners[stream].codes(), alone[stream])
    engine.check_idle()
    engine.close()


def test_products_that_differ_by_place_are_not_shared(
    model: MossTTSLocal,
    prompts: PromptBuilder,
    texts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hidden = buckets._hidden

    def uneven(model: MossTTSLocal, rows: torch.Tensor) -> torch.Tensor:
        found = hidden(model, rows).clone()
        found[len(rows) // 2 :] *= 1 + 1e-6
        return found

    monkeypatch.setattr(buckets, "_hidden", uneven)
    engine = engine_of(model, prefix_cache=False, deterministic=True)
    assert engine._runner.pass_pieces == 1
    assert "differ by place on this machine: prompts are read by 32" in caplog.text
    speak(engine, prompts, texts[:3], together=True)
    engine.close()


def test_several_pieces_between_steps_are_for_those_who_read_them_in_one_pass() -> None:
    assert EngineConfig().pieces(together=True) == 8
    assert EngineConfig().pieces(together=False) == 1
    assert EngineConfig(prefill_pieces=3).pieces(together=True) == EngineConfig(prefill_pieces=3).pieces(False) == 3


@pytest.fixture(scope="module")
def listener_model(tmp_path_factory: pytest.TempPathFactory) -> Qwen3ASR:
    torch.set_num_threads(1)
    folder: Path = tmp_path_factory.mktemp("qwen3_asr")
    tiny_qwen3_asr(folder)
    return Qwen3ASR.load(folder, torch.device("cpu"), torch.float32)


def clip(number: int, count: int) -> tuple[list[int], PromptAudio]:
    states = torch.randn(count, 64, generator=torch.Generator().manual_seed(number))
    at = torch.arange(3, 3 + count)
    return [7, 8, 9, *[AUDIO] * count, 10, 11, 12], PromptAudio(states, number.to_bytes(16, "little"), at)


def test_audio_in_prompts_is_heard_by_its_own_request(listener_model: Qwen3ASR) -> None:
    clips = [clip(number, count) for number, count in enumerate((5, 70, 70, 33, 104, 1, 47))]

    def tokens(engine: DecoderEngine, together: bool) -> list[Tokens]:
        return play(engine, [request(i, ids, audio, 12) for i, (ids, audio) in enumerate(clips)], together)

    engine = engine_of(listener_model, prefix_cache=False)
    alone = tokens(engine, together=False)
    engine.close()
    assert len({tuple(each.tolist()) for each in alone}) == len(clips), "the audio decides the text"
    for switches in ({}, {"prefix_cache": False}, {"kv_pages": 20}):
        engine = engine_of(listener_model, **switches)
        for _ in range(2):
            found = tokens(engine, together=True)
            assert all(np.array_equal(a, b) for a, b in zip(found, alone, strict=True))
        engine.check_idle()
        engine.close()
