"""Whisper against transformers, tiny and random: encoder, cross-attention by slot, tokens of ``generate()``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration

from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.decoder.prompt_audio import PromptAudio
from backends.errors import CheckpointError, InvalidArgument
from backends.models.whisper import Whisper
from backends.models.whisper_encoder import WhisperEncoder
from tests.unit.tiny_asr import END, NO_TIMESTAMPS, PREVIOUS, START, Tokens, play, request, tiny_whisper, without_end

TOKENS, CLIPS = 24, 7
PLAIN = [START, NO_TIMESTAMPS]
# Prompts with earlier text: with pages of 16 rows these leave something to the prefix cache.
PROMPTS = [PLAIN if clip % 2 else [PREVIOUS, *range(100, 160), *PLAIN] for clip in range(CLIPS)]
SWITCHES: list[dict[str, Any]] = [
    {"lookahead_min_batch": 1},
    {"prefix_cache": False},
    {"lookahead_min_batch": 1, "deterministic": False},
    {"lookahead_min_batch": 1, "page_rows": 4, "kv_pages": 40},
    {"prefill_pieces": 4},
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WhisperForConditionalGeneration]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whisper")
    return folder, tiny_whisper(folder)


@pytest.fixture(scope="module")
def mels() -> torch.Tensor:
    return 2 * torch.randn(CLIPS, 16, 200, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def encoder(reference: tuple[Path, WhisperForConditionalGeneration]) -> WhisperEncoder:
    return WhisperEncoder.load(reference[0], torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def model(reference: tuple[Path, WhisperForConditionalGeneration]) -> Whisper:
    return Whisper.load(reference[0], torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def clips(encoder: WhisperEncoder, mels: torch.Tensor) -> list[PromptAudio]:
    with torch.inference_mode():
        states = encoder(mels)
    return [PromptAudio(states[clip].clone(), clip.to_bytes(16, "little")) for clip in range(CLIPS)]


@pytest.fixture(scope="module")
def expected(reference: tuple[Path, WhisperForConditionalGeneration], mels: torch.Tensor) -> list[Tokens]:
    """Greedy ``generate()`` of transformers, one clip at a time."""
    tokens = []
    with torch.inference_mode():
        for clip, prompt in enumerate(PROMPTS):
            before = torch.tensor(prompt[:-2]) if len(prompt) > 2 else None
            made = reference[1].generate(mels[clip : clip + 1], prompt_ids=before, max_new_tokens=TOKENS)[0]
            assert made[: len(prompt)].tolist() != prompt, "transformers leaves the prompt out"
            tokens.append(without_end(made, [END]))
    return tokens


def engine_of(model: Whisper, **switches: Any) -> DecoderEngine:
    return DecoderEngine(model, EngineConfig(**{"max_running": 3, "max_positions": 128, "num_threads": 1, **switches}))


@pytest.fixture
def engine(model: Whisper) -> Iterator[DecoderEngine]:
    engine = engine_of(model)
    yield engine
    engine.check_idle()
    engine.close()


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_tokens_equal_generate_whatever_the_load_and_the_switches(
    model: Whisper, clips: list[PromptAudio], expected: list[Tokens], switches: dict[str, Any]
) -> None:
    """Seven clips over three slots, so every slot holds the states of several clips one after another."""
    engine = engine_of(model, **switches)
    for together in (True, False, True):
        requests = [request(clip, PROMPTS[clip], clips[clip], TOKENS) for clip in range(CLIPS)]
        found = play(engine, requests, together)
        assert [np.array_equal(a, b) for a, b in zip(found, expected, strict=True)] == [True] * CLIPS
        engine.check_idle()
    assert (engine.metrics.retracted.value > 0) == ("kv_pages" in switches)
    engine.close()


def test_the_cases_are_worth_something(expected: list[Tokens]) -> None:
    assert len({tuple(tokens.tolist()) for tokens in expected}) == CLIPS, "the audio decides the text"
    assert all(len(set(tokens.tolist())) > TOKENS // 4 for tokens in expected if len(tokens) == TOKENS)


def test_equal_prompts_share_pages_where_the_clip_is_the_same_only(
    engine: DecoderEngine, clips: list[PromptAudio], expected: list[Tokens]
) -> None:
    hits = engine.metrics.prefix_hit_rows
    for clip, rows in ((0, 0), (2, 0), (0, 48), (2, 48)):
        before = hits.value
        assert np.array_equal(play(engine, [request(1, PROMPTS[0], clips[clip], TOKENS)], True)[0], expected[clip])
        assert hits.value - before == rows  # of 63 prompt rows
    assert engine.metrics.prefix_clashes.value == 0


def test_what_a_cancelled_clip_leaves_in_its_slot_is_heard_by_nobody(
    model: Whisper, clips: list[PromptAudio], expected: list[Tokens]
) -> None:
    engine = engine_of(model, max_running=1, lookahead_min_batch=1)
    for clip in range(3):
        listener, first = request(100 + clip, PLAIN, clips[6], TOKENS)
        engine.submit(first)
        assert listener.started.wait(30)
        engine.cancel(first.stream_id)
        prompt = PROMPTS[clip]
        assert np.array_equal(play(engine, [request(clip, prompt, clips[clip], TOKENS)], True)[0], expected[clip])
    engine.check_idle()
    engine.close()


def test_a_request_without_states_is_refused(engine: DecoderEngine, clips: list[PromptAudio]) -> None:
    short = PromptAudio(clips[0].states[:50], b"short")
    placed = PromptAudio(clips[0].states, b"placed", torch.arange(100))
    for audio, word in ((None, "is missing"), (short, "exactly 100"), (placed, "exactly 100")):
        with pytest.raises(InvalidArgument, match=word):
            engine.submit(request(1, PLAIN, audio, TOKENS)[1])


def test_the_encoder_equals_transformers(
    reference: tuple[Path, WhisperForConditionalGeneration], encoder: WhisperEncoder, mels: torch.Tensor
) -> None:
    with torch.inference_mode():
        want = reference[1].model.encoder(mels).last_hidden_state
        difference = (encoder(mels) - want).abs().max()
    print(f"\nlargest difference {difference:.1e} of {want.abs().max():.1f}")
    assert difference < 1e-5


@pytest.mark.parametrize("pass_clips", [1, 4])
def test_a_clip_among_others_has_the_states_it_has_alone(
    reference: tuple[Path, WhisperForConditionalGeneration], mels: torch.Tensor, pass_clips: int
) -> None:
    encoder = WhisperEncoder.load(reference[0], torch.device("cpu"), torch.float32, pass_clips)
    with torch.inference_mode():
        together = encoder(mels)
        assert all(torch.equal(encoder(mels[clip : clip + 1])[0], together[clip]) for clip in range(CLIPS))


def test_another_shape_of_mels_is_refused(encoder: WhisperEncoder) -> None:
    with pytest.raises(ValueError, match=r"\[16, 200\]"):
        encoder(torch.zeros(1, 16, 100))


@pytest.mark.parametrize(
    ("change", "word"), [({"scale_embedding": True}, "scale_embedding"), ({"d_model": None}, "d_model")]
)
def test_what_is_not_implemented_is_refused_by_name(
    reference: tuple[Path, WhisperForConditionalGeneration], tmp_path: Path, change: dict[str, Any], word: str
) -> None:
    config = json.loads((reference[0] / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps({key: config[key] for key in config if config[key] is not None}))
    with pytest.raises(CheckpointError, match=word):
        Whisper.load(tmp_path, torch.device("cpu"), torch.float32)
