"""Each clip is encoded once: counters by hand, one encode for many, failures, deserted waiters, bounds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.encoder.clip import ClipLimits
from backends.errors import Cancelled, Internal, InvalidArgument, Unavailable, VoxstageError
from backends.voices.cache import Codes, Found, Result, VoiceCache, Waiter
from backends.voices.clip import ClipFile, ClipSamples, read_clip_samples
from backends.voices.desk import VoiceDesk, encoder_identity
from backends.voices.metrics import VoiceMetrics

WANTED = ClipLimits(sampling_rate=24000, hop=1920, max_seconds=4.0)
FRAME_BYTES = 12 * 4


def counts(metrics: VoiceMetrics) -> tuple[int, int, int, int, int]:
    """hits, misses, merged, failed, evicted."""
    found = (metrics.hits, metrics.misses, metrics.merged, metrics.failed, metrics.evicted)
    hits, misses, merged, failed, evicted = (int(each.value) for each in found)
    return hits, misses, merged, failed, evicted


def codes(value: int, frames: int = 1) -> Codes:
    return np.full((frames, 12), value, dtype=np.int32)


class Answers:
    """Collects what one or more requests were answered."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self._changed = threading.Condition()

    def __call__(self, result: Result) -> None:
        with self._changed:
            self.results.append(result)
            self._changed.notify_all()

    def wait(self, number: int) -> list[Result]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.results) >= number, 20)
            return self.results


def clip(seed: int, seconds: float = 0.2) -> ClipSamples:
    samples = np.random.default_rng(seed).uniform(-0.3, 0.3, round(24000 * seconds)).astype(np.float32)
    return read_clip_samples("reference_audio", samples, 1, 24000, WANTED)


