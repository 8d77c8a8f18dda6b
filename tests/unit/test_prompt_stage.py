"""What ``tts_prompt`` accepts, and the sentences with which it refuses."""

from __future__ import annotations

import base64
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from backends.errors import InvalidArgument, VoxstageError
from backends.fields import scalar
from backends.launch.repository import find_models
from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from backends.prompt.service import INPUTS, PromptSettings, PromptStage
from backends.settings import home


class Request:
    """A request without a server: what a stage reads, and what it replied."""

    def __init__(self, parameters: dict[str, Any] | None = None, **tensors: Any) -> None:
        self._tensors, self._parameters = tensors, parameters or {}
        self.reply_tensors: dict[str, Any] = {}
        self.answered = threading.Event()
        self.error: VoxstageError | None = None

    def tensor(self, name: str) -> Any:
        return self._tensors.get(name)

    def parameters(self) -> dict[str, Any]:
        return self._parameters

    def cancelled(self) -> bool:
        return False

    def release(self) -> None:
        self._tensors = {}

    def reply(self, outputs: dict[str, Any], final: bool = False) -> None:
        assert final
        self.reply_tensors = outputs
        self.answered.set()

    def fail(self, error: VoxstageError) -> None:
        self.error = error
        self.answered.set()


class Context:
    """The codec of the voice stands in the place of the stage audio_encoder."""

    name, log = "tts_prompt", logging.getLogger("test")

    def __init__(self, codec: Any) -> None:
        self._codec, self.calls = codec, 0

    def infer(self, model: str, inputs: dict[str, Any], outputs: list[str]) -> dict[str, Any]:
        assert (model, outputs, list(inputs)) == ("audio_encoder", ["codes"], ["audio"])
        self.calls += 1
        return {"codes": self._codec.encode(torch.from_numpy(inputs["audio"][0])).numpy()[None].astype(np.int32)}


@pytest.fixture(scope="module")
def codec(voice: Path) -> MossAudioTokenizer:
    torch.set_num_threads(1)
    return MossAudioTokenizer.load(voice / "codec")


@pytest.fixture(scope="module")
def stage(codec: MossAudioTokenizer) -> Iterator[PromptStage]:
    context: Any = Context(codec)
    made = PromptStage(PromptSettings(max_voice_seconds=8.0), context)
    yield made
    made.close()


def text(value: str | bytes) -> Any:
    return np.array([value.encode() if isinstance(value, str) else value], dtype=np.object_)


def ask(stage: PromptStage, **tensors: Any) -> dict[str, Any]:
    request: Any = Request(**tensors)
    stage.execute(request)
    assert request.answered.wait(20)
    if request.error is not None:
        raise request.error
    return request.reply_tensors


def test_defaults_come_from_the_checkpoint(stage: PromptStage) -> None:
    reply = ask(stage, text=text("Hi."))
    assert reply["rows"].shape == (26, 13) and reply["rows"].dtype == np.int32
    assert reply["temperature"][0] == 0 and reply["max_frames"][0] == 250 and reply["format"][0] == b"f32"
    assert ask(stage, text=text("Hi."))["seed"][0] != reply["seed"][0]
    assert ask(stage, text=text("Hi."), seed=scalar(2**63 - 1, np.int64))["seed"][0] == 2**63 - 1


