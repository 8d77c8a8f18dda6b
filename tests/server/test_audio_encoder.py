"""The model ``audio_encoder`` in a real Triton, over gRPC and HTTP, asked as tts_prompt asks it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc as grpc
import tritonclient.http as http
from safetensors.numpy import load_file
from tritonclient.utils import InferenceServerException

from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from tests.server.live import LiveServer

HOP = 1920


@pytest.fixture(scope="module")
def clips(golden: Path) -> list[np.ndarray]:
    """Eight pieces of the voice, of odd lengths, two of one length among them."""
    pcm = load_file(golden / "codec_long.safetensors")["pcm"]
    lengths = (1, 7, 25, 25, 26, 40, 61, 100)
    return [np.ascontiguousarray(pcm[1000 * i : 1000 * i + n * HOP]) for i, n in enumerate(lengths)]


def ask(server: LiveServer, audio: np.ndarray, over: Any = grpc) -> np.ndarray:
    """Codes of float32 [1, samples]."""
    with over.InferenceServerClient(server.url if over is grpc else f"127.0.0.1:{server.http}") as client:
        tensor = over.InferInput("audio", list(audio.shape), "FP32")
        tensor.set_data_from_numpy(audio)
        codes: np.ndarray = client.infer("audio_encoder", [tensor]).as_numpy("codes")
        return codes


def test_codes_over_grpc_and_http_are_those_of_the_codec(
    server: LiveServer, clips: list[np.ndarray], voice: Path
) -> None:
    codec = MossAudioTokenizer.load(voice / "codec")
    for audio in clips:
        wanted = codec.encode(torch.from_numpy(audio)).numpy()
        for over in (grpc, http):
            codes = ask(server, audio[None], over)
            assert codes.dtype == np.int32 and codes.shape == (1, len(audio) // HOP, 12)
            assert np.array_equal(codes[0], wanted)


def test_eight_at_once_equal_solo(server: LiveServer, clips: list[np.ndarray]) -> None:
    solo = [ask(server, audio[None]) for audio in clips]
    together: dict[int, np.ndarray] = {}
    start = threading.Barrier(len(clips))

    def run(i: int) -> None:
        start.wait()
        together[i] = ask(server, clips[i][None])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(clips))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(together[i], codes) for i, codes in enumerate(solo))


@pytest.mark.parametrize(
    ("audio", "words"),
    [
        (np.zeros((1, 0), np.float32), "audio: has 0 samples"),
        (np.zeros((1, HOP + 1), np.float32), "audio: 1921 samples are not a whole number of frames of 1920"),
        (np.zeros((1, 751 * HOP), np.float32), "audio: 60.08 s (751 frames) is above 60.00 s (750 frames)"),
        (np.zeros((2, HOP), np.float32), "audio: float32 of shape [2, 1920] is not float32 [1, samples]"),
        (np.full((1, HOP), np.nan, np.float32), "audio: sample 0 is nan"),
    ],
)
def test_bad_clips_are_typed_and_the_next_one_is_fine(
    server: LiveServer, clips: list[np.ndarray], audio: np.ndarray, words: str
) -> None:
    for over, status in ((grpc, "StatusCode.INVALID_ARGUMENT"), (http, "400")):
        with pytest.raises(InferenceServerException) as caught:
            ask(server, audio, over)
        assert caught.value.message().startswith(f"INVALID_ARG {words}") and str(caught.value.status()) == status
    assert ask(server, clips[1][None]).shape == (1, 7, 12)


def test_the_stage_stands_back_and_is_counted(server: LiveServer, clips: list[np.ndarray]) -> None:
    before = server.settled("voxstage_encoder_audio_seconds")
    ask(server, clips[2][None])
    assert server.settled("voxstage_encoder_audio_seconds") - before == pytest.approx(2.0)
    nice = []
    for task in Path("/proc", str(server.stages["audio_encoder"]), "task").iterdir():
        nice.append(int((task / "stat").read_text().rpartition(")")[2].split()[16]))
    # The encoder's thread steps back by 10, those that carry messages do not.
    assert max(nice) == min(19, min(nice) + 10)
