"""Exact-length batches against one window at a time, for codecs that look ahead; fixed code sets, random weights.

    python -m benchmarks.vocoder_batch                          small sizes on this CPU
    python -m benchmarks.vocoder_batch --sizes dac --device cuda

Every set of codes is decoded in three ways: one window at a time; in batches of windows of equal length, padded to
``--rows`` (what the server does: the same bits at every load); in batches without padding. The ways take turns, the
first turn compiles kernels for new shapes, and the best of ``--repeats`` counts. Time on a CPU is the processor time of
one thread, which neighbours disturb less than the wall clock; on a GPU it is wall time between synchronisations.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backends.decoder.chunks import ChunkSchedule
from backends.device import resolve_device
from backends.models.dac import Dac
from backends.models.named_tensors import RandomTensors
from backends.models.window_codec import WindowCodec, keep_kernels
from backends.vocoder.engine import CodeChunk
from backends.vocoder.windowed import WindowedVocoder
from client.bench.machine import describe

#: ``toy``: about the tests'. ``higgs``: the decoder of the Higgs tokenizer (25 Hz). ``dac``: DAC, 75 Hz. All 24 kHz.
SIZES: dict[str, dict[str, Any]] = {
    "toy": {"decoder_hidden_size": 64, "hidden_size": 64, "downsampling_ratios": [2, 4, 5, 8], "n_codebooks": 4},
    "higgs": {
        "decoder_hidden_size": 1024,
        "hidden_size": 256,
        "downsampling_ratios": [3, 2, 4, 5, 8],
        "n_codebooks": 8,
    },
    "dac": {"decoder_hidden_size": 1536, "hidden_size": 1024, "downsampling_ratios": [2, 4, 5, 8], "n_codebooks": 9},
}
WAYS = ("one by one", "padded", "not padded")
#: Calls of the engine: chunks of (stream, codes, last).
Calls = list[list[tuple[int, Tensor, bool]]]


class _Weights(RandomTensors):
    """Random weights with a gain near one, so that values stay where a trained codec's are."""

    def take(self, name: str, *shape: int) -> Tensor:
        noise = torch.randn(shape, generator=self._generator)
        if name.endswith((".alpha", ".bias")):
            value = torch.ones(shape) if name.endswith("alpha") else torch.zeros(shape)
        elif "codebook" in name:
            value = noise
        else:
            inputs = 2 * shape[0] if "conv_t1" in name else noise[0].numel()
            value = noise * inputs**-0.5 * (0.3 if "res_unit" in name else 1.0)
        return value.to(self.device, self.dtype)


@torch.inference_mode()
def make_codec(size: str, device: torch.device) -> WindowCodec:
    """A codec of one of ``SIZES``, always with the same weights."""
    config = {**SIZES[size], "sampling_rate": 24000}
    tensors = _Weights(0, torch.device("cpu"), torch.float32)
    tensors.device = device
    return Dac(config, tensors)


def whole_items(codec: WindowCodec, lengths: list[int]) -> Calls:
    """All items in one call, each a whole stream in one chunk."""
    return [[(i, _codes(codec, frames, i), True) for i, frames in enumerate(lengths)]]


def live_streams(codec: WindowCodec, lengths: list[int], rng: random.Random) -> Calls:
    """Streams that start within eight turns of one another and bring a chunk a turn, as the decoder cuts them. Kind to
    batches: real chunks do not come in turns."""
    turns: dict[int, list[tuple[int, Tensor, bool]]] = {}
    for i, frames in enumerate(lengths):
        codes, schedule, turn = _codes(codec, frames, i), ChunkSchedule(4, 25), rng.randrange(8)
        while schedule.sent < frames:
            start = schedule.sent
            schedule.take(min(schedule.next_size(), frames - start))
            part = codes[start : schedule.sent]
            turns.setdefault(turn, []).append((i, part, schedule.sent == frames))
            turn += 1
    return [turns[turn] for turn in sorted(turns)]


