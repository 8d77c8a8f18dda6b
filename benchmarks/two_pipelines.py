"""Two pipelines in one server: what each costs the other.

    python -m benchmarks.two_pipelines                      this machine's CPU, the demo voice and the default Whisper

Four sittings on one server, each a closed loop of ``python -m client bench``: speech alone, speech while ``--busy``
transcriptions are always under way, transcripts alone, transcripts while ``--busy`` streams are. Printed: the first
chunk of speech (p50, p95) and the latency of a transcript, alone and beside the other, and their ratios.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.sitting import sitting
from client.local_server import running_server

ROOT = Path(__file__).resolve().parents[1]
#: What of a level is compared, by kind.
SEEN = {"tts": "first_chunk", "asr": "latency"}


def bench(kind: str, ports: dict[str, int], at_once: int, seconds: float, path: Path) -> subprocess.Popen[bytes]:
    """Start a closed loop; its JSON goes to ``path``."""
    command = [sys.executable, "-m", "client", "bench", kind, "--url", f"127.0.0.1:{ports['grpc']}"]
    command += ["--metrics-url", f"127.0.0.1:{ports['metrics']}", "--concurrency", str(at_once)]
    command += ["--duration", str(seconds), "--json", str(path), "--timeout", "300"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=ROOT, stdin=quiet, stdout=quiet, stderr=quiet)


def measure(
    kind: str, beside: bool, ports: dict[str, int], options: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """One sitting of ``kind``; ``beside``: the other one loads the server meanwhile."""
    other = "asr" if kind == "tts" else "tts"
    load = None
    if beside:
        load = bench(other, ports, options.busy, 10 * options.seconds, folder / f"load-{kind}.json")
        time.sleep(options.settle)
        if load.poll() is not None:
            raise RuntimeError(f"the load of {other} ended with {load.returncode}")
    try:
        path = folder / f"{kind}-{beside}.json"
        code = bench(kind, ports, options.at_once, options.seconds, path).wait(options.seconds + 600)
        if code:
            raise RuntimeError(f"client bench {kind} ended with {code}")
    finally:
        if load is not None:
            load.send_signal(signal.SIGINT)
            load.wait(120)
    level: dict[str, Any] = json.loads(path.read_text())["levels"][0]
    return level


def main() -> None:
    """Both directions, one table."""
    parser = argparse.ArgumentParser(description="what two pipelines in one server cost each other")
    parser.add_argument("--at-once", type=int, default=1, help="requests at a time of the one that is measured (1)")
    parser.add_argument("--busy", type=int, default=16, help="requests at a time of the other one (16)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each sitting (30)")
    parser.add_argument("--settle", type=float, default=10.0, help="head start of the other one (10)")
    parser.add_argument("--serve-arg", action="append", default=[], help="passed on to serve.py")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = sitting(options) | {"levels": {}}
    arguments = ["--pipelines", "tts,asr", "--canary-interval", "0", *options.serve_arg]
    with running_server(arguments, subprocess.DEVNULL) as ports, tempfile.TemporaryDirectory() as folder:
        for kind, seen in SEEN.items():
            for beside in (False, True):
                level = measure(kind, beside, ports, options, Path(folder))
                result["levels"][f"{kind} {'beside' if beside else 'alone'}"] = level
                times = level[seen]
                print(
                    f"{kind} {'beside the other' if beside else 'alone':16s} n {times['n']:4d}  "
                    f"{seen} p50 {1e3 * times['p50']:7.0f} ms  p95 {1e3 * (times['p95'] or times['most']):7.0f} ms",
                    flush=True,
                )
    for kind, seen in SEEN.items():
        alone, beside_it = (result["levels"][f"{kind} {how}"][seen] for how in ("alone", "beside"))
        ratios = [(beside_it[each] or beside_it["most"]) / (alone[each] or alone["most"]) for each in ("p50", "p95")]
        result[f"{kind}_ratios"] = dict(zip(("p50", "p95"), ratios, strict=True))
        print(f"{kind}: {seen} beside the other x {ratios[0]:.2f} (p50), x {ratios[1]:.2f} (p95)")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
