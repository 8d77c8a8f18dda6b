"""From the parameters of ``tts_vocoder`` to an engine that is ready to serve: which one a codec needs, its graphs."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import torch

from backends.checkpoint import spoken_codebooks
from backends.models.codec import load_codec
from backends.models.window_codec import WindowCodec
from backends.vocoder.graphs import GraphOptions
from backends.vocoder.metrics import VocoderMetrics
from backends.vocoder.settings import VocoderSettings
from backends.vocoder.state import CausalCodec
from backends.vocoder.streaming import StreamingVocoder
from backends.vocoder.windowed import WindowedVocoder

log = logging.getLogger(__name__)

#: Streams a step where the setting is 0. A CPU is filled by one stream's chunk (benchmarks/vocoder.py); a GPU wants
#: company. Windows of equal length are rarer than chunks of equal length, and every missing one is computed for nothing
#: (benchmarks/vocoder_batch.py), so fewer of them.
CPU_STEP_STREAMS, GPU_STEP_STREAMS, GPU_STEP_WINDOWS = 1, 16, 4
#: Frames a step where the setting is 0; on a GPU a causal codec's longest step is the longest that has a graph.
STEP_FRAMES = 50
_DTYPES = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}


def load_engine(
    settings: VocoderSettings, folder: Path, device: torch.device, metrics: VocoderMetrics
) -> StreamingVocoder | WindowedVocoder:
    """The engine for the codec in ``folder``; on a GPU with its graphs. InvalidArgument for a dtype that the codec does
    not compute in there."""
    dummy = settings.load_format == "dummy"
    codebooks = settings.codebooks or spoken_codebooks(folder.parent)
    codec = load_codec(folder, device, codebooks, _DTYPES[settings.dtype], dummy, decode_only=True)
    engine = build_engine(codec, settings, metrics)
    if isinstance(engine, StreamingVocoder):
        _make_ready(engine, settings)
    return engine


def build_engine(
    codec: CausalCodec | WindowCodec, settings: VocoderSettings, metrics: VocoderMetrics
) -> StreamingVocoder | WindowedVocoder:
    """Causal codecs stream with state; those that look ahead decode windows, and tell ``metrics`` how many a batch."""
    on_cpu = codec.device.type == "cpu"
    on_gpu = GPU_STEP_WINDOWS if isinstance(codec, WindowCodec) else GPU_STEP_STREAMS
    step_streams = settings.step_streams or (CPU_STEP_STREAMS if on_cpu else on_gpu)
    if isinstance(codec, WindowCodec):
        return WindowedVocoder(
            codec,
            step_streams,
            settings.slots,
            settings.max_step_frames or STEP_FRAMES,
            settings.max_chunk_frames,
            settings.deterministic,
            metrics.batch_streams.observe,
        )
    frames = settings.max_step_frames or (STEP_FRAMES if on_cpu else settings.cuda_graph_frames)
    return StreamingVocoder(codec, step_streams, settings.slots, frames, metrics)


def _make_ready(vocoder: StreamingVocoder, settings: VocoderSettings) -> None:
    if vocoder.codec.device.type == "cpu":
        # Chunked equals whole by what this machine's libraries do, so look (backends/models/causal_transformer.py).
        difference = vocoder.measure_exactness(chunks=(1, 4, 25), frames=50)
        if difference:
            log.warning("chunked and whole decode differ here by up to %g of full scale", difference)
        return
    started, graphs = time.perf_counter(), None
    if settings.cuda_graph:
        graphs = GraphOptions(settings.cuda_graph_frames, int(settings.cuda_graph_min_free_gib * 2**30))
    vocoder.prepare(graphs, settings.deterministic)
    log.info("vocoder: %d CUDA graphs, ready in %.1f s", vocoder.graphs, time.perf_counter() - started)


def hold_seconds(engine: StreamingVocoder | WindowedVocoder, settings: VocoderSettings) -> float:
    """How long a step may wait for company; causal codecs never wait."""
    return settings.max_batch_wait_ms / 1e3 if isinstance(engine, WindowedVocoder) else 0.0
