"""What ``audio_encoder`` counts."""

from __future__ import annotations

from backends.metrics import Counter, Gauge, Metrics


class EncoderMetrics(Metrics):
    """Metrics of the Python stage; a TensorRT engine has Triton's own only."""

    def __init__(self) -> None:
        self.requests = Counter("voxstage_encoder_requests", "Requests seen")
        self.refused = Counter("voxstage_encoder_refused", "Requests refused: INVALID_ARG or UNAVAILABLE")
        self.clips = Gauge("voxstage_encoder_clips", "Clips that wait or are being encoded")
        self.seconds = Counter("voxstage_encoder_seconds", "Seconds spent encoding")
        self.audio_seconds = Counter("voxstage_encoder_audio_seconds", "Seconds of audio encoded")
