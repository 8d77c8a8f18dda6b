"""What the vocoder counts, and the timeline of the whole pipeline, which ends here."""

from __future__ import annotations

from backends.metrics import Counter, CounterFamily, Gauge, Histogram, Metrics
from backends.timeline import STATIONS

_SPAN_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class VocoderMetrics(Metrics):
    """One attribute a metric; names as Prometheus sees them."""

    def __init__(self) -> None:
        self.chunks = Counter("voxstage_vocoder_chunks", "Chunks decoded")
        self.frames = Counter("voxstage_vocoder_frames", "Frames decoded")
        self.steps = Counter("voxstage_vocoder_steps", "Vocoder steps run")
        self.step_seconds = Counter("voxstage_vocoder_step_seconds", "Seconds spent in vocoder steps")
        self.step_shapes = CounterFamily(
            "voxstage_vocoder_step_shapes",
            "Decode steps by streams computed (B), frames (T) and how they ran: graph or eager",
            ("streams", "frames", "run"),
        )
        self.graph_failures = Counter(
            "voxstage_vocoder_graph_failures", "Times that CUDA graphs were turned off by a fault"
        )
        self.cancelled = Counter("voxstage_vocoder_cancelled", "Streams whose client was gone when a chunk came")
        self.failed = Counter("voxstage_vocoder_failed", "Streams ended by a fault of the vocoder")
        self.idle = Counter("voxstage_vocoder_idle", "Streams closed because no chunk came for stream_idle_seconds")
        self.streams = Gauge("voxstage_vocoder_streams", "Streams that hold a slot")
        self.margin = Histogram(
            "voxstage_vocoder_margin_seconds",
            "Audio that a client still had to play when its next chunk left; negative: playback had run dry",
            (-1.0, -0.3, -0.1, -0.05, 0.0, 0.1, 0.3, 1.0, 3.0, 10.0),
        )
        self.batch_streams = Histogram(
            "voxstage_vocoder_batch_streams",
            "Windows in a batch of a codec that looks ahead, padding not counted",
            (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0),
        )
        self.held = Counter("voxstage_vocoder_held", "Steps that waited for company (max_batch_wait_ms)")
        self.held_seconds = Counter("voxstage_vocoder_held_seconds", "Seconds that steps waited for company")
        # The whole pipeline's timeline, kept here because here it ends.
        self.spans = {
            name: Histogram(
                f"voxstage_span_{name}_seconds",
                f"Seconds from the station that {name} waits for until {name}",
                _SPAN_BUCKETS,
            )
            for name in STATIONS[1:]
        }
