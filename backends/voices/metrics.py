"""What the voices count, and any cache of what an encoder made."""

from __future__ import annotations

from backends.metrics import Counter, Gauge


class CacheMetrics:
    """Counters of a :class:`backends.voices.cache.VoiceCache`. ``prefix``: how their names begin."""

    def __init__(self, prefix: str, things: str) -> None:
        self.hits = Counter(f"{prefix}_hits", f"{things} that were in the cache")
        self.misses = Counter(f"{prefix}_misses", f"{things} that had to be encoded")
        self.merged = Counter(f"{prefix}_merged", f"{things} that waited for an encode under way")
        self.failed = Counter(f"{prefix}_failed", "Encodes that failed, bad clips included")
        self.evicted = Counter(f"{prefix}_evicted", f"{things} dropped from the cache for room")
        self.bytes = Gauge(f"{prefix}_bytes", f"Bytes in the cache of {things.lower()}")


class VoiceMetrics(CacheMetrics):
    """Counters of the voice cache and of the requests that bring a voice; part of the metrics of ``tts_prompt``."""

    def __init__(self) -> None:
        super().__init__("voxstage_voice", "Voices")
        self.turned_away = Counter("voxstage_voice_refused", "Requests refused because too many voices were waiting")
        self.seconds = Counter("voxstage_voice_encode_seconds", "Seconds spent in encodes, decoding of files included")
        self.waiting = Gauge("voxstage_voice_waiting", "Requests that wait for their voice")
