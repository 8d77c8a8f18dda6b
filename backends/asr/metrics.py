"""What ``asr_prompt`` counts. The other stages have the metrics of every encoder and every decoder."""

from __future__ import annotations

from backends.metrics import Counter, Gauge, Metrics
from backends.voices.metrics import CacheMetrics


class AsrPromptMetrics(CacheMetrics, Metrics):
    """One attribute a metric; names as Prometheus sees them."""

    def __init__(self) -> None:
        super().__init__("voxstage_asr_cache", "Windows")
        self.requests = Counter("voxstage_asr_requests", "Requests seen")
        self.refused = Counter("voxstage_asr_refused", "Requests refused as INVALID_ARG")
        self.shed = Counter("voxstage_asr_shed", "Requests refused because max_requests were inside")
        self.inside = Gauge("voxstage_asr_inside", "Transcriptions that are inside, until their last text")
        self.windows = Counter("voxstage_asr_windows", "Windows sent to the decoder")
        self.silent = Counter("voxstage_asr_silent_windows", "Windows of long audio that were left out as silent")
        self.audio_seconds = Counter("voxstage_asr_audio_seconds", "Seconds of audio taken")
        self.feature_seconds = Counter("voxstage_asr_feature_seconds", "Seconds spent on features of windows")
        self.encode_seconds = Counter("voxstage_asr_encode_seconds", "Seconds that windows waited for their states")
