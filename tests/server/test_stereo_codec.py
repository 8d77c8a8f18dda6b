"""A checkpoint of the shape of MOSS-TTS-Local v1.5: a stereo codec, and a voice that speaks its first codebooks only.

The voice is the real one, the codec a small one with random weights: what counts is that its codes travel both ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.encoder.clip import ClipLimits
from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from backends.voices.clip import read_clip_samples
from client import SpeechClient
from tests.server.direct import DirectStream, prompt_rows
from tests.server.live import LiveServer, live_server
from tests.server.texts import SHORT
from tests.server.voices import piece
from tests.unit.tiny_codec import stereo_config, write_codec

STORED, SPOKEN = 16, 12
FRAMES = 6
SAMPLES = 2 * 3840  # of a frame, both channels


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, voice: Path) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / "tts").symlink_to(voice / "tts")
    write_codec(folder / "codec", stereo_config(codebooks=STORED))
    return folder


@pytest.fixture(scope="module")
def live(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """No parameter names a number of codebooks or of channels."""
    cache = tmp_path_factory.mktemp("cache")
    arguments = ["--checkpoint", str(checkpoint), "--set", f"audio_encoder.cache={cache}"]
    with live_server(tmp_path_factory.mktemp("server"), *arguments) as server:
        yield server


@pytest.fixture(scope="module")
def codec(checkpoint: Path) -> MossAudioTokenizer:
    torch.set_num_threads(1)
    return MossAudioTokenizer.load(checkpoint / "codec", codebooks=SPOKEN)


def test_the_voice_speaks_in_stereo(live: LiveServer, codec: MossAudioTokenizer) -> None:
    with DirectStream(live.url, "tts_decoder", rows=prompt_rows(SHORT), max_frames=np.array([FRAMES], np.int32)) as one:
        codes = np.concatenate([outputs["codes"] for outputs in one.rest()])
    with SpeechClient(live.url) as client:
        spoken = client.synthesize(SHORT, max_frames=FRAMES)
    assert codes.shape[1] == SPOKEN and (spoken.channels, spoken.sample_rate) == (2, 48000)
    assert spoken.audio.tobytes() == codec.decode(torch.from_numpy(codes)).numpy().tobytes()


def test_clips_have_the_codes_that_are_spoken(live: LiveServer, codec: MossAudioTokenizer, checkpoint: Path) -> None:
    """The encoder's answer is the codec's own; a clip of two channels is heard with both."""
    clip = piece("slt", 0.1, 1.5)
    mono, rate = clip["reference_audio"], clip["reference_sample_rate"]
    stereo = np.stack([mono, mono[::-1]], axis=1)
    wanted = ClipLimits.load(checkpoint / "codec", 30.0)
    assert wanted.channels == 2
    audio = read_clip_samples("reference_audio", stereo.reshape(-1), 2, rate, wanted).prepare(wanted)
    with DirectStream(live.url, "audio_encoder", audio=audio[None]) as one:
        (answer,) = one.rest()
    found = answer["codes"][0]
    expected = codec.encode(torch.from_numpy(audio)).numpy()
    assert found.shape == expected.shape == (len(audio) // SAMPLES, SPOKEN)
    assert (found == expected).mean() >= 0.999  # ONNX Runtime and torch: near ties may fall otherwise
    with SpeechClient(live.url) as client:
        limits: dict[str, Any] = {"max_frames": FRAMES}
        heard = [
            client.synthesize(SHORT, **limits).audio,
            client.synthesize(SHORT, voice="slt", **limits).audio,
            client.synthesize(SHORT, **limits, **clip).audio,
            client.synthesize(SHORT, **limits, reference_audio=stereo, reference_sample_rate=rate).audio,
        ]
    assert len({audio.tobytes() for audio in heard}) == len(heard)
    assert all(len(audio) == FRAMES * SAMPLES for audio in heard)
