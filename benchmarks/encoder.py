"""Clips a second and latency of the audio encoder by length and batch, in process, without Triton.

    python -m benchmarks.encoder                                  ONNX Runtime and torch on this machine's CPU
    python -m benchmarks.encoder --device cuda                    torch, eager and as a CUDA graph
    python -m benchmarks.encoder --device cuda --plan model.plan  and a TensorRT engine beside them

ONNX Runtime and TensorRT run batches of clips of one length; torch runs one clip at a time, as the stage does. "Equal
to solo": whether each clip of a batch has the codes that it has alone. "Graph": one CUDA graph a length. Latency is
from a clip on the host to its codes on the host. "CPU": processor time of this process for the batch; other work on the
machine stretches the latency and hardly this. Clips are random codes of the voice, decoded.

"A new file" and "the same again" are what a request with a clip waits for in ``tts_prompt`` (VoiceDesk, with the first
of the runtimes, in this process): a WAV of 16 bits at 44.1 kHz is decoded, resampled and encoded, or only digested.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backends.checkpoint import spoken_codebooks
from backends.encoder.clip import frames_of
from backends.encoder.export import Agreement, compare, export_encoder, sample_clips
from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from benchmarks.voice_desk import Run, desk_rows


def measure(run: Run, clips: np.ndarray, seconds: float) -> dict[str, float]:
    """Latency of [batch, samples] in ms and clips a second; at least 3 runs after one that is not counted."""
    run(clips)
    times: list[float] = []
    cpu: list[float] = []
    began = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - began < seconds and len(times) < 1000):
        start, busy = time.perf_counter(), time.process_time()
        run(clips)
        times.append(time.perf_counter() - start)
        cpu.append(time.process_time() - busy)
    times.sort()
    median = statistics.median(times)
    return {
        "runs": len(times),
        "p50_ms": 1e3 * median,
        "p95_ms": 1e3 * times[min(len(times) - 1, int(0.95 * len(times)))],
        "cpu_ms": 1e3 * statistics.median(cpu),
        "clips_a_second": len(clips) / median,
    }


def equal_to_solo(run: Run, clips: np.ndarray) -> bool:
    """Whether each clip has the same codes alone as in this batch."""
    together = run(clips)
    return all(np.array_equal(run(clips[i : i + 1])[0], together[i]) for i in range(len(clips)))


def runtimes(options: argparse.Namespace, folder: Path, codebooks: int) -> Iterator[tuple[str, Run, bool]]:
    """Name, function from [batch, samples] to codes, whether it takes batches."""
    device = torch.device(options.device)
    codec = MossAudioTokenizer.load(folder, device, codebooks)
    if device.type == "cpu":
        from backends.encoder.runtime import OnnxEncoder

        model = export_encoder(folder, frames_of(max(*options.seconds, 5.0), codec.sampling_rate, codec.hop), codebooks)
        yield "onnxruntime", OnnxEncoder(model, options.threads).encode_batch, True
    if options.plan:
        from backends.encoder.builder import load_runtime
        from backends.encoder.engine import EngineEncoder

        engine = EngineEncoder(load_runtime("tensorrt"), options.plan.read_bytes(), codebooks, codec.frame_samples)
        yield "tensorrt", engine.encode_batch, True

    def eager(clips: np.ndarray) -> np.ndarray:
        return codec.encode(torch.from_numpy(clips[0])).to(torch.int32).cpu().numpy()[None]

    yield "torch eager", eager, False
    if device.type == "cuda":
        yield "torch graph", Graphs(codec, device).encode, False


class Graphs:
    """``codec.encode`` captured, one graph a length."""

    def __init__(self, codec: MossAudioTokenizer, device: torch.device) -> None:
        self._codec, self._device = codec, device
        self._made: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]] = {}

    def encode(self, clips: np.ndarray) -> np.ndarray:
        """[1, samples] -> [1, frames, codebooks]."""
        samples = clips.shape[1]
        if samples not in self._made:
            self._made[samples] = self._capture(samples)
        graph, audio, codes = self._made[samples]
        audio.copy_(torch.from_numpy(clips[0]))
        graph.replay()
        return codes.to(torch.int32).cpu().numpy()[None]

    def _capture(self, samples: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]:
        audio = torch.zeros(samples, device=self._device)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._codec.encode(audio)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            codes = self._codec.encode(audio)
        return graph, audio, codes


def agreement(run: Run, codec: MossAudioTokenizer) -> Agreement:
    """Codes of ``run`` against torch's on the CPU, on twenty clips."""
    lengths = [int(n) for n in np.random.default_rng(0).integers(1, 60, 20)]
    return compare(lambda clip: run(clip[None])[0], codec, sample_clips(codec, lengths, seed=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--checkpoint", type=Path, default=Path("checkpoints/voice"))
    add("--device", default="cpu")
    add("--plan", type=Path, help="a TensorRT engine of this checkpoint (build_engines.py)")
    add("--threads", type=int, default=0, help="CPU threads; 0: half of the cores, as the stage")
    add("--seconds", type=float, nargs="+", default=[2.0, 5.0, 10.0, 30.0], help="lengths of the clips")
    add("--batches", type=int, nargs="+", default=[1, 2, 4, 8])
    add("--repeat-seconds", type=float, default=2.0, help="about how long each cell may take")
    add("--json", type=Path)
    options = parser.parse_args()
    options.threads = options.threads or max(1, len(os.sched_getaffinity(0)) // 2)
    torch.set_num_threads(options.threads)
    folder = options.checkpoint / "codec"
    gpu = options.device.startswith("cuda")
    result: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python -m benchmarks.encoder", *sys.argv[1:]]),
        "device": torch.cuda.get_device_name() if gpu else cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "options": {key: str(value) for key, value in vars(options).items() if key not in ("json", "plan")},
        "rows": [],
        "agreement": {},
        "files": [],
    }
    if not gpu:
        import onnxruntime

        result["onnxruntime"] = onnxruntime.__version__
    print(f"{result['device']}, {result['cores']} cores, {options.threads} threads, torch {torch.__version__}")
    voice = MossAudioTokenizer.load(folder, codebooks=spoken_codebooks(folder.parent))
    for name, run, batches in runtimes(options, folder, voice.codebooks):
        found = agreement(run, voice)
        result["agreement"][name] = {"codes": found.codes, "equal": found.equal_codes}
        print(f"\n{name}: {found.equal_codes} of {found.codes} codes equal torch's on the CPU")
        if not result["files"]:
            for cost in desk_rows(run, folder, options.seconds):
                result["files"].append(cost)
                print(
                    f"  {cost['seconds']:5g} s: a new file {cost['new_p50_ms']:8.1f} ms, the same again "
                    f"{cost['known_p50_ms']:8.3f} ms, CPU {cost['known_cpu_ms']:8.3f} ms"
                )
        for seconds in options.seconds:
            frames = frames_of(seconds, voice.sampling_rate, voice.hop)
            clips = np.stack(sample_clips(voice, [frames] * max(options.batches)))
            for batch in options.batches if batches else (1,):
                row: dict[str, Any] = {"runtime": name, "seconds": seconds, "batch": batch}
                row |= measure(run, clips[:batch], options.repeat_seconds)
                row["audio_seconds_a_second"] = row["clips_a_second"] * seconds
                row["equal_to_solo"] = equal_to_solo(run, clips[:batch])
                result["rows"].append(row)
                print(
                    f"  {seconds:5g} s, batch {batch:2}: p50 {row['p50_ms']:8.1f} ms, p95 {row['p95_ms']:8.1f} ms, "
                    f"CPU {row['cpu_ms']:8.1f} ms, "
                    f"{row['clips_a_second']:7.2f} clips/s, equal to solo: {row['equal_to_solo']}"
                )
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def cpu_name() -> str:
    """As the kernel calls it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
