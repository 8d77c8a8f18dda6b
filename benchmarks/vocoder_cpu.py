"""Milliseconds a vocoder step on this CPU over the bucket size B and the chunk length T, for 1 and 2 threads.

Run from the repository root: ``python -m benchmarks.vocoder_cpu``. The median of the steps; every step runs full (B
streams).
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from backends.vocoder.streaming import StreamingVocoder

BUCKETS, CHUNKS, THREADS = (1, 2, 4, 8), (1, 4, 8, 16, 25), (1, 2)


def step_ms(vocoder: StreamingVocoder, frames: int, repeats: int) -> float:
    """Median milliseconds of a full step of ``frames`` frames."""
    slots = [vocoder.open() for _ in range(vocoder.step_streams)]
    codes = torch.randint(vocoder.codec.entries, (len(slots), frames, vocoder.codec.codebooks))
    times = []
    for i in range(repeats + 3):
        start = time.perf_counter()
        vocoder.decode(slots, codes)
        if i >= 3:
            times.append(time.perf_counter() - start)
    for slot in slots:
        vocoder.close(slot)
    return statistics.median(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints/voice/codec"))
    parser.add_argument("--seconds", type=float, default=0.5, help="about how long each cell may take")
    options = parser.parse_args()
    codec = MossAudioTokenizer.load(options.checkpoint)
    frame_ms = 1e3 * codec.hop / codec.sampling_rate
    print(f"torch {torch.__version__}; ms a step; in brackets ms a frame of one stream ({frame_ms:.0f} ms of audio)")
    for threads in THREADS:
        torch.set_num_threads(threads)
        print(f"\n{threads} thread(s)  " + "".join(f"{f'T={t}':>16}" for t in CHUNKS))
        for bucket in BUCKETS:
            vocoder = StreamingVocoder(codec, step_streams=bucket, slots=bucket, max_step_frames=max(CHUNKS))
            cells = []
            for frames in CHUNKS:
                repeats = max(5, int(options.seconds * 1e3 / (1.2 * frames * bucket + 2)))
                took = step_ms(vocoder, frames, repeats)
                cells.append(f"{took:8.1f} ({took / frames / bucket:4.2f})")
            print(f"B={bucket:<11}" + "".join(f"{cell:>16}" for cell in cells))
        exact = StreamingVocoder(codec, slots=1).measure_exactness()
        print(f"chunked against whole, largest difference: {exact:.1e}")


if __name__ == "__main__":
    main()
