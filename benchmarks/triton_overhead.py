"""What Triton costs: the decoder engine in process against the same engine behind Triton, one sitting, the same load.

    python -m benchmarks.triton_overhead                       the small voice on this machine's CPU
    python -m benchmarks.triton_overhead --device cuda         MOSS-TTS-Local v1.5 sizes, random weights
    python -m benchmarks.triton_overhead --checkpoint benchmarks/configs/moss_tts_local_toy
                                                               a model of next to no size: the way alone

Closed loop over a list of concurrencies: every stream asks for a fixed number of frames, as codes, from ``tts_decoder``
itself (the vocoder has costs of its own). Printed for both: frames a second, and the time to the first chunk of codes;
with Triton also what a request costs each process of the server in processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backends.decoder.chunks import ChunkSchedule
from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.decoder.request import DecodeRequest
from backends.decoder.sampler import SamplingParams
from backends.models.moss_tts_local import MossTTSLocal
from benchmarks.sink import Sink
from benchmarks.sitting import sitting
from benchmarks.usage import cpu_seconds

ROOT = Path(__file__).resolve().parents[1]
Ask = Callable[[np.ndarray, int], float]  # prompt rows and frames to make -> seconds to the first chunk


def prompt(seed: int, length: int, width: int, pad: int) -> np.ndarray:
    """Random text rows int32 [length, width]; every seed another prompt, so that no cache helps."""
    rows = np.full((length, width), pad, dtype=np.int32)
    rows[:, 0] = np.random.default_rng(seed).integers(0, 250, length)
    return rows


def in_process(engine: DecoderEngine) -> Ask:
    """Ask the engine itself."""

    def ask(rows: np.ndarray, frames: int) -> float:
        sink, started = Sink(), time.perf_counter()
        stream = int.from_bytes(os.urandom(7), "little")
        sampling = SamplingParams(0, 0.0, 1.0, 0, 1.0)  # greedy on both sides: to sample costs a step 5 % on a GPU
        engine.submit(
            DecodeRequest(stream, torch.from_numpy(rows).long(), sampling, frames, ChunkSchedule(4, 25), sink)
        )
        sink.done.wait()
        return sink.first_at - started

    return ask


def through_triton(url: str) -> Ask:
    """Ask ``tts_decoder`` over a gRPC stream; one connection a thread."""
    import tritonclient.grpc as grpc

    local = threading.local()

    def ask(rows: np.ndarray, frames: int) -> float:
        if not hasattr(local, "client"):
            local.answers = queue.Queue()
            local.client = grpc.InferenceServerClient(url)
            answers = local.answers
            local.client.start_stream(lambda result, error: answers.put((time.perf_counter(), error or result)))
        inputs = [
            grpc.InferInput("rows", list(rows.shape), "INT32"),
            grpc.InferInput("max_frames", [1], "INT32"),
            grpc.InferInput("temperature", [1], "FP32"),
        ]
        inputs[0].set_data_from_numpy(rows)
        inputs[1].set_data_from_numpy(np.array([frames], dtype=np.int32))
        inputs[2].set_data_from_numpy(np.zeros(1, dtype=np.float32))
        started, first = time.perf_counter(), 0.0
        local.client.async_stream_infer("tts_decoder", inputs)
        while True:
            at, answer = local.answers.get(timeout=120)
            if isinstance(answer, Exception):
                raise answer
            first = first or at
            if bool(answer.as_numpy("final")[0]):
                return first - started

    return ask


def measure(
    ask: Ask, concurrency: int, options: argparse.Namespace, width: int, pad: int, processes: Mapping[str, int]
) -> dict[str, Any]:
    """Frames a second, first-chunk times, and milliseconds of processor time a request of ``processes``, by name, of a
    closed loop; the first request of every stream is not counted.
    """
    firsts: list[float] = []
    barrier = threading.Barrier(concurrency + 1)

    def stream(number: int) -> None:
        ask(prompt(number, options.prompt, width, pad), 8)
        barrier.wait()
        for turn in range(options.requests):
            rows = prompt(1000 * (turn + 1) + number, options.prompt, width, pad)
            firsts.append(ask(rows, options.frames))

    threads = [threading.Thread(target=stream, args=(number,)) for number in range(concurrency)]
    for thread in threads:
        thread.start()
    barrier.wait()
    started, spent = time.perf_counter(), cpu_seconds(processes)
    for thread in threads:
        thread.join()
    seconds, after = time.perf_counter() - started, cpu_seconds(processes)
    return {
        "concurrency": concurrency,
        "frames_per_s": options.frames * options.requests * concurrency / seconds,
        "first_ms": 1e3 * statistics.median(firsts),
        "cpu_ms_per_request": {name: 1e3 * (after[name] - spent[name]) / len(firsts) for name in after},
    }


def serve(options: argparse.Namespace, folder: Path) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """A server with ``tts_decoder`` alone; its process and its ready file."""
    repository, ready = folder / "models", folder / "ready.json"
    repository.mkdir()
    (repository / "tts_decoder").symlink_to(ROOT / "model_repository" / "tts_decoder")
    # A whole checkpoint, because the launcher looks at both parts; the sizes of the decoder alone have no codec.
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "tts").symlink_to(ROOT / options.checkpoint / "tts")
    (checkpoint / "codec").symlink_to(ROOT / "checkpoints" / "voice" / "codec")
    settings = {
        "device": options.device, "load_format": options.load_format, "force_frames": options.frames,
        "max_running": max(options.concurrency), "checkpoint": str(checkpoint),
        "max_positions": options.positions, "prefix_cache": "false",
    }  # fmt: skip
    command = [
        sys.executable,
        str(ROOT / "serve.py"),
        "--model-repository",
        str(repository),
        "--ready-file",
        str(ready),
    ]
    command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--canary-interval", "0"]
    for key, value in settings.items():
        command += ["--set", f"tts_decoder.{key}={value}"]
    process = subprocess.Popen(command, cwd=ROOT)
    while not ready.exists() or not ready.stat().st_size:
        if process.poll() is not None:
            raise RuntimeError(f"serve.py ended with {process.returncode}")
        time.sleep(0.2)
    return process, json.loads(ready.read_text())


def main() -> None:
    """Both sides, one table."""
    parser = argparse.ArgumentParser(description="the decoder engine in process and behind Triton")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--checkpoint", help="folder with tts/, from the repository root or absolute")
    parser.add_argument("--concurrency", type=lambda text: tuple(map(int, text.split(","))))
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--prompt", type=int, default=100)
    parser.add_argument("--requests", type=int, default=12, help="counted requests of each stream")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    gpu = options.device.startswith("cuda")
    options.concurrency = options.concurrency or ((1, 16, 64) if gpu else (1, 4))
    options.checkpoint = options.checkpoint or (
        "benchmarks/configs/moss_tts_local_v1.5" if gpu else "checkpoints/voice"
    )
    dummy = not any((ROOT / options.checkpoint / "tts").glob("*.safetensors"))
    options.load_format = "dummy" if dummy else "safetensors"
    options.positions = -(-(options.prompt + options.frames + 32) // 64) * 64
    about = sitting(options)
    load = MossTTSLocal.dummy if dummy else MossTTSLocal.load
    dtype = torch.bfloat16 if gpu else torch.float32
    model = load(ROOT / options.checkpoint / "tts", torch.device(options.device), dtype)
    width, pad = model.rows.width, model.rows.pad_code
    engine = DecoderEngine(
        model,
        EngineConfig(
            max_running=max(options.concurrency), max_positions=options.positions,
            force_frames=options.frames, prefix_cache=False,
        ),
    )  # fmt: skip
    results: dict[str, list[dict[str, Any]]] = {"engine": [], "triton": []}
    ask = in_process(engine)
    for concurrency in options.concurrency:
        results["engine"].append(measure(ask, concurrency, options, width, pad, {}))
        print("in process ", results["engine"][-1], flush=True)
    engine.close()
    del engine, model, ask
    if gpu:
        torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as folder:
        process, ready = serve(options, Path(folder))
        try:
            ask = through_triton(f"127.0.0.1:{ready['grpc']}")
            pids = {"tritonserver": ready["triton_pid"], **ready["stages"]}
            for concurrency in options.concurrency:
                results["triton"].append(measure(ask, concurrency, options, width, pad, pids))
                print("with Triton", results["triton"][-1], flush=True)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    for plain, served in zip(results["engine"], results["triton"], strict=True):
        rate, first = served["frames_per_s"] / plain["frames_per_s"] - 1, served["first_ms"] - plain["first_ms"]
        print(
            f"c {int(plain['concurrency']):3d}: {plain['frames_per_s']:8.1f} -> {served['frames_per_s']:8.1f} frames/s "
            f"({100 * rate:+.1f} %), first chunk {plain['first_ms']:.1f} -> {served['first_ms']:.1f} ms ({first:+.1f})"
        )
        used = ", ".join(f"{name} {ms:.1f}" for name, ms in served["cpu_ms_per_request"].items())
        print(f"       processor ms a request: {used}")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({**about, **results}, indent=1) + "\n")
    os._exit(0)  # gRPC's threads may linger


if __name__ == "__main__":
    main()
