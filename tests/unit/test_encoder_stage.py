"""The stage ``audio_encoder`` without a server: what it takes, what it refuses, and that nothing is lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.encoder.service import AudioEncoderStage
from backends.encoder.settings import EncoderSettings
from backends.errors import Cancelled, CheckpointError, InvalidArgument, Unavailable, VoxstageError
from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from tests.conftest import ROOT
from tests.unit.tiny_codec import stereo_config, write_checkpoint

HOP = 1920


class Request:
    """A request without a server: an input, and the one reply that it gets."""

    def __init__(self, audio: Any = None, gone: bool = False) -> None:
        self._audio, self._gone = audio, gone
        self.codes: Any = None
        self.error: VoxstageError | None = None
        self._done = threading.Event()

    def tensor(self, name: str) -> Any:
        return self._audio

    def cancelled(self) -> bool:
        return self._gone

    def reply(self, outputs: dict[str, Any], final: bool = False) -> None:
        assert final and not self._done.is_set()
        self.codes = outputs["codes"]
        self._done.set()

    def fail(self, error: VoxstageError) -> None:
        assert not self._done.is_set()
        self.error = error
        self._done.set()

    def wait(self) -> None:
        assert self._done.wait(30)


class Context:
    name, log = "audio_encoder", logging.getLogger("test")


def make(**settings: Any) -> AudioEncoderStage:
    context: Any = Context()
    return AudioEncoderStage(EncoderSettings(device="cpu", **settings), context)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AudioEncoderStage]:
    made = make(cache=str(tmp_path_factory.mktemp("cache")))
    yield made
    made.close()


@pytest.fixture(scope="module")
def clips() -> list[np.ndarray]:
    """Eight clips, two of each length."""
    draw = np.random.default_rng(0)
    return [draw.normal(0, 0.1, (1, frames * HOP)).astype(np.float32) for frames in (25, 3, 25, 3, 9, 40, 9, 40)]


def ask(stage: AudioEncoderStage, audio: Any) -> np.ndarray:
    request: Any = Request(audio)
    stage.execute(request)
    request.wait()
    assert request.error is None
    codes: np.ndarray = request.codes
    return codes


def test_codes_are_those_of_the_codec(stage: AudioEncoderStage, clips: list[np.ndarray]) -> None:
    codec = MossAudioTokenizer.load(ROOT / "checkpoints/voice/codec")
    for audio in clips[:2]:
        codes = ask(stage, audio)
        assert codes.dtype == np.int32 and codes.shape == (1, audio.shape[1] // HOP, 12)
        assert np.array_equal(codes[0], codec.encode(torch.from_numpy(audio[0])).numpy())


def test_eight_at_once_equal_solo(stage: AudioEncoderStage, clips: list[np.ndarray]) -> None:
    solo = [ask(stage, audio) for audio in clips]
    requests: list[Any] = [Request(audio) for audio in clips]
    for request in requests:
        stage.execute(request)
    for request, codes in zip(requests, solo, strict=True):
        request.wait()
        assert np.array_equal(request.codes, codes)


def test_onnx_and_torch_give_the_same_codes(stage: AudioEncoderStage, clips: list[np.ndarray], tmp_path: Path) -> None:
    torch_stage = make(runtime="torch", num_threads=1)
    try:
        assert all(np.array_equal(ask(torch_stage, audio), ask(stage, audio)) for audio in clips[:4])
    finally:
        torch_stage.close()


@pytest.mark.parametrize(
    ("audio", "words"),
    [
        (None, "audio: is missing"),
        (np.zeros((1, 0), np.float32), "0 samples; one frame of 1920"),
        (np.zeros((1, 1), np.float32), "1 samples are not a whole number of frames of 1920"),
        (np.zeros((1, 1921), np.float32), "1921 samples are not a whole"),
        (np.zeros((1, 751 * HOP), np.float32), r"60\.08 s \(751 frames\) is above 60\.00 s \(750 frames\)"),
        (np.zeros((2, HOP), np.float32), r"float32 of shape \[2, 1920\] is not float32 \[1, samples\]"),
        (np.zeros(HOP, np.float32), r"shape \[1920\]"),
        (np.zeros((1, HOP), np.float64), "float64 of shape"),
        (np.array([[0.0] * (HOP - 1) + [np.nan]], np.float32), "sample 1919 is nan"),
        (np.array([[np.inf, -np.inf] + [0.0] * (HOP - 2)], np.float32), "sample 0 is inf"),
    ],
)
def test_bad_clips_are_refused_before_they_are_queued(stage: AudioEncoderStage, audio: Any, words: str) -> None:
    request: Any = Request(audio)
    refused = stage.metrics.refused.value
    with pytest.raises(InvalidArgument, match=words):
        stage.execute(request)
    assert stage.metrics.refused.value == refused + 1 and stage.metrics.clips.value == 0


def test_the_largest_finite_samples_are_finite(stage: AudioEncoderStage) -> None:
    stage.limits.check(np.full((1, 100 * HOP), np.finfo(np.float32).max, np.float32))


def test_a_full_queue_refuses_and_answers_the_rest(stage: AudioEncoderStage, tmp_path: Path) -> None:
    small = make(max_waiting=2, cache=str(tmp_path))
    try:
        requests: list[Any] = [Request(np.zeros((1, 300 * HOP), np.float32)) for _ in range(8)]
        taken, refused = [], []
        for request in requests:
            try:
                small.execute(request)
                taken.append(request)
            except Unavailable as error:
                refused.append(str(error))
        # Two that wait, and one more if the first was begun in between.
        assert 2 <= len(taken) <= 3 and len(taken) + len(refused) == 8
        assert set(refused) == {"UNAVAILABLE audio_encoder is full: 2 clips wait; try again later"}
        for request in taken:
            request.wait()
            assert request.codes.shape == (1, 300, 12)
        assert ask(small, np.zeros((1, HOP), np.float32)).shape == (1, 1, 12)
    finally:
        small.close()
    assert small.metrics.clips.value == 0


def test_a_caller_that_has_gone_costs_no_encode(stage: AudioEncoderStage) -> None:
    request: Any = Request(np.zeros((1, HOP), np.float32), gone=True)
    before = stage.metrics.audio_seconds.value
    stage.execute(request)
    request.wait()
    assert isinstance(request.error, Cancelled) and stage.metrics.audio_seconds.value == before


def test_close_answers_what_waits(tmp_path: Path) -> None:
    closing = make(cache=str(tmp_path))
    requests: list[Any] = [Request(np.zeros((1, 50 * HOP), np.float32)) for _ in range(3)]
    for request in requests:
        closing.execute(request)
    closing.close()
    assert all(request.codes.shape == (1, 50, 12) for request in requests)


@pytest.mark.parametrize("runtime", ["onnx", "torch"])
def test_a_stereo_codec_of_more_codebooks_than_are_spoken(tmp_path: Path, voice: Path, runtime: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", voice, config=stereo_config())
    made = make(checkpoint=str(checkpoint), cache=str(tmp_path / "cache"), runtime=runtime)
    audio = np.random.default_rng(1).normal(0, 0.1, (1, 5 * 7680)).astype(np.float32)
    whole = MossAudioTokenizer.load(checkpoint / "codec").encode(torch.from_numpy(audio[0]))
    assert whole.shape == (5, 4) and np.array_equal(ask(made, audio)[0], whole[:, :3])
    with pytest.raises(InvalidArgument, match="38401 samples are not a whole number of frames of 7680"):
        made.execute(Request(np.zeros((1, 5 * 7680 + 1), np.float32)))  # type: ignore[arg-type]
    made.close()
    assert made.metrics.audio_seconds.value == pytest.approx(5 * 0.08)


def test_the_graph_is_exported_once(tmp_path: Path, voice: Path) -> None:
    checkpoint, cache = write_checkpoint(tmp_path / "checkpoint", voice), tmp_path / "cache"
    for _ in range(2):
        make(checkpoint=str(checkpoint), cache=str(cache), max_seconds=4).close()
        (kept,) = cache.iterdir()
        made = kept.stat().st_mtime_ns
    assert kept.stat().st_mtime_ns == made and kept.suffix == ".onnx"
    make(checkpoint=str(checkpoint), cache=str(cache), max_seconds=5).close()
    assert len(list(cache.iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    unkept = make(cache=str(tmp_path / "file"), max_seconds=1)
    try:
        assert ask(unkept, np.zeros((1, HOP), np.float32)).shape == (1, 1, 12)
    finally:
        unkept.close()
    assert "exported again at every start" in caplog.text


def test_what_does_not_load_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        make(checkpoint=str(tmp_path))
    with pytest.raises(InvalidArgument, match=r"audio_encoder\.runtime: 'onnx' runs on a CPU"):
        context: Any = Context()
        AudioEncoderStage(EncoderSettings(device="cuda", runtime="onnx"), context)


def test_a_codec_that_only_decodes_refuses_clips_and_loads(tmp_path: Path) -> None:
    (tmp_path / "codec").mkdir()
    (tmp_path / "codec" / "config.json").write_text('{"model_type": "dac"}')
    stage = make(checkpoint=str(tmp_path))
    request: Any = Request(np.zeros((1, HOP), dtype=np.float32))
    with pytest.raises(InvalidArgument, match=r"audio: cannot be encoded: the codec of this checkpoint \(dac\)"):
        stage.execute(request)
    assert stage.metrics.refused.value == 1
    stage.close()
