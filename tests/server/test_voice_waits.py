"""Who waits for a voice, and who does not: an encoder that stands still until it is told to go on.

Its stage is the real prompt stage of a real server; only the encoder's model is the test's own. (To stop the encoder's
process instead would not do: Triton kills a stub that does not answer for a second.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from backends.settings import home
from client import Cancelled, SpeechClient, StreamTimeout, Unavailable
from tests.server.live import LiveServer
from tests.server.voices import MERGED, MISSES, REFUSED, TEXT, WAITING, Counters, Together, encodes, piece

FRAMES = 4
WORKERS, MOST = 2, 12
_MODEL = """
import os, time
from dataclasses import dataclass
import numpy as np
import torch
from backends.encoder.metrics import EncoderMetrics
from backends.errors import Internal
from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from backends.settings import home
from backends.stage import triton_model


@dataclass(frozen=True)
class Settings:
    pass


class GatedEncoder:
    Settings = Settings

    def __init__(self, settings, context):
        torch.set_num_threads(1)
        self.codec = MossAudioTokenizer.load(home() / "checkpoints" / "voice" / "codec")
        self.metrics = EncoderMetrics()

    def execute(self, request):
        while os.path.exists({gate!r}):
            time.sleep(0.01)
        if os.path.exists({broken!r}):
            raise Internal("the test broke the encoder")
        audio = torch.from_numpy(np.array(request.tensor("audio")[0]))
        request.reply({{"codes": self.codec.encode(audio).numpy().astype(np.int32)[None]}})

    def close(self):
        pass