RATE = scalar(24000, np.int32)
CLIP = np.random.default_rng(5).uniform(-0.2, 0.2, 24000).astype(np.float32)
SLT = (home() / "voices" / "slt.flac").read_bytes()
FILE = text(SLT)
BAD = [
    ({}, "text: is missing"),
    ({"text": text("")}, "text: is empty"),
    ({"text": text("  \n\t ")}, "text: holds nothing but white space"),
    ({"text": text("?!... --")}, "text: '?!... --' holds no letter and no digit"),
    ({"text": text("\U0001f600\U0001f389")}, "holds no letter and no digit"),
    ({"text": text("a\0b")}, "text: holds a NUL character at index 1"),
    ({"text": text(b"caf\xc3(")}, "text: is not valid UTF-8: byte 0xc3 at offset 3"),
    ({"text": text(b"\xed\xa0\x80")}, "text: is not valid UTF-8"),
    (
        {"text": text("x" * 100_000)},
        "text: is 100000 bytes long, above 12384 bytes, the most for the 774 prompt rows that max_frames 250 leaves of "
        "max_positions 1024; shorten the text, or split it into sentences",
    ),
    (
        {"text": text("x" * 1000)},
        "text: makes 1023 prompt rows, above the 774 prompt rows that max_frames 250 leaves of max_positions 1024; "
        "shorten the text, or split it into sentences",
    ),
    ({"text": np.array([b"a", b"b"], dtype=np.object_)}, "text: has shape [2], expected [1]"),
    ({"text": np.zeros((0,), dtype=np.object_)}, "text: has shape [0], expected [1]"),
    ({"seed": scalar(-1, np.int64)}, "seed: -1 is below 0, the smallest value"),
    ({"temperature": scalar(-1, np.float32)}, "temperature: -1 is below 0"),
    ({"temperature": scalar(float("nan"), np.float32)}, "temperature: nan is not a finite number"),
    ({"temperature": scalar(1e9, np.float32)}, "temperature: 1000000000 is above 10, the largest value"),
    ({"top_p": scalar(0.0, np.float32)}, "top_p: 0 is too small; it must be above 0"),
    ({"top_p": scalar(1.1, np.float32)}, "top_p: 1.1 is above 1, the largest value"),
    ({"top_k": scalar(-1, np.int32)}, "top_k: -1 is below 0"),
    ({"max_frames": scalar(0, np.int32)}, "max_frames: 0 is below 1"),
    ({"max_frames": scalar(751, np.int32)}, "max_frames: 751 is above 750"),
    ({"format": text("mp3")}, "format: 'mp3' is not one of f32, s16, b64"),
    ({"first_chunk_frames": scalar(0, np.int32)}, "first_chunk_frames: 0 is below 1"),
    ({"chunk_frames": scalar(9999, np.int32)}, "chunk_frames: 9999 is above 250"),
    ({"seed": np.zeros(2, dtype=np.int64)}, "seed: has shape [2], expected [1]"),
    ({"voice": text("nobody")}, "voice: 'nobody' is unknown; known voices: rms, slt"),
    ({"voice": text("")}, "voice: '' is unknown"),
    ({"voice": text(b"\xff")}, "voice: is not valid UTF-8"),
    ({"voice": text("../slt")}, "voice: '../slt' is unknown"),
    ({"voice": text("slt"), "reference_file": text(b"RIFF")}, "reference_file: is given beside voice; give one voice"),
    ({"reference_file": text(b"RIFF"), "reference_audio": CLIP}, "reference_file: is given beside reference_audio"),
    ({"reference_text": text("Hi.")}, "reference_text: has no meaning alone; it belongs to reference_audio or ref"),
    ({"voice": text("slt"), "reference_text": text("Hi.")}, "reference_text: has no meaning beside voice"),
    ({"reference_sample_rate": RATE}, "reference_sample_rate: has no meaning alone; it belongs to reference_audio"),
    (
        {"reference_file": FILE, "reference_sample_rate": RATE},
        "reference_sample_rate: has no meaning beside reference_f",
    ),
    ({"reference_file": FILE, "reference_channels": RATE}, "reference_channels: has no meaning beside reference_file"),
    ({"reference_audio": CLIP}, "reference_sample_rate: is missing; reference_audio does not say it"),
    ({"reference_audio": CLIP, "reference_sample_rate": scalar(0, np.int32)}, "reference_sample_rate: 0 is below 4000"),
    ({"reference_audio": CLIP, "reference_sample_rate": scalar(10**7, np.int32)}, "rate: 10000000 is above 192000"),
    ({"reference_audio": CLIP, "reference_sample_rate": np.zeros(2, np.int32)}, "rate: has shape [2], expected [1]"),
    (
        {"reference_audio": CLIP, "reference_sample_rate": RATE, "reference_channels": scalar(8, np.int32)},
        "reference_channels: 8 is above 2, the largest value",
    ),
    ({"reference_audio": CLIP[:0], "reference_sample_rate": RATE}, "reference_audio: holds 0 samples"),
    ({"reference_audio": CLIP[:1], "reference_sample_rate": RATE}, "reference_audio: lasts "),
    (
        {"reference_audio": CLIP * np.nan, "reference_sample_rate": RATE},
        "reference_audio: holds a sample that is not a",
    ),
    (
        {"reference_audio": np.tile(CLIP, 9), "reference_sample_rate": RATE},
        "reference_audio: lasts ",
    ),
    ({"reference_file": text(b"")}, "reference_file: is empty"),
    (
        {"reference_file": text(b"hello")},
        "reference_file: begins with the bytes 68 65 6c 6c; wav, flac, mp3 and ogg do not",
    ),
    ({"reference_file": text(b"RIFF....WAVE")}, "reference_file: cannot be read as audio"),
    ({"reference_file": text("data:audio/wav,RIFF")}, "reference_file: is a data URI without ;base64,"),
    ({"reference_file": text("data:audio/wav;base64,?")}, "reference_file: is a data URI that is not base64"),
    ({"reference_file": np.array([b"a", b"b"], dtype=np.object_)}, "reference_file: has shape [2], expected [1]"),
    ({"reference_file": FILE, "reference_text": text("...")}, "reference_text: '...' holds no letter and no digit"),
    (
        {"reference_file": FILE, "reference_text": text("x" * 740)},
        "text: makes 801 prompt rows with reference_text, 34 of them for the voice, above the 774 prompt rows",
    ),
    (
        {"reference_file": FILE, "reference_text": text("x" * 99999)},
        "reference_text: is 99999 bytes long, above 12384 bytes, the most for the 774 prompt rows",
    ),
    ({"parameters": {"foo": 3}}, "foo: is not an input of tts; it has text, seed"),
    (
        {"parameters": {"seed": 5}},
        "seed: is sent as a request parameter, and tts reads none; send it as an input tensor",
    ),
]


