"""The server's end while requests run: they end first."""

from __future__ import annotations

import re
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from client import SpeechClient
from tests.server.conftest import StartServer
from tests.server.texts import LONG, SHORT

STREAMS = 5


def test_running_streams_end_before_the_server(start_server: StartServer) -> None:
    """SIGTERM amid five streams: each gets every chunk, with the bits it gets otherwise; then a clean stop."""
    live = start_server()
    with SpeechClient(live.url) as client:
        wanted = client.synthesize(SHORT, seed=4).audio

        def speak() -> tuple[list[np.ndarray], str]:
            with client.stream(SHORT, seed=4, chunk_frames=4) as stream:
                chunks = list(stream)
                return [chunk.audio for chunk in chunks], chunks[-1].finish_reason

        with ThreadPoolExecutor(STREAMS) as pool:
            spoken = [pool.submit(speak) for _ in range(STREAMS)]
            live.wait_metric("voxstage_decoder_slots", STREAMS)
            live.serve.process.send_signal(signal.SIGTERM)
            for audio, reason in (one.result() for one in spoken):
                assert reason == "stop"
                assert np.array_equal(np.concatenate(audio), wanted)
    assert live.serve.wait_ended(10) == 0
    assert re.fullmatch(r"stopped \d+\.\d s", live.serve.out.strip().splitlines()[-1])


def test_the_wait_has_an_end(start_server: StartServer) -> None:
    """What still runs after --exit-timeout-secs is cut off, with a line that says so."""
    live = start_server("--exit-timeout-secs", "1")
    with SpeechClient(live.url) as client, client.stream(LONG, max_frames=375) as stream:
        next(stream)
        live.serve.process.send_signal(signal.SIGTERM)
        assert live.serve.wait_ended(10) == 0
    assert "requests still running after 1 s: 1; they are cut off" in live.serve.out
