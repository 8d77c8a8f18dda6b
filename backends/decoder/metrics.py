"""What the decoder counts."""

from __future__ import annotations

from backends.decoder.prefix_cache import PrefixMetrics
from backends.metrics import Counter, Gauge, Histogram

_GAP_WINDOW_SECONDS = 5.0


class DecoderMetrics(PrefixMetrics):
    """One attribute a metric; names as Prometheus sees them."""

    def __init__(self) -> None:
        super().__init__()
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
        self.prefill_passes = Counter("voxstage_decoder_prefill_passes", "Passes in which prompts were read together")
        self.prefill_graph_replays = Counter(
            "voxstage_decoder_prefill_graph_replays", "Passes over prompts run as a CUDA graph"
        )
        self.overruns = Counter("voxstage_decoder_overruns", "Rows computed for streams that had already ended")
        self.graph_replays = Counter("voxstage_decoder_graph_replays", "Decode steps run as a CUDA graph")
        self.graph_failures = Counter(
            "voxstage_decoder_graph_failures", "Times that CUDA graphs were turned off by a fault"
        )
        self.retracted = Counter("voxstage_decoder_retracted", "Streams that gave up their pages and started over")
        self.process_failures = Counter(
            "voxstage_decoder_process_failures",
            "Times that the engine got no process of its own",
        )
        self.integrity_failures = Counter(
            "voxstage_decoder_integrity_failures", "Times that the idle decoder found its own bookkeeping wrong"
        )
        self.step_gap = Histogram(
            "voxstage_decoder_step_gap_seconds",
            "Seconds between the end of a decode step and the start of the next, while streams run",
            (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
        )
        self.longest_gap = Gauge(
            "voxstage_decoder_longest_gap_seconds", "The longest of these in the last five to ten seconds"
        )
        self._gaps, self._gaps_before, self._window_began = 0.0, 0.0, 0.0
        self.pages = Gauge("voxstage_decoder_pages", "KV pages in use, those of the prefix cache included")
        self.cached_pages = Gauge("voxstage_decoder_cached_pages", "KV pages that the prefix cache holds")
        self.slots = Gauge("voxstage_decoder_slots", "Slots that a request holds")
        self.waiting = Gauge("voxstage_decoder_waiting", "Requests that wait for a slot")

    def saw_gap(self, seconds: float, now: float) -> None:
        """One gap between two steps, seen at ``now`` (seconds of any clock). Called by the engine's thread alone."""
        self.step_gap.observe(seconds)
        if now - self._window_began > _GAP_WINDOW_SECONDS:
            self._gaps_before, self._gaps, self._window_began = self._gaps, 0.0, now
        self._gaps = max(self._gaps, seconds)
        self.longest_gap.set(max(self._gaps, self._gaps_before))