@pytest.mark.parametrize(("tensors", "sentence"), BAD, ids=[sentence[:40] for _, sentence in BAD])
def test_bad_input_names_field_value_and_limit(stage: PromptStage, tensors: dict[str, Any], sentence: str) -> None:
    defaults = {"text": text("Hi.")} if "text" not in tensors and tensors else {}
    with pytest.raises(InvalidArgument, match=re.escape(sentence)) as caught:
        ask(stage, **defaults, **tensors)
    assert str(caught.value).startswith("INVALID_ARG ")
    assert ask(stage, text=text("Hi."))["rows"].shape == (26, 13)


def test_frames_that_leave_no_room_are_refused_as_such() -> None:
    context: Any = Context(None)
    stage = PromptStage(PromptSettings(max_positions=64), context)
    try:
        with pytest.raises(
            InvalidArgument, match=r"max_frames: 250 frames leave no room for a prompt in max_positions 64$"
        ):
            ask(stage, text=text("Hi."))
    finally:
        stage.close()


def test_every_input_of_the_ensemble_is_read() -> None:
    models = {model.name: model for model in find_models([home() / "model_repository", home() / "ensemble"])}
    assert models["tts"].inputs == models["tts_prompt"].inputs == INPUTS


def test_a_reference_makes_the_rows_of_the_public_processor(stage: PromptStage, golden: Path) -> None:
    """The golden prompt has the codes of a clip in it; ours differs from it in these codes alone."""
    wanted = load_file(golden / "reference_0.safetensors")["prompt_rows"]
    codes = wanted[wanted[:, 0] == 261][:, 1:]
    assert np.array_equal(stage.builder.build("The old bridge was closed for repairs.", "English", codes), wanted)


