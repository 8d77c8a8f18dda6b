"""What a storm of new clips costs the streams that run: the longest gap between decode steps, without it and with it.

    python -m benchmarks.voice_storm                        on this machine's CPU, a server of its own
    python -m benchmarks.voice_storm --device cuda --clips 400

A server with ``--streams`` places is filled with streams that decode all the time. First nothing else happens; then
``--clips`` requests come at once, each with a clip that nobody has sent before; then nothing else happens again. The
storm is compared with what lies around it, because a step takes longer the longer its streams are. The requests wait
for a place after their clip is encoded, so that what is seen is the cost of the clips and not of more streams. The gaps
are the decoder's own (``voxstage_decoder_longest_gap_seconds``, from the end of a step to the beginning of the next);
beside them stand the time of a step, the steps a second, and how long the clips took.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from client import AsyncSpeechClient

ROOT = Path(__file__).resolve().parents[1]
#: The gauge looks back over up to ten seconds; by then nothing of the start is in it.
SETTLE_SECONDS = 11.0
_LINE = re.compile(r"^(voxstage_\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


def serve(options: argparse.Namespace, folder: Path) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """The server's process, and its ready file."""
    ready = folder / "ready.json"
    command = [sys.executable, str(ROOT / "serve.py"), "--ready-file", str(ready), "--device", options.device]
    command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--canary-interval", "0"]
    settings = {
        "tts_decoder.max_running": options.streams,
        "tts_decoder.force_frames": options.frames,
        "tts_prompt.max_waiting_voices": options.clips,
    }
    for setting in [*(f"{key}={value}" for key, value in settings.items()), *options.set]:
        command += ["--set", setting]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    while not ready.exists():
        if process.poll() is not None:
            raise RuntimeError(f"serve.py ended with {process.returncode}")
        time.sleep(0.2)
    return process, json.loads(ready.read_text())


class Watch:
    """Reads the server's metrics four times a second and keeps the longest gap."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}/metrics"

    async def read(self) -> dict[str, float]:
        def get() -> str:
            with urllib.request.urlopen(self._address, timeout=10) as answer:
                return str(answer.read().decode())

        return {name: float(value) for name, value in _LINE.findall(await asyncio.to_thread(get))}

    async def calm(self, seconds: float) -> dict[str, float]:
        """:meth:`until` the time is over."""
        end = time.perf_counter() + seconds
        return await self.until(lambda now: time.perf_counter() > end)

    async def until(self, done: Any) -> dict[str, float]:
        """Watch until ``done(metrics)``. Returns longest gap in ms, steps a second, mean step in ms, seconds."""
        first = now = await self.read()
        began, longest = time.perf_counter(), 0.0
        while not done(now):
            await asyncio.sleep(0.25)
            now = await self.read()
            longest = max(longest, now["voxstage_decoder_longest_gap_seconds"])
            if now["voxstage_decoder_slots"] < first["voxstage_decoder_slots"]:
                raise RuntimeError("the streams ended before the measurement did; ask for more --frames")
        seconds = time.perf_counter() - began
        steps = now["voxstage_decoder_steps"] - first["voxstage_decoder_steps"]
        spent = now["voxstage_decoder_step_seconds"] - first["voxstage_decoder_step_seconds"]
        return {
            "longest_gap_ms": 1e3 * longest,
            "steps_per_s": steps / seconds,
            "step_ms": 1e3 * spent / steps,
            "seconds": seconds,
        }


async def measure(options: argparse.Namespace, state: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Calm, storm, calm."""
    watch, noise = Watch(state["metrics"]), np.random.default_rng(0)
    async with AsyncSpeechClient(f"127.0.0.1:{state['grpc']}", chunk_timeout=60, first_chunk_timeout=600) as client:
        text = "The birch canoe slid on the smooth planks."
        streams = [asyncio.create_task(client.synthesize(text, seed=n)) for n in range(options.streams)]
        await watch.until(lambda now: now["voxstage_decoder_slots"] == options.streams)
        await asyncio.sleep(SETTLE_SECONDS)
        before = await watch.calm(options.calm)
        clips = [noise.uniform(-0.2, 0.2, round(24000 * options.seconds)) for _ in range(options.clips)]
        wanted = (await watch.read())["voxstage_voice_misses"] + options.clips
        storm_tasks = [
            asyncio.create_task(client.synthesize(text, reference_audio=clip, reference_sample_rate=24000))
            for clip in clips
        ]
        storm = await watch.until(
            lambda now: now["voxstage_voice_misses"] >= wanted and not now["voxstage_voice_waiting"]
        )
        after = await watch.calm(options.calm)
        for task in [*storm_tasks, *streams]:
            task.cancel()
        for task in [*storm_tasks, *streams]:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
    return {"before": before, "storm": storm, "after": after}


def main() -> None:
    """One server, three phases, one table."""
    parser = argparse.ArgumentParser(description="decode steps while a storm of new clips is encoded")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--clips", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a clip")
    parser.add_argument("--calm", type=float, default=3.0, help="seconds without clips, before the storm and after it")
    parser.add_argument("--frames", type=int, default=900, help="frames of a stream: enough for both phases")
    parser.add_argument("--set", action="append", default=[], metavar="STAGE.KEY=VALUE", help="as of serve.py")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        process, state = serve(options, Path(folder))
        try:
            found = asyncio.run(measure(options, state))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    for phase, values in found.items():
        print(f"{phase:6s} " + "  ".join(f"{name} {value:.2f}" for name, value in values.items()))
    for name, words in (("step_ms", "a step"), ("longest_gap_ms", "longest gap between steps")):
        around = (found["before"][name] + found["after"][name]) / 2
        print(f"{words}: {around:.2f} ms around the storm, {100 * (found['storm'][name] / around - 1):+.0f} % in it")
    print(f"{options.clips} clips of {options.seconds:g} s in {found['storm']['seconds']:.1f} s")
    if options.json:
        options.json.write_text(json.dumps({"options": vars(options) | {"json": None}, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
