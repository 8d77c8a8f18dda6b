"""What the decoder counts."""

from __future__ import annotations

from backends.metrics import Counter, Gauge, Metrics


class DecoderMetrics(Metrics):
    """One attribute a metric; names as Prometheus sees them."""

    def __init__(self) -> None:
        self.requests = Counter("voxstage_decoder_requests", "Requests accepted")
        self.shed = Counter("voxstage_decoder_shed", "Requests refused because the decoder was full")
        self.cancelled = Counter("voxstage_decoder_cancelled", "Streams ended by a cancel")
        self.failed = Counter("voxstage_decoder_failed", "Streams ended by a fault of the server")
        self.finished = Counter("voxstage_decoder_finished", "Streams that came to their own end")
        self.frames = Counter("voxstage_decoder_frames", "Audio frames made")
        self.steps = Counter("voxstage_decoder_steps", "Decode steps run")
        self.step_seconds = Counter("voxstage_decoder_step_seconds", "Seconds spent in decode steps")
        self.prefill_rows = Counter("voxstage_decoder_prefill_rows", "Prompt rows read")
        self.prefill_seconds = Counter("voxstage_decoder_prefill_seconds", "Seconds spent reading prompts")
        self.slots = Gauge("voxstage_decoder_slots", "Slots that a request holds")
        self.waiting = Gauge("voxstage_decoder_waiting", "Requests that wait for a slot")