def run(codec: WindowCodec, calls: Calls, way: str, rows: int) -> tuple[float, list[int], dict[int, Tensor]]:
    """Decode the calls in one ``way`` -> (seconds, windows of each batch, audio by stream)."""
    batches: list[int] = []
    streams = {stream for call in calls for stream, *_ in call}
    step_streams = 1 if way == WAYS[0] else rows
    vocoder = WindowedVocoder(
        codec, step_streams, len(streams), 50, 10_000, deterministic=way != WAYS[2], count_batch=batches.append
    )
    slots = {stream: vocoder.open() for stream in streams}
    made: dict[int, list[Tensor]] = {stream: [] for stream in streams}
    start = _now(codec.device)
    for call in calls:
        for (stream, *_), result in zip(
            call, vocoder.decode_each([CodeChunk(slots[s], codes, last) for s, codes, last in call]), strict=True
        ):
            if not isinstance(result, Tensor):
                raise result
            made[stream].append(result)
    seconds = _now(codec.device) - start
    return seconds, batches, {stream: torch.cat(parts) for stream, parts in made.items()}


def compare(
    codec: WindowCodec, size: str, name: str, calls: Calls, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """One line a way."""
    lines: dict[str, dict[str, Any]] = {}
    audio: dict[str, dict[int, Tensor]] = {}
    for _ in range(options.repeats):
        for way in WAYS:
            seconds, batches, audio[way] = run(codec, calls, way, options.rows)
            line = lines.setdefault(way, {"size": size, "set": name, "way": way, "seconds": seconds})
            line["seconds"] = min(line["seconds"], seconds)
            windows = sum(batches)
            shared = sum(batch for batch in batches if batch > 1)
            line |= {"windows": windows, "batches": len(batches), "largest": max(batches)}
            line |= {
                "batches_above_1": sum(batch > 1 for batch in batches) / len(batches),
                "windows_shared": shared / windows,
            }
    base = audio[WAYS[0]]
    for way, line in lines.items():
        samples = sum(len(signal) for signal in audio[way].values())
        line["audio_per_second"] = samples / codec.sampling_rate / line["seconds"]
        line["gain"] = lines[WAYS[0]]["seconds"] / line["seconds"]
        scale = float(torch.cat(list(base.values())).std())
        line["difference_sd"] = max(float((audio[way][s] - base[s]).abs().max()) for s in base) / scale
        print(
            f"{size:6} {name:24} {way:11} {line['windows']:4} windows {line['batches']:4} batches"
            f" {line['batches_above_1']:6.0%} above 1 {line['seconds']:8.2f} s"
            f" {line['audio_per_second']:8.2f} audio s/s x{line['gain']:.2f}  differs {line['difference_sd']:.0e} sd",
            flush=True,
        )
    return list(lines.values())


def _codes(codec: WindowCodec, frames: int, seed: int) -> Tensor:
    return torch.randint(codec.entries, (frames, codec.codebooks), generator=torch.Generator().manual_seed(seed))


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def _each(text: str, count: int) -> list[str]:
    """The comma-separated values of an option, one a size."""
    values = text.split(",")
    return values * count if len(values) == 1 else values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", default="toy", help=f"comma-separated, of {', '.join(SIZES)}")
    parser.add_argument("--items", default="16", help="streams of a set; one number, or one a size")
    parser.add_argument("--frames", default="40-120", help="shortest and longest stream; one range, or one a size")
    parser.add_argument("--rows", type=int, default=4, help="windows a batch")
    parser.add_argument("--repeats", type=int, default=3, help="at least 2: the first compiles")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = resolve_device(options.device)
    torch.set_num_threads(1)
    keep_kernels()
    sizes = options.sizes.split(",")
    items, ranges = (_each(text, len(sizes)) for text in (options.items, options.frames))
    lines: list[dict[str, Any]] = []
    for size, count, span in zip(sizes, map(int, items), ranges, strict=True):
        shortest, longest = map(int, span.split("-"))
        codec, rng = make_codec(size, device), random.Random(0)
        drawn = [rng.randint(shortest, longest) for _ in range(count)]
        run(codec, whole_items(codec, [shortest] * options.rows), WAYS[1], options.rows)  # warm
        for name, calls in (
            ("whole, one length", whole_items(codec, [(shortest + longest) // 2] * count)),
            ("whole, drawn lengths", whole_items(codec, drawn)),
            ("live, drawn lengths", live_streams(codec, drawn, rng)),
        ):
            lines += compare(codec, size, name, calls, options)
    if options.json is not None:
        machine = describe()
        if device.type == "cuda":
            machine["device"] = torch.cuda.get_device_name(device)
        report = {
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "options": {key: str(value) for key, value in vars(options).items() if key != "json"},
            "machine": machine,
            "torch": torch.__version__,
            "lines": lines,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
