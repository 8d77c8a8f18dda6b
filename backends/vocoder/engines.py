"""Which engine a codec needs."""

from __future__ import annotations

from collections.abc import Callable

from backends.models.window_codec import WindowCodec
from backends.vocoder.settings import VocoderSettings
from backends.vocoder.state import CausalCodec
from backends.vocoder.streaming import StreamingVocoder
from backends.vocoder.windowed import WindowedVocoder

#: Streams a step where the setting is 0. A CPU is filled by one stream's chunk (benchmarks/vocoder_cpu.py); a GPU wants
#: company. Windows of equal length are rarer than chunks of equal length, and every missing one is computed for nothing
#: (benchmarks/vocoder_batch.py), so fewer of them.
CPU_STEP_STREAMS, GPU_STEP_STREAMS, GPU_STEP_WINDOWS = 1, 16, 4


def build_engine(
    codec: CausalCodec | WindowCodec, settings: VocoderSettings, count_batch: Callable[[int], None]
) -> StreamingVocoder | WindowedVocoder:
    """Causal codecs stream with state; those that look ahead decode windows, and tell ``count_batch`` how many a
    batch."""
    on_gpu = GPU_STEP_WINDOWS if isinstance(codec, WindowCodec) else GPU_STEP_STREAMS
    step_streams = settings.step_streams or (CPU_STEP_STREAMS if codec.device.type == "cpu" else on_gpu)
    if isinstance(codec, WindowCodec):
        return WindowedVocoder(
            codec,
            step_streams,
            settings.slots,
            settings.max_step_frames,
            settings.max_chunk_frames,
            settings.deterministic,
            count_batch,
        )
    return StreamingVocoder(codec, step_streams, settings.slots, settings.max_step_frames)


def hold_seconds(codec: CausalCodec | WindowCodec, settings: VocoderSettings) -> float:
    """How long a step may wait for company; causal codecs never wait."""
    return settings.max_batch_wait_ms / 1e3 if isinstance(codec, WindowCodec) else 0.0
