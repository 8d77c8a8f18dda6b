"""What a request with a clip waits for in ``tts_prompt``: a new file, and the same again; for benchmarks/encoder.py."""

from __future__ import annotations

import io
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import soundfile

from backends.encoder.clip import ClipLimits
from backends.voices.cache import Result
from backends.voices.clip import read_clip_file
from backends.voices.desk import VoiceDesk, encoder_identity
from backends.voices.metrics import VoiceMetrics

NEW_FILES, REPEATS = 5, 100
Run = Callable[[np.ndarray], np.ndarray]


def wait_for_codes(desk: VoiceDesk, data: bytes) -> float:
    """Seconds until the codes of a clip's file are there. Raises what the desk answers instead."""
    answered, found = threading.Event(), list[Result]()

    def answer(result: Result) -> None:
        found.append(result)
        answered.set()

    began = time.perf_counter()
    desk.ask(read_clip_file("reference_file", data), answer)
    answered.wait()
    if isinstance(found[0], Exception):
        raise found[0]
    return time.perf_counter() - began


def desk_rows(run: Run, folder: Path, lengths: Sequence[float]) -> Iterator[dict[str, float]]:
    """One row a length: milliseconds for a new file, for the same again, and processor time of that."""
    wanted = ClipLimits.load(folder, 2 * max(lengths))
    identity = encoder_identity(folder.parent, "float32")
    noise, options = np.random.default_rng(0), {"workers": 1, "max_waiting": 1, "cache_bytes": 64 * 2**20}
    desk = VoiceDesk(wanted, lambda samples: run(samples[None])[0], identity, VoiceMetrics(), **options)
    try:
        for seconds in lengths:
            files = []
            for _ in range(NEW_FILES):
                file = io.BytesIO()
                soundfile.write(file, noise.uniform(-0.2, 0.2, round(44100 * seconds)), 44100, format="WAV")
                files.append(file.getvalue())
            new = [wait_for_codes(desk, data) for data in files]
            busy = time.process_time()
            known = [wait_for_codes(desk, files[i % NEW_FILES]) for i in range(REPEATS)]
            busy = time.process_time() - busy
            row = {"seconds": seconds, "file_bytes": len(files[0]), "new_p50_ms": 1e3 * statistics.median(new)}
            yield row | {"known_p50_ms": 1e3 * statistics.median(known), "known_cpu_ms": 1e3 * busy / REPEATS}
    finally:
        desk.close()