def test_every_way_to_give_a_clip_gives_its_codes(stage: PromptStage, codec: MossAudioTokenizer) -> None:
    prepared = stage.voices["slt"].samples
    codes = codec.encode(torch.from_numpy(prepared)).numpy()
    wanted = stage.builder.build("Hi.", "English", codes)
    assert np.array_equal(ask(stage, text=text("Hi."), voice=text("slt"))["rows"], wanted)
    assert np.array_equal(ask(stage, text=text("Hi."), reference_file=FILE)["rows"], wanted)
    uri = b"data:audio/flac;base64," + base64.b64encode(SLT)
    assert np.array_equal(ask(stage, text=text("Hi."), reference_file=text(uri))["rows"], wanted)
    # 16 kHz of 16 bits, as in the file.
    import soundfile

    samples, rate = soundfile.read(home() / "voices" / "slt.flac", dtype="float32")
    given = {"reference_audio": samples, "reference_sample_rate": scalar(rate, np.int32)}
    assert np.array_equal(ask(stage, text=text("Hi."), **given)["rows"], wanted)
    stereo = np.stack([samples, samples], axis=1).reshape(-1)
    given = {**given, "reference_audio": stereo, "reference_channels": scalar(2, np.int32)}
    assert np.array_equal(ask(stage, text=text("Hi."), **given)["rows"], wanted)


def test_what_the_clip_says_makes_the_speech_go_on_from_it(stage: PromptStage, codec: MossAudioTokenizer) -> None:
    """The public processor's continuation: no reference, one text, and the codes as the beginning of the answer."""
    codes = codec.encode(torch.from_numpy(stage.voices["slt"].samples)).numpy()
    rows = ask(stage, text=text("Hi."), reference_file=FILE, reference_text=text(" A small boat. "))["rows"]
    plain = ask(stage, text=text("A small boat. Hi."))["rows"]
    assert np.array_equal(rows[: len(plain)], plain)
    assert (rows[len(plain) :, 0] == 262).all() and np.array_equal(rows[len(plain) :, 1:], codes)


def test_a_clip_is_encoded_once(stage: PromptStage) -> None:
    context: Any = stage._context
    calls, metrics = context.calls, stage.metrics
    before = (metrics.hits.value, metrics.misses.value)
    for words in ("Hi.", "Ho.", "Hi."):
        ask(stage, text=text(words), reference_audio=CLIP, reference_sample_rate=RATE)
    assert context.calls == calls + 1
    assert (metrics.hits.value, metrics.misses.value) == (before[0] + 2, before[1] + 1)


def test_a_refused_clip_counts_as_refused(stage: PromptStage) -> None:
    refused, failed = stage.metrics.refused.value, stage.metrics.failed.value
    with pytest.raises(InvalidArgument):
        ask(stage, text=text("Hi."), reference_file=text(b"RIFF....WAVE"))
    assert (stage.metrics.refused.value, stage.metrics.failed.value) == (refused + 1, failed + 1)


def test_a_checkpoint_whose_codec_encodes_nothing_speaks_without_voices(
    codec: MossAudioTokenizer, voice: Path, tmp_path: Path
) -> None:
    (tmp_path / "tts").symlink_to(voice / "tts")
    (tmp_path / "codec").mkdir()
    (tmp_path / "codec" / "config.json").write_text('{"model_type": "mimi"}')
    context: Any = Context(codec)
    mute = PromptStage(PromptSettings(checkpoint=str(tmp_path)), context)
    assert ask(mute, text=text("Hi."))["rows"].shape == (26, 13) and not mute.voices
    with pytest.raises(InvalidArgument, match="voice: has no meaning here: the codec of this checkpoint encodes no"):
        ask(mute, text=text("Hi."), voice=text("slt"))
    mute.close()
