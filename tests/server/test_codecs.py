"""A real server whose codec looks ahead: a small random DAC behind the real voice, and behind codes of our own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.device import use_threads
from backends.models.codec import load_codec
from backends.models.dac import Dac
from backends.vocoder.engine import CodeChunk
from backends.vocoder.windowed import WindowedVocoder
from client import SpeechClient
from tests.codec_folders import dac_model, save
from tests.server.codes import CodeStream
from tests.server.direct import DirectStream, prompt_rows
from tests.server.live import LiveServer, live_server
from tests.server.texts import SHORT

CODEBOOKS, ENTRIES = 12, 1024  # what the voice says
BATCHES = ("voxstage_vocoder_batch_streams_count", "voxstage_vocoder_batch_streams_sum")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, voice: Path) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / "tts").symlink_to(voice / "tts")
    save(dac_model(n_codebooks=CODEBOOKS, codebook_size=ENTRIES), folder / "codec")
    return folder


@pytest.fixture(scope="module")
def live(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Three windows a batch, and steps that wait: more than the defaults of a CPU do."""
    arguments = ["--checkpoint", str(checkpoint), "--set", "tts_vocoder.max_chunk_frames=60"]
    arguments += ["--set", "tts_vocoder.step_streams=3", "--set", "tts_vocoder.max_batch_wait_ms=20"]
    with live_server(tmp_path_factory.mktemp("server"), *arguments) as server:
        yield server


@pytest.fixture(scope="module")
def codec(checkpoint: Path) -> Dac:
    use_threads(0)  # as the stage does
    loaded = load_codec(checkpoint / "codec")
    assert isinstance(loaded, Dac)
    return loaded


def in_process(codec: Dac, chunks: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """What the engine makes of one stream with nobody beside it; one array a chunk."""
    vocoder = WindowedVocoder(codec, step_streams=3)
    slot, made = vocoder.open(), []
    for i, chunk in enumerate(chunks):
        (result,) = vocoder.decode_each([CodeChunk(slot, torch.from_numpy(chunk.copy()), i + 1 == len(chunks))])
        assert isinstance(result, torch.Tensor), result
        made.append(result.numpy())
    return made


def random_chunks(seed: int, sizes: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, ENTRIES, (frames, CODEBOOKS), dtype=np.int32) for frames in sizes]


def test_eight_streams_at_once_have_the_bits_of_one_alone(live: LiveServer, codec: Dac) -> None:
    """Equal and unequal schedules, a stream shorter than the look-ahead, one without a frame; two that break."""
    schedules = [(12, 6, 6, 6)] * 4 + [(4, 5, 6, 7, 9), (3,), (0,), (40, 2)]
    streams = [random_chunks(seed, sizes) for seed, sizes in enumerate(schedules)]
    bad = random_chunks(8, (12, 6, 6, 6))
    bad[2][1, 3] = ENTRIES
    streams += [bad, random_chunks(9, (12, 61, 6))]

    def one(number: int) -> list[dict[str, np.ndarray[Any, Any]]]:
        with CodeStream(live.url, 1000 + number) as stream:
            return stream.speak(streams[number])

    counted = [live.settled(name) for name in BATCHES]
    with ThreadPoolExecutor(len(streams)) as pool:
        answers = list(pool.map(one, range(len(streams))))
    for number, chunks in enumerate(streams[:8]):
        for answer, wanted in zip(answers[number], in_process(codec, chunks), strict=True):
            assert answer["audio"].tobytes() == wanted.tobytes(), number
        total = sum(len(answer["audio"]) for answer in answers[number])
        assert total == codec.samples(sum(schedules[number]))
        assert answers[number][-1]["finish_reason"][0] == b"stop"
    for number, index, message in ((8, 2, b"INVALID_ARG codes: 1024 is above 1023"),
                                   (9, 1, b"INVALID_ARG codes: 61 frames are more than 60")):  # fmt: skip
        last = answers[number][-1]
        assert (last["chunk_index"][0], last["finish_reason"][0], len(last["audio"])) == (index, b"error", 0)
        assert last["error"][0].startswith(message)
    live.wait_idle()
    assert live.settled("voxstage_vocoder_failed") == 2
    batches, windows = (live.metric(name) - before for name, before in zip(BATCHES, counted, strict=True))
    print(f"\n{windows:g} windows in {batches:g} batches of at most 3")
    # Of every stream the chunks that found the look-ahead there.
    assert windows == 4 * 4 + 3 + 1 + 0 + 2 + 2 + 1
    assert windows / 3 <= batches <= windows


def test_the_voice_speaks_through_it(live: LiveServer, codec: Dac) -> None:
    """The whole pipeline: what the client hears is what the engine makes of the decoder's chunks, bit for bit."""
    limits = {"max_frames": np.array([30], np.int32)}
    with DirectStream(live.url, "tts_decoder", rows=prompt_rows(SHORT), **limits) as decoder:
        chunks = [outputs["codes"] for outputs in decoder.rest()]
    wanted = in_process(codec, chunks)
    with SpeechClient(live.url) as client:
        received = [chunk.audio for chunk in client.stream(SHORT, max_frames=30)]
    assert len(received[0]) == 0, "the first four frames make no sound before the look-ahead is there"
    assert len(received) == len(wanted)
    assert np.concatenate(received).tobytes() == np.concatenate(wanted).tobytes()
