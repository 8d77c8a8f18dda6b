"""Text on the decoder engine: audio in the prompt, one token a row, a vocabulary wider than any codebook."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3ASRForConditionalGeneration

from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.decoder.prompt_audio import PromptAudio
from backends.decoder.sampler import SamplingParams
from backends.errors import InvalidArgument
from backends.models.qwen3_asr import Qwen3ASR
from backends.models.text_rows import text_rows
from tests.unit.tiny_asr import AUDIO, ENDS, Tokens, play, request, tiny_qwen3_asr, without_end

TOKENS = 24
BEFORE, AFTER = [7, 8, 9], [10, 11, 12]
SWITCHES: list[dict[str, Any]] = [
    {"lookahead_min_batch": 1},
    {"prefix_cache": False},
    {"lookahead_min_batch": 1, "deterministic": False},
    {"lookahead_min_batch": 1, "kv_pages": 14},
    {"prefill_rows": 64, "prefill_pieces": 2},
]


class Clip:
    """Random states of ``count`` audio rows, and the prompt around them."""

    def __init__(self, number: int, count: int) -> None:
        generator = torch.Generator().manual_seed(number)
        self.states = torch.randn(count, 64, generator=generator)
        self.ids = [*BEFORE, *[AUDIO] * count, *AFTER]
        at = torch.arange(len(BEFORE), len(BEFORE) + count)
        self.audio = PromptAudio(self.states, number.to_bytes(16, "little"), at)


CLIPS = [Clip(number, count) for number, count in enumerate((5, 70, 70, 33, 104, 1, 47))]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Qwen3ASRForConditionalGeneration]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("qwen3_asr")
    return folder, tiny_qwen3_asr(folder)


@pytest.fixture(scope="module")
def model(reference: tuple[Path, Qwen3ASRForConditionalGeneration]) -> Qwen3ASR:
    return Qwen3ASR.load(reference[0], torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def expected(reference: tuple[Path, Qwen3ASRForConditionalGeneration]) -> list[Tokens]:
    """Greedy ``generate()`` of transformers, one clip at a time."""
    tokens = []
    with torch.inference_mode():
        for clip in CLIPS:
            embeds = reference[1].get_input_embeddings()(torch.tensor([clip.ids]))
            embeds[0, len(BEFORE) : -len(AFTER)] = clip.states
            made = reference[1].generate(inputs_embeds=embeds, max_new_tokens=TOKENS, do_sample=False)
            tokens.append(without_end(made[0], ENDS))
    return tokens


def engine_of(model: Qwen3ASR, **switches: Any) -> DecoderEngine:
    return DecoderEngine(model, EngineConfig(**{"max_running": 4, "max_positions": 192, "num_threads": 1, **switches}))


@pytest.fixture
def engine(model: Qwen3ASR) -> Iterator[DecoderEngine]:
    engine = engine_of(model)
    yield engine
    engine.check_idle()
    engine.close()


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_tokens_equal_generate_whatever_the_load_and_the_switches(
    model: Qwen3ASR, expected: list[Tokens], switches: dict[str, Any]
) -> None:
    engine = engine_of(model, **switches)
    for together in (True, False, True):  # cold, then warm where there is a cache
        found = play(engine, [request(i, clip.ids, clip.audio, TOKENS) for i, clip in enumerate(CLIPS)], together)
        assert [np.array_equal(a, b) for a, b in zip(found, expected, strict=True)] == [True] * len(CLIPS)
        engine.check_idle()
    assert (engine.metrics.retracted.value > 0) == ("kv_pages" in switches)
    if switches.get("prefix_cache", True) and "kv_pages" not in switches:
        assert engine.metrics.prefix_hits.value > len(CLIPS)
    engine.close()


def test_the_cases_are_worth_something(expected: list[Tokens]) -> None:
    assert len({tuple(tokens.tolist()) for tokens in expected}) == len(CLIPS), "the audio decides the text"
    assert all(len(set(tokens.tolist())) > TOKENS // 4 for tokens in expected if len(tokens) == TOKENS)


def test_a_token_of_the_end_set_stops_and_is_not_written(model: Qwen3ASR, expected: list[Tokens]) -> None:
    clip, made = CLIPS[1], expected[1]
    place = 6
    ends, model.ends = model.ends, torch.tensor([2995, int(made[place])])
    try:
        engine = engine_of(model, lookahead_min_batch=1)
        listener, each = request(1, clip.ids, clip.audio, TOKENS)
        engine.submit(each)
        assert np.array_equal(listener.codes()[:, 0], made[: made.tolist().index(made[place])])
        assert listener.chunks[-1].finish_reason == "stop"
        engine.close()
    finally:
        model.ends = ends


def test_two_clips_of_equal_ids_never_share_a_page_and_the_same_clip_does(
    engine: DecoderEngine, expected: list[Tokens]
) -> None:
    one, other = CLIPS[1], CLIPS[2]
    assert one.ids == other.ids
    hits = engine.metrics.prefix_hit_rows
    for clip, number, rows in ((one, 1, 0), (other, 2, 0), (one, 1, 64), (other, 2, 64)):
        before = hits.value
        assert np.array_equal(play(engine, [request(1, clip.ids, clip.audio, TOKENS)], True)[0], expected[number])
        assert hits.value - before == rows
    assert engine.metrics.prefix_clashes.value == 0


def test_clips_whose_keys_are_all_equal_share_nothing(
    model: Qwen3ASR, expected: list[Tokens], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.decoder.memory.prompt_row_keys", lambda rows, slot_id, content: [7] * len(rows))
    engine = engine_of(model)
    found = play(engine, [request(i, CLIPS[i].ids, CLIPS[i].audio, TOKENS) for i in (1, 2, 1)], together=False)
    assert [np.array_equal(a, expected[i]) for a, i in zip(found, (1, 2, 1), strict=True)] == [True] * 3
    assert engine.metrics.prefix_clashes.value > 0 and engine.metrics.prefix_hits.value > 0
    engine.close()


def test_sampled_tokens_depend_on_the_seed_alone(engine: DecoderEngine) -> None:
    def requests() -> list[Any]:
        sampling = [SamplingParams(seed, 0.9, 0.95, 40 * (seed % 2), 1.0) for seed in range(len(CLIPS))]
        return [request(i, clip.ids, clip.audio, TOKENS, sampling[i]) for i, clip in enumerate(CLIPS)]

    alone, together = play(engine, requests(), False), play(engine, requests(), True)
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_a_prompt_that_continues_text_finds_the_pages_that_made_it(model: Qwen3ASR, expected: list[Tokens]) -> None:
    def go_on(engine: DecoderEngine) -> Tokens:
        listener, each = request(2, clip.ids, clip.audio, 6)
        each.rows = torch.from_numpy(text_rows([*clip.ids, *made.tolist()], made=len(made))).long()
        each.total = len(each.rows)
        engine.submit(each)
        return listener.codes()[:, 0]

    clip, made = CLIPS[1], expected[1][:16]
    warm, cold = engine_of(model), engine_of(model)
    play(warm, [request(1, clip.ids, clip.audio, TOKENS)], True)
    assert np.array_equal(go_on(warm), go_on(cold)) and np.array_equal(go_on(cold), expected[1][16:22])
    assert warm.metrics.prefix_hit_rows.value == 80  # of 92 known rows, one of which must be computed
    for engine in (warm, cold):
        engine.check_idle()
        engine.close()


def test_audio_that_does_not_fit_is_refused(engine: DecoderEngine) -> None:
    clip = CLIPS[0]
    count = len(clip.states)
    bad = [
        (replace(clip.audio, states=torch.zeros(count, 32)), "width 32"),
        (replace(clip.audio, states=torch.zeros(count + 1, 64)), "not one for each"),
        (replace(clip.audio, at=None), "not one for each"),
        (replace(clip.audio, at=torch.zeros(count, dtype=torch.int64)), "ascend"),
        (replace(clip.audio, at=torch.arange(6, 6 + count)), "at most 9"),
    ]
    for audio, word in bad:
        with pytest.raises(InvalidArgument, match=word):
            engine.submit(request(1, clip.ids, audio, TOKENS)[1])


def test_a_model_without_audio_refuses_it(model: Qwen3ASR, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(model)
    monkeypatch.setattr(model, "audio", None)
    with pytest.raises(InvalidArgument, match="reads none"):
        engine.submit(request(1, CLIPS[0].ids, CLIPS[0].audio, TOKENS)[1])
    engine.close()
