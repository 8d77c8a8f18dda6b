"""What ``audio_encoder`` counts."""

from __future__ import annotations

from backends.metrics import Counter, Gauge, Metrics


class EncoderMetrics(Metrics):
    """Metrics of the Python stage; a TensorRT engine has Triton's own only."""

    def __init__(self) -> None:
        self.requests = Counter("voxstage_encoder_requests", "Requests seen")
        self.refused = Counter("voxstage_encoder_refused", "Requests refused: INVALID_ARG or UNAVAILABLE")
        self.clips = Gauge("voxstage_encoder_clips", "Clips that wait or are being encoded")
        self.graph_replays = Counter("voxstage_encoder_graph_replays", "Passes run as a CUDA graph")
        self.graph_failures = Counter(
            "voxstage_encoder_graph_failures", "Times that CUDA graphs were turned off by a fault"
        )
        self.seconds = Counter("voxstage_encoder_seconds", "Seconds spent encoding")
        self.audio_seconds = Counter("voxstage_encoder_audio_seconds", "Seconds of audio encoded")
