"""What the voices count."""

from __future__ import annotations

from backends.metrics import Counter, Gauge


class VoiceMetrics:
    """Counters of the voice cache and of the requests that bring a voice; part of the metrics of ``tts_prompt``."""

    def __init__(self) -> None:
        self.hits = Counter("voxstage_voice_hits", "Voices whose codes were in the cache")
        self.misses = Counter("voxstage_voice_misses", "Voices that had to be encoded")
        self.merged = Counter("voxstage_voice_merged", "Voices that waited for an encode under way")
        self.failed = Counter("voxstage_voice_failed", "Encodes that failed, bad clips included")
        self.evicted = Counter("voxstage_voice_evicted", "Voices dropped from the cache for room")
        self.turned_away = Counter("voxstage_voice_refused", "Requests refused because too many voices were waiting")
        self.seconds = Counter("voxstage_voice_encode_seconds", "Seconds spent in encodes, decoding of files included")
        self.bytes = Gauge("voxstage_voice_bytes", "Bytes of codes in the cache, those of named voices included")
        self.waiting = Gauge("voxstage_voice_waiting", "Requests that wait for their voice")
