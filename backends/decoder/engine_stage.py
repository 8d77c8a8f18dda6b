"""A decoder engine behind a stage: what ``tts_decoder`` and ``asr_decoder`` have in common."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from backends.decoder.engine import DecoderEngine
from backends.decoder.engine_order import EngineOrder, LoadModel, build_engine
from backends.decoder.engine_process import EngineProcess, start_engine_process
from backends.decoder.metrics import DecoderMetrics
from backends.decoder.settings import EngineSettings
from backends.device import resolve_device
from backends.outbox import Outbox

if TYPE_CHECKING:
    from backends.stage import StageContext

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_LAST_WORDS_SECONDS = 1.0


class EngineStage:
    """Owns the engine and the outbox that responses leave from."""

    engine: DecoderEngine | EngineProcess

    def __init__(self, settings: EngineSettings, context: StageContext, folder: Path, load: LoadModel) -> None:
        """Raises InvalidArgument for more positions than the checkpoint has."""
        device = resolve_device(settings.device)
        dtype = choose_dtype(settings.dtype, device)
        self.metrics = DecoderMetrics()
        order = EngineOrder(
            context.name, load, folder, device, dtype, settings.stream_weights, settings.engine_config()
        )
        apart = settings.engine_process == "true" or (settings.engine_process == "auto" and device.type == "cuda")
        process = start_engine_process(order, self.metrics, self._end) if apart else None
        if process is not None:
            self.engine, self.info = process, process.info
        else:
            self.engine, self.info = build_engine(order, self.metrics)
        context.log.info(
            "%s: %s on %s, %s, decode buckets %s, %d CUDA graphs, engine in %s",
            *(context.name, folder, device, dtype, self.info.buckets, self.info.graphs),
            f"process {process.pid}" if process is not None else "the stage's process",
        )
        self.outbox = Outbox("decoder-outbox")

    def _end(self) -> None:
        """End with the engine's process, as one that had the engine inside would: the launcher looks for dead stages.
        What its streams were told leaves first.
        """
        threading.Timer(_LAST_WORDS_SECONDS, os._exit, (1,)).start()

    def close(self) -> None:
        """Stop everything; Triton calls it when no request is left."""
        self.engine.close()
        self.outbox.close()


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """``auto``: float32 on a CPU, bfloat16 on a GPU."""
    return DTYPES.get(name, torch.float32 if device.type == "cpu" else torch.bfloat16)
