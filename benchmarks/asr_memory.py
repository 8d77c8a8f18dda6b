"""An hour of audio: does the memory of the server stay flat while it is written down?

    python -m benchmarks.asr_memory                         an hour, the default Whisper, this machine's CPU
    python -m benchmarks.asr_memory --minutes 5

One recording made of the clips of ``voices/``, repeated, each time fainter by a hair. Every second the resident memory
of Triton and of each stage is read; printed are its values after a tenth of the recording has been written down, at the
end, and the most in between. The recording itself (4 bytes a sample, an hour is 220 MiB) lies in ``asr_prompt``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from benchmarks.sitting import sitting
from client import Transcriber
from client.local_server import running_server

ROOT = Path(__file__).resolve().parents[1]
RATE = 16_000


def recording(minutes: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Float32 [n] at 16 kHz."""
    import soxr

    clips = []
    for path in sorted((ROOT / "voices").glob("*.flac")):
        samples, rate = soundfile.read(path, dtype="float32")
        clips += [soxr.resample(samples, rate, RATE), np.zeros(RATE // 2, dtype=np.float32)]
    once, count = np.concatenate(clips), round(60 * minutes * RATE)
    turns = -(-count // len(once))
    whole = np.concatenate([once * (1 - 1e-4 * turn) for turn in range(turns)])[:count]
    return whole.astype(np.float32)


def resident_mib(server: int) -> dict[str, float]:
    """Resident memory of the Triton below process ``server``, and of its stages, by name."""
    table = subprocess.run(["ps", "-eo", "pid,ppid,rss,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 3) for line in table.splitlines()[1:]]
    inside, found = {server}, {}
    for _ in range(3):  # serve.py, tritonserver, stubs
        inside |= {int(pid) for pid, parent, _, _ in rows if int(parent) in inside}
    for pid, _, rss, command in rows:
        if int(pid) not in inside:
            continue
        if "triton_python_backend_stub" in command:
            found[command.split("/1/model.py")[0].rsplit("/", 1)[-1]] = int(rss) / 1024
        elif "tritonserver" in command.split()[0]:
            found["tritonserver"] = int(rss) / 1024
    return found


def main() -> None:
    """One transcription, one table."""
    parser = argparse.ArgumentParser(description="memory of the server during a long transcription")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--serve-arg", action="append", default=[], help="passed on to serve.py")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    audio, readings, written = recording(options.minutes), list[dict[str, float]](), [0.0]
    done = threading.Event()
    with running_server(["--pipelines", "asr", "--canary-interval", "0", *options.serve_arg]) as ports:

        def watch() -> None:
            while not done.wait(1.0):
                readings.append({"written_s": written[0]} | resident_mib(ports["pid"]))

        watcher = threading.Thread(target=watch)
        watcher.start()
        began, characters = time.monotonic(), 0
        try:
            with Transcriber(f"127.0.0.1:{ports['grpc']}") as transcriber:
                for chunk in transcriber.stream(audio, sample_rate=RATE):
                    characters += len(chunk.text)
                    for segment in chunk.segments:
                        written[0] = max(written[0], segment.end)
        finally:
            done.set()
            watcher.join()
        seconds = time.monotonic() - began
    warm = [each for each in readings if each["written_s"] >= 6 * options.minutes]
    speed = 60 * options.minutes / seconds
    print(f"{options.minutes:g} minutes in {seconds:.0f} s (RTFx {speed:.1f}), {characters} characters")
    print("MiB resident      at a tenth     most   at the end")
    names = [name for name in warm[-1] if name != "written_s"]
    for name in names:
        values = [each[name] for each in warm if name in each]
        print(f"{name:16s} {values[0]:11.0f} {max(values):8.0f} {values[-1]:12.0f}")
    if options.json:
        result = sitting(options) | {"seconds": seconds, "characters": characters, "readings": readings}
        options.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