class Encoder:
    """Codes that tell the clip; counts its calls; waits for ``go``; fails while ``broken``."""

    def __init__(self) -> None:
        self.calls, self.broken = 0, False
        self.go, self.began = threading.Event(), threading.Event()
        self.go.set()
        self._lock = threading.Lock()

    def __call__(self, samples: Any) -> Codes:
        with self._lock:
            self.calls += 1
        self.began.set()
        assert self.go.wait(20)
        if self.broken:
            raise Internal("the encoder is broken")
        return codes(int(abs(samples[:100].sum()) * 1e4) % 1024, len(samples) // 1920)


@contextmanager
def desk(encoder: Callable[[Any], Codes], **limits: Any) -> Iterator[VoiceDesk]:
    settings: dict[str, Any] = {"workers": 4, "max_waiting": 64, "cache_bytes": 1 << 20, **limits}
    made = VoiceDesk(WANTED, encoder, b"identity", VoiceMetrics(), **settings)
    try:
        yield made
    finally:
        made.close()


def test_a_hit_a_miss_and_the_least_recently_used_goes() -> None:
    metrics, seen = VoiceMetrics(), Answers()
    cache = VoiceCache(3 * FRAME_BYTES, metrics)
    for key in (b"a", b"b", b"c"):
        assert cache.ask(key, Waiter(seen)) is Found.MISS
        cache.settle(key, codes(ord(key)))
    assert (counts(metrics), len(cache), metrics.bytes.value) == ((0, 3, 0, 0, 0), 3, 3 * FRAME_BYTES)
    assert cache.ask(b"a", Waiter(seen)) is Found.HIT  # now b is the oldest
    assert cache.ask(b"d", Waiter(seen)) is Found.MISS
    cache.settle(b"d", codes(4))
    assert cache.ask(b"a", Waiter(seen)) is Found.HIT
    assert cache.ask(b"b", Waiter(seen)) is Found.MISS
    assert (counts(metrics), len(cache), metrics.bytes.value) == ((2, 5, 0, 0, 1), 3, 3 * FRAME_BYTES)
    cache.settle(b"b", codes(2, frames=2))  # c and d make room, and a is younger than both
    assert (counts(metrics), len(cache), metrics.bytes.value) == ((2, 5, 0, 0, 3), 2, 3 * FRAME_BYTES)
    values = [int(each[0, 0]) for each in seen.results if not isinstance(each, VoxstageError)]
    assert values == [*b"abca", 4, ord("a"), 2]


def test_what_is_larger_than_the_cache_is_answered_and_not_kept() -> None:
    metrics, seen = VoiceMetrics(), Answers()
    cache = VoiceCache(FRAME_BYTES, metrics)
    cache.ask(b"a", Waiter(seen))
    cache.settle(b"a", codes(1, frames=2))
    assert len(seen.results) == 1 and len(cache) == 0 and metrics.bytes.value == 0
    assert cache.ask(b"a", Waiter(seen)) is Found.MISS
    cache.settle(b"a", codes(1, frames=2), pin=True)
    assert cache.ask(b"a", Waiter(seen)) is Found.HIT and metrics.bytes.value == 2 * FRAME_BYTES
    for key in (b"b", b"c"):
        cache.ask(key, Waiter(seen))
        cache.settle(key, codes(2))
    assert cache.ask(b"a", Waiter(seen)) is Found.HIT and len(cache) == 2
    assert (counts(metrics), metrics.bytes.value) == ((2, 4, 0, 0, 1), 3 * FRAME_BYTES)


def test_codes_in_the_cache_cannot_be_changed_by_a_reader() -> None:
    cache, seen = VoiceCache(1 << 20, VoiceMetrics()), Answers()
    cache.ask(b"a", Waiter(seen))
    cache.settle(b"a", codes(1))
    assert not seen.results[0].flags.writeable  # type: ignore[union-attr]


def test_one_waiter_that_breaks_does_not_keep_the_others_waiting() -> None:
    def breaks(result: Result) -> None:
        raise OSError("the client's socket")

    seen = Answers()
    cache = VoiceCache(1 << 20, VoiceMetrics())
    for waiter in (breaks, seen, breaks, seen):
        cache.ask(b"a", Waiter(waiter))
    cache.settle(b"a", codes(1))
    assert len(seen.results) == 2


def test_eight_with_one_new_clip_cause_one_encode() -> None:
    encoder, seen = Encoder(), Answers()
    encoder.go.clear()
    with desk(encoder) as voices:
        threads = [threading.Thread(target=voices.ask, args=(clip(1), seen)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        other = Answers()
        voices.ask(clip(2), other)
        while sum(counts(voices._metrics)[1:3]) < 9:
            threading.Event().wait(0.01)
        assert not seen.results and voices._metrics.waiting.value == 9
        encoder.go.set()
        results = seen.wait(8)
        other.wait(1)
        assert encoder.calls == 2 and counts(voices._metrics) == (0, 2, 7, 0, 0)
        assert all(result is results[0] for result in results)
        again = Answers()
        voices.ask(clip(1), again)
        assert again.wait(1)[0] is results[0]
        assert encoder.calls == 2 and counts(voices._metrics) == (1, 2, 7, 0, 0)
        assert voices._metrics.waiting.value == 0
        assert voices._metrics.bytes.value == 2 * 3 * FRAME_BYTES
        assert voices._metrics.seconds.value > 0


def test_a_failed_encode_reaches_each_waiter_and_is_not_kept() -> None:
    encoder, seen = Encoder(), Answers()
    encoder.broken = True
    encoder.go.clear()
    with desk(encoder) as voices:
        for _ in range(3):
            voices.ask(clip(1), seen)
        encoder.began.wait(20)
        while counts(voices._metrics)[2] < 2:
            threading.Event().wait(0.01)
        encoder.go.set()
        assert [str(result) for result in seen.wait(3)] == ["INTERNAL the encoder is broken"] * 3
        encoder.broken = False
        again = Answers()
        voices.ask(clip(1), again)
        assert isinstance(again.wait(1)[0], np.ndarray)
        assert encoder.calls == 2 and counts(voices._metrics) == (0, 2, 2, 1, 0)


def test_a_fault_that_nobody_foresaw_is_an_error_too() -> None:
    def encode(samples: Any) -> Codes:
        raise ZeroDivisionError("by zero")

    seen = Answers()
    with desk(encode) as voices:
        voices.ask(clip(1), seen)
        assert str(seen.wait(1)[0]) == "INTERNAL ZeroDivisionError: by zero"


def test_bad_audio_fails_before_the_encoder_is_asked() -> None:
    encoder, seen = Encoder(), Answers()
    with desk(encoder) as voices:
        voices.ask(ClipFile("reference_file", b"RIFF....WAVE, and no more"), seen)
        (error,) = seen.wait(1)
        assert isinstance(error, InvalidArgument) and error.field == "reference_file"
        assert encoder.calls == 0 and counts(voices._metrics) == (0, 1, 0, 1, 0)


def test_who_leaves_takes_nobody_along() -> None:
    """The first of two has gone before the encode begins: the other is answered. Both gone: there is no encode."""
    encoder = Encoder()
    encoder.go.clear()
    stays, busy = Answers(), Answers()
    leaves, both = Answers(), Answers()
    with desk(encoder, workers=1) as voices:
        voices.ask(clip(1), busy)
        assert encoder.began.wait(20)
        voices.ask(clip(2), leaves, lambda: True)
        voices.ask(clip(2), stays)
        for _ in range(2):
            voices.ask(clip(3), both, lambda: True)
        while sum(counts(voices._metrics)[1:3]) < 5:
            threading.Event().wait(0.01)
        encoder.go.set()
        assert isinstance(stays.wait(1)[0], np.ndarray) and isinstance(leaves.wait(1)[0], np.ndarray)
        assert [type(result) for result in both.wait(2)] == [Cancelled] * 2
        busy.wait(1)
        assert encoder.calls == 2 and counts(voices._metrics) == (0, 3, 2, 0, 0)
        assert voices._metrics.waiting.value == 0
        late = Answers()
        voices.ask(clip(3), late)
        assert isinstance(late.wait(1)[0], np.ndarray) and encoder.calls == 3


def test_more_than_may_wait_are_refused_at_once() -> None:
    encoder, seen = Encoder(), Answers()
    encoder.go.clear()
    with desk(encoder, max_waiting=3) as voices:
        for number in range(3):
            voices.ask(clip(number), seen)
        with pytest.raises(Unavailable, match=r"3 requests wait for a voice, the limit \(tts_prompt.max_waiting"):
            voices.ask(clip(9), seen)
        assert voices._metrics.turned_away.value == 1 and voices._metrics.waiting.value == 3
        encoder.go.set()
        seen.wait(3)
        voices.ask(clip(9), seen)
        seen.wait(4)
        assert voices._metrics.turned_away.value == 1


def test_a_hit_does_not_wait_behind_encodes() -> None:
    encoder, first, slow, hit = Encoder(), Answers(), Answers(), Answers()
    with desk(encoder, workers=2) as voices:
        voices.ask(clip(1), first)
        first.wait(1)
        encoder.go.clear()
        for number in range(2, 8):
            voices.ask(clip(number), slow)
        voices.ask(clip(1), hit)
        hit.wait(1)
        assert not slow.results
        encoder.go.set()
        slow.wait(6)


def test_closing_answers_who_still_waits() -> None:
    encoder, seen = Encoder(), Answers()
    encoder.go.clear()
    with desk(encoder, workers=1) as voices:
        for number in range(3):
            voices.ask(clip(number), seen)
        assert encoder.began.wait(20)
        closer = threading.Thread(target=voices.close)
        closer.start()
        encoder.go.set()
        closer.join(20)
        assert not closer.is_alive()
        results = seen.wait(3)
    assert isinstance(results[0], np.ndarray)
    assert all(isinstance(each, np.ndarray) or str(each) == "UNAVAILABLE the server is stopping" for each in results)


def test_the_key_is_the_clip_and_all_that_makes_its_codes(voice: Path, tmp_path: Path) -> None:
    base = clip(1)
    with desk(Encoder()) as voices, desk(Encoder()) as same:
        other_rate = ClipSamples(base.field, base.samples, 1, 23999)
        stereo = ClipSamples(base.field, base.samples, 2, 24000)
        nudged = ClipSamples(base.field, np.nextafter(base.samples, np.float32(1)), 1, 24000)
        as_file = ClipFile("reference_file", base.samples.tobytes())
        keys = [voices.key(each) for each in (base, other_rate, stereo, nudged, as_file, clip(2))]
        assert len(set(keys)) == len(keys)
        assert same.key(base) == keys[0] == voices.key(clip(1))
        limits = {"workers": 1, "max_waiting": 1, "cache_bytes": 0}
        other = VoiceDesk(WANTED, Encoder(), b"another", VoiceMetrics(), **limits)
        assert other.key(base) != keys[0]
        other.close()
    identity = encoder_identity(voice, "float32")
    assert identity == encoder_identity(voice, "float32") != encoder_identity(voice, "bfloat16")
    (tmp_path / "codec").mkdir()
    (tmp_path / "codec" / "config.json").write_bytes((voice / "codec" / "config.json").read_bytes())
    assert encoder_identity(tmp_path, "float32") != identity