TritonPythonModel = triton_model(GatedEncoder)
"""
_CONFIG = """
name: "audio_encoder"
backend: "python"
max_batch_size: 8
input [ { name: "audio"  data_type: TYPE_FP32  dims: [ -1 ] } ]
output [ { name: "codes" data_type: TYPE_INT32  dims: [ -1, -1 ] } ]
instance_group [ { kind: KIND_CPU  count: 1 } ]
"""


class Gate:
    """The server and what its encoder looks at."""

    def __init__(self, folder: Path) -> None:
        self._gate, self._broken = folder / "gate", folder / "broken"
        models = folder / "models"
        models.mkdir(parents=True)
        for stage in ("tts_prompt", "tts_decoder", "tts_vocoder"):
            (models / stage).symlink_to(home() / "model_repository" / stage)
        (models / "tts").symlink_to(home() / "ensemble" / "tts")
        (models / "audio_encoder" / "1").mkdir(parents=True)
        (models / "audio_encoder" / "config.pbtxt").write_text(_CONFIG)
        model = _MODEL.format(gate=str(self._gate), broken=str(self._broken))
        (models / "audio_encoder" / "1" / "model.py").write_text(model)
        settings = (f"tts_prompt.voice_workers={WORKERS}", f"tts_prompt.max_waiting_voices={MOST}")
        arguments = [word for setting in settings for word in ("--set", setting)]
        self.server = LiveServer(folder / "server", "--model-repository", str(models), *arguments)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """The encoder stands still."""
        self._gate.touch()
        try:
            yield
        finally:
            os.unlink(self._gate)

    @contextmanager
    def broken(self) -> Iterator[None]:
        """Every encode fails."""
        self._broken.touch()
        try:
            yield
        finally:
            os.unlink(self._broken)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    made = Gate(tmp_path_factory.mktemp("gate"))
    try:
        yield made
        made.server.wait_idle()
        made.server.end()
    finally:
        made.server.kill()


@pytest.fixture
def speech(gate: Gate) -> Iterator[SpeechClient]:
    with SpeechClient(gate.server.url) as client:
        yield client
    gate.server.wait_idle()


def test_eight_at_once_with_one_new_clip_cause_one_encode(gate: Gate, speech: SpeechClient) -> None:
    clip = {"max_frames": FRAMES, **piece("slt", 0.2, 1.5)}
    counters, before = Counters(gate.server), encodes(gate.server)
    with gate.closed():
        requests = Together(gate.server.url, [clip] * 8)
        gate.server.wait_metric(WAITING, 8)
    spoken = requests.audio()
    assert counters.moved() == (0, 1, 7)
    assert encodes(gate.server) == before + 1
    again = speech.synthesize(TEXT, **clip).audio
    assert all(np.array_equal(audio, again) for audio in spoken)
    assert counters.moved() == (1, 0, 0)


def test_a_stuck_encoder_holds_up_nobody_who_does_not_need_it(gate: Gate, speech: SpeechClient) -> None:
    known = {"max_frames": FRAMES, **piece("rms", 0.3, 1.2)}
    before = speech.synthesize(TEXT, **known).audio
    plain = speech.synthesize(TEXT, max_frames=FRAMES).audio
    with gate.closed():
        waiting = Together(gate.server.url, [{"max_frames": FRAMES, **piece("rms", 0.01 * n, 1.0)} for n in range(8)])
        gate.server.wait_metric(WAITING, 8)
        assert np.array_equal(speech.synthesize(TEXT, max_frames=FRAMES).audio, plain)
        assert np.array_equal(speech.synthesize(TEXT, **known).audio, before)
        assert speech.synthesize(TEXT, max_frames=FRAMES, voice="slt").finish_reason == "length"
        assert gate.server.settled(WAITING) == 8
    assert len(waiting.audio()) == 8


def test_more_voices_than_may_wait_are_refused_at_once(gate: Gate, speech: SpeechClient) -> None:
    """Those who come too many hear it while the encoder still stands; those who wait are served."""
    counters = Counters(gate.server, REFUSED, MISSES)
    with gate.closed():
        waiting = Together(gate.server.url, [{"max_frames": 1, **piece("slt", 0.01 * n, 0.3)} for n in range(MOST)])
        gate.server.wait_metric(WAITING, MOST)
        late = Together(gate.server.url, [{"max_frames": 1, **piece("rms", 0.01 * n, 0.3)} for n in range(6)])
        outcomes = late.outcomes()
        assert [type(each) for each in outcomes] == [Unavailable] * 6
        assert f"{MOST} requests wait for a voice" in str(outcomes[0])
        assert gate.server.settled(WAITING) == MOST
    assert all(len(audio) == 1920 for audio in waiting.audio())
    assert counters.moved() == (6, MOST)


def test_a_client_that_hangs_up_while_it_waits_takes_nobody_along(gate: Gate, speech: SpeechClient) -> None:
    clip = {"max_frames": FRAMES, **piece("slt", 0.05, 1.1)}
    with gate.closed():
        leaves = speech.stream(TEXT, **clip)
        gate.server.wait_metric(WAITING, 1)
        stays = Together(gate.server.url, [clip])
        gate.server.wait_metric(WAITING, 2)
        leaves.cancel()
        with pytest.raises(Cancelled):
            next(leaves)
    (audio,) = stays.audio()
    assert np.array_equal(audio, speech.synthesize(TEXT, **clip).audio)


def test_clients_that_give_up_leave_nothing_behind(gate: Gate) -> None:
    """Everybody goes before the encoder does anything; the server serves on, and ends cleanly (the fixture)."""
    with gate.closed(), SpeechClient(gate.server.url, first_chunk_timeout=0.3) as hasty:
        for number in range(4):
            with pytest.raises(StreamTimeout):
                hasty.synthesize(TEXT, max_frames=FRAMES, **piece("rms", 0.02 * number, 0.9))
    gate.server.wait_metric(WAITING, 0)
    with SpeechClient(gate.server.url) as client:
        clip = piece("rms", 0.02, 0.9)
        assert client.synthesize(TEXT, max_frames=FRAMES, **clip).finish_reason == "length"


def test_a_failed_encode_reaches_all_who_wait_and_is_not_kept(gate: Gate, speech: SpeechClient) -> None:
    clip = {"max_frames": FRAMES, **piece("slt", 0.3, 0.8)}
    counters = Counters(gate.server, MISSES, MERGED, "voxstage_voice_failed")
    with gate.broken():
        with gate.closed():
            requests = Together(gate.server.url, [clip] * 3)
            gate.server.wait_metric(WAITING, 3)
        outcomes = requests.outcomes()
    assert all("the test broke the encoder" in str(each) for each in outcomes), outcomes
    assert counters.moved() == (1, 2, 1)
    assert speech.synthesize(TEXT, **clip).finish_reason == "length"
    assert counters.moved() == (1, 0, 0)
