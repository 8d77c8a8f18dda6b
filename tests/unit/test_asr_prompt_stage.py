"""The stage ``asr_prompt`` without a server: its share of windows, what ends it, and its cache. Real encoder, tiny."""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.asr.encoders import StateEncoder, load_encoder
from backends.asr.log_mel import RATE
from backends.asr.prompt_service import AsrPromptStage
from backends.asr.settings import AsrDecoderSettings, AsrPromptSettings, check_room
from backends.errors import Internal, InvalidArgument, Unavailable, VoxstageError
from tests.unit.tiny_asr import byte_tokenizer, tiny_whisper

SHARE = 2
Answer = dict[str, Any] | VoxstageError | None


class Request:
    """A request without a server; its answers come out of ``next``: outputs, an error, or None at the end."""

    def __init__(self, gone: bool = False, **tensors: Any) -> None:
        self._tensors, self._gone, self._ended = tensors, gone, False
        self._answers: queue.Queue[Answer] = queue.Queue()
        self.waiting = self._answers.qsize

    def tensor(self, name: str) -> Any:
        return self._tensors.get(name)

    def parameters(self) -> dict[str, Any]:
        return {}

    def release(self) -> None:
        self._tensors = {}

    def cancelled(self) -> bool:
        return self._gone

    def reply(self, outputs: dict[str, Any], final: bool = False) -> None:
        if not self._ended:
            self._answers.put({**json.loads(outputs["window"][0]), "states": outputs["states"]})
            if final:
                self.finish()

    def fail(self, error: VoxstageError) -> None:
        assert not self._ended
        self._answers.put(error)
        self.finish()

    def finish(self) -> None:
        if not self._ended:
            self._ended = True
            self._answers.put(None)

    def next(self) -> Any:
        return self._answers.get(timeout=30)


