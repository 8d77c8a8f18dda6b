"""A decoder whose engine has a process of its own, in a real server: the same samples, and an end for every stream."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from client import AsyncSpeechClient, ServerError, SpeechClient, StreamBroken
from tests.server.conftest import StartServer
from tests.server.dummies import alive, leftovers
from tests.server.live import LiveServer
from tests.server.loop import run_async
from tests.server.test_determinism import all_at_once, equal, requests
from tests.server.texts import LONG, LONG_FRAMES

APART = ("--set", "tts_decoder.engine_process=true")


def engine_of(stage: int) -> int:
    """The process that the stage has started."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == stage and b"engine_host" in (entry / "cmdline").read_bytes():
                    return int(entry.name)
            except OSError:
                continue
    raise LookupError(f"no engine below {stage}")


def test_the_samples_are_those_of_an_engine_in_the_stage(server: LiveServer, start_server: StartServer) -> None:
    wanted = requests()[:24]
    expected = all_at_once(server.url, wanted)
    live = start_server(*APART)
    engine = engine_of(live.stages["tts_decoder"])
    together = all_at_once(live.url, wanted)
    assert all(equal(one.audio, other.audio) for one, other in zip(together, expected, strict=True))
    assert [speech.finish_reason for speech in together] == [speech.finish_reason for speech in expected]
    with SpeechClient(live.url) as client:
        stream = client.stream(LONG, max_frames=LONG_FRAMES, chunk_frames=4)
        next(stream)
        stream.close()  # hung up on
        live.wait_metric("voxstage_decoder_slots", 0)
        again = client.synthesize(wanted[0][0], **wanted[0][1])
        assert equal(again.audio, expected[0].audio)
    live.wait_idle()
    assert live.settled("voxstage_decoder_finished") >= len(wanted) + 1
    assert live.metric("voxstage_decoder_process_failures") == 0
    live.end()
    assert not alive(engine)


def test_an_engine_killed_under_load(start_server: StartServer) -> None:
    """The stage lives long enough to tell every stream, and ends then, which ends the server."""
    live = start_server(*APART)
    engine = engine_of(live.stages["tts_decoder"])

    async def work() -> list[Any]:
        async with AsyncSpeechClient(live.url, chunk_timeout=5, first_chunk_timeout=5) as client:
            first_chunk = asyncio.Event()

            async def one() -> None:
                async for _ in client.stream(LONG, max_frames=LONG_FRAMES):
                    first_chunk.set()

            streams = [asyncio.create_task(one()) for _ in range(6)]
            await asyncio.wait_for(first_chunk.wait(), 30)
            os.kill(engine, signal.SIGKILL)
            return await asyncio.gather(*streams, return_exceptions=True)

    ends = run_async(work())
    for end in ends:
        assert isinstance(end, StreamBroken | ServerError), repr(end)
        assert "the process of the decoder has ended with code -9" in str(end)
    assert live.serve.wait_ended(20) == 1
    assert "the process of the stage tts_decoder" in live.serve.err.strip().splitlines()[-1]
    assert leftovers(live.state) == []
