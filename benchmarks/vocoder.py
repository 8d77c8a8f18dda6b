"""What a vocoder step costs, what graphs cost and gain, and whether live streams run dry: one sitting, JSON beside it.

    python -m benchmarks.vocoder                      the small voice's codec on this machine's CPU
    python -m benchmarks.vocoder --device cuda        MOSS-Audio-Tokenizer v1 sizes (24 kHz), random weights, bfloat16

Everything runs the engine in process, without Triton. *Step*: from codes on the host to samples on the host, the median
of a stretch of full steps. *Trace*: streams arrive at random (Poisson) or stay at a number; the chunks of a stream are
cut by the decoder's own rule and come when a decoder that makes audio at ``--rate`` seconds a second would have made
them; the vocoder really decodes them, in real time, by its own scheduler. A chunk that comes after playback has run dry
is an underrun.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from backends.device import use_threads
from backends.models.codec import load_codec
from backends.vocoder.streaming import StreamingVocoder
from benchmarks.sitting import sitting
from benchmarks.vocoder_steps import capture_cost, chunked_db, precision_db, step_table
from benchmarks.vocoder_traces import run_trace

ROOT = Path(__file__).resolve().parents[1]


def numbers(text: str) -> list[int]:
    """``1,2,4`` -> [1, 2, 4]."""
    return [int(part) for part in text.split(",") if part]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        help="folder with config.json, from the repository root; without weights: random ones",
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="default: float32 on a CPU, bfloat16 on a GPU")
    parser.add_argument(
        "--streams", type=numbers, help="numbers of streams a step; the largest is the bucket of traces"
    )
    parser.add_argument("--frames", type=numbers, help="numbers of frames a step")
    parser.add_argument("--graph-frames", type=int, default=25, help="a graph for every number of frames up to this")
    parser.add_argument("--threads", type=numbers, default=[1], help="CPU threads, one table each")
    parser.add_argument("--seconds", type=float, default=0.3, help="about how long each cell of the table may take")
    parser.add_argument("--live", type=numbers, help="streams alive in the traces")
    parser.add_argument("--trace-seconds", type=float, default=10.0, help="length of a trace; 0: none")
    parser.add_argument("--rate", type=float, default=0.6, help="seconds that the decoder takes for a second of audio")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    gpu = options.device != "cpu"
    options.streams = options.streams or ([1, 2, 4, 8, 16] if gpu else [1, 2, 4, 8])
    options.frames = options.frames or ([1, 2, 4, 5, 8, 10, 13, 16, 20, 25] if gpu else [1, 4, 8, 16, 25])
    options.live = options.live or ([16, 64] if gpu else [1, 2])
    options.dtype = options.dtype or ("bfloat16" if gpu else "float32")
    v1 = "benchmarks/configs/moss_audio_tokenizer_v1/codec"
    options.checkpoint = options.checkpoint or Path(v1 if gpu else "checkpoints/voice/codec")
    return options


def load(options: argparse.Namespace, dtype: str) -> Any:
    folder = ROOT / options.checkpoint
    dummy = not any(folder.glob("*.safetensors"))
    return load_codec(folder, options.device, None, getattr(torch, dtype), dummy, True)


def main() -> None:
    options = parse()
    gpu, report = options.device != "cpu", sitting(options)
    use_threads(options.threads[0])
    started = time.perf_counter()
    codec = load(options, options.dtype)
    report["load_s"] = round(time.perf_counter() - started, 2)
    print(json.dumps(report, indent=1), flush=True)
    largest = max(options.live) * 2

    if gpu:
        report["start"], vocoder, every = capture_cost(codec, options, largest)
        print(json.dumps(report["start"], indent=1), flush=True)
        report["steps"] = step_table(every, options)
        del every
    else:
        report["steps"] = []
        for threads in options.threads:
            use_threads(threads)
            for streams in options.streams:
                bucket = StreamingVocoder(codec, streams, streams, max(options.frames))
                report["steps"] += step_table(bucket, options, threads)
        use_threads(options.threads[0])
        vocoder = StreamingVocoder(codec, 1, largest, 50)
        report["chunked_against_whole"] = vocoder.measure_exactness()
    report["traces"] = []
    for live in options.live if options.trace_seconds else []:
        for poisson in (True, False):
            report["traces"].append(run_trace(vocoder, live, poisson, options))
            print(json.dumps(report["traces"][-1]), flush=True)
    if gpu:
        report["chunked_against_whole_db"] = chunked_db(vocoder)
        print(f"chunks of 1 and 5 frames against {vocoder.max_step_frames}: {report['chunked_against_whole_db']} dB")
    if gpu and options.dtype == "bfloat16":
        report["bfloat16_against_float32_db"] = precision_db(codec, load(options, "float32"))
        print(f"bfloat16 against float32: {report['bfloat16_against_float32_db']} dB")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