class Context:
    """Calls the encoder itself; ``hold`` stops it, ``broken`` makes it fail."""

    name, log = "asr_prompt", logging.getLogger("test")

    def __init__(self, encoder: StateEncoder) -> None:
        self._encoder, self.calls, self.broken = encoder, 0, False
        self._lock, self.hold = threading.Lock(), threading.Event()
        self.hold.set()

    def infer(self, model: str, inputs: dict[str, Any], outputs: list[str]) -> dict[str, Any]:
        assert model == "asr_encoder" and outputs == ["states"] and self.hold.wait(30)
        with self._lock, torch.inference_mode():
            self.calls += 1
            if self.broken:
                raise Internal("asr_encoder answered: it is broken")
            return {"states": self._encoder.encode([(inputs["features"], inputs["frames"])])[0]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    made = tmp_path_factory.mktemp("tiny")
    tiny_whisper(made)
    byte_tokenizer(made)
    return made


@pytest.fixture(scope="module")
def encoder(folder: Path) -> StateEncoder:
    return load_encoder(folder, torch.device("cpu"), torch.float32, 1, dummy=False)


@pytest.fixture
def made(folder: Path, encoder: StateEncoder) -> Iterator[Any]:
    """Makes stages with a context; closed at the end."""
    stages: list[AsrPromptStage] = []

    def make(**settings: Any) -> tuple[AsrPromptStage, Context]:
        context: Any = Context(encoder)
        chosen = AsrPromptSettings(checkpoint=str(folder), windows_per_request=SHARE, workers=3, nice=0, **settings)
        stages.append(AsrPromptStage(chosen, context))
        return stages[-1], context

    yield make
    for stage in stages:
        stage.close()


def speech(seconds: float, seed: int = 0) -> dict[str, Any]:
    noise = np.random.default_rng(seed).normal(0, 0.1, int(seconds * RATE)).astype(np.float32)
    return {"audio": noise, "sample_rate": np.array([RATE], dtype=np.int32)}


def ask(stage: AsrPromptStage, **tensors: Any) -> Any:
    request: Any = Request(**tensors)
    stage.execute(request)
    return request


def tell(stage: AsrPromptStage, name: str, number: int) -> None:
    assert ask(stage, **{name: np.array([number], dtype=np.int64)}).next() is None


def test_no_more_windows_than_the_share_are_ahead_of_the_decoder(made: Any) -> None:
    """The tiny Whisper hears 2 s; 15 s of noise are eight windows or more."""
    stage, context = made()
    request = ask(stage, **speech(15))
    seen = [request.next() for _ in range(SHARE)]
    (held,) = stage._inside.values()
    windows, share = held.windows, held.share
    assert share is not None
    while len(seen) < len(windows):
        assert share.inside == SHARE and context.calls == len(seen) and request.waiting() == 0
        tell(stage, "done", held.id)
        seen.append(request.next())
    assert request.next() is None
    assert len(windows) >= 8 and context.calls == len(windows)
    assert sorted(int(each["window"]) for each in seen) == list(range(len(windows)))
    assert [int(each["window"]) for each in seen if each["last"]] == [len(windows) - 1]
    ordered = sorted(seen, key=lambda each: int(each["window"]))
    assert [float(each["begin"]) for each in ordered[1:]] == [float(each["end"]) for each in ordered[:-1]]
    assert stage.metrics.inside.value == 1
    tell(stage, "stop", int(seen[0]["transcription"]))
    assert stage.metrics.inside.value == 0


def test_stop_ends_a_request_in_the_middle(made: Any) -> None:
    stage, context = made()
    request = ask(stage, **speech(15))
    first = request.next()
    request.next()
    tell(stage, "stop", int(first["transcription"]))
    assert request.next() is None and context.calls == SHARE and stage.metrics.inside.value == 0
    tell(stage, "done", int(first["transcription"]))  # of a window that was on its way
    assert context.calls == SHARE


def test_full_refuses_at_once_and_an_end_makes_room(made: Any) -> None:
    stage, context = made(max_requests=2)
    context.hold.clear()
    requests = [ask(stage, **speech(1, seed)) for seed in range(2)]
    with pytest.raises(Unavailable, match=r"2 transcriptions are inside, the limit \(asr_prompt.max_requests\)"):
        ask(stage, **speech(1))
    assert stage.metrics.shed.value == 1
    context.hold.set()
    for request in requests:
        tell(stage, "stop", int(request.next()["transcription"]))
    assert ask(stage, **speech(1)).next()["window"] == 0


def test_an_error_before_the_first_window_is_one_and_later_ones_travel_in_band(made: Any) -> None:
    stage, context = made()
    context.broken = True
    assert "it is broken" in str(ask(stage, **speech(1)).next()) and stage.metrics.inside.value == 0
    context.broken = False
    request = ask(stage, **speech(15))
    first = request.next()
    request.next()
    context.broken = True
    tell(stage, "done", int(first["transcription"]))
    late = request.next()
    assert late["error"] == "INTERNAL asr_encoder answered: it is broken" and late["states"].shape == (0, 1)
    tell(stage, "stop", int(first["transcription"]))
    assert request.next() is None and stage.metrics.inside.value == 0


def test_whoever_has_gone_costs_nothing(made: Any) -> None:
    stage, context = made()
    request: Any = Request(gone=True, **speech(1))
    stage.execute(request)
    assert request.next() is None and context.calls == 0 and stage.metrics.inside.value == 0


def test_the_cache_encodes_equal_windows_once_even_at_the_same_time(made: Any) -> None:
    stage, context = made(cache_mib=1.0)
    context.hold.clear()
    together = [ask(stage, **speech(1)) for _ in range(3)]
    other = ask(stage, **speech(1, seed=1))
    context.hold.set()
    found, differing = [request.next() for request in together], other.next()
    later = ask(stage, **speech(1)).next()
    assert context.calls == 2, "one for each of two clips"
    for each in [*found[1:], later]:
        assert np.array_equal(each["states"], found[0]["states"]) and each["digest"] == found[0]["digest"]
    assert not np.array_equal(differing["states"], found[0]["states"])
    without, _ = made()
    assert np.array_equal(ask(without, **speech(1)).next()["states"], found[0]["states"])


def test_bad_audio_is_found_before_the_encoder_is_asked(made: Any) -> None:
    stage, context = made()
    audio = speech(1)["audio"]
    audio[77] = np.nan
    error = ask(stage, audio=audio, sample_rate=np.array([RATE], dtype=np.int32)).next()
    assert isinstance(error, InvalidArgument) and "not a finite number" in str(error)
    assert context.calls == 0 and stage.metrics.refused.value == 1 and stage.metrics.inside.value == 0


def test_what_is_accepted_must_fit_into_the_decoder() -> None:
    check_room(AsrPromptSettings(), AsrDecoderSettings())
    with pytest.raises(InvalidArgument, match=r"128 requests of 4 windows .* are above 116"):
        check_room(AsrPromptSettings(), AsrDecoderSettings(max_waiting=100))
