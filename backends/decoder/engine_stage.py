"""A decoder engine behind a stage: what ``tts_decoder`` and ``asr_decoder`` have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from backends.decoder.engine import DecoderEngine
from backends.decoder.metrics import DecoderMetrics
from backends.decoder.settings import EngineSettings
from backends.device import resolve_device, use_threads
from backends.errors import InvalidArgument
from backends.models.protocol import DecoderModel
from backends.outbox import Outbox

if TYPE_CHECKING:
    from backends.stage import StageContext

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

#: Makes the model of a folder: (folder, device, dtype, stream_weights) -> model.
LoadModel = Callable[[Path, torch.device, torch.dtype, bool], DecoderModel]


class EngineStage:
    """Owns the engine and the outbox that responses leave from."""

    def __init__(self, settings: EngineSettings, context: StageContext, folder: Path, load: LoadModel) -> None:
        """Raises InvalidArgument for more positions than the checkpoint has; 0 of them: what it has, up to 1024."""
        device = resolve_device(settings.device)
        use_threads(settings.num_threads, device)
        dtype = choose_dtype(settings.dtype, device)
        self.metrics = DecoderMetrics()
        model = load(folder, device, dtype, settings.stream_weights)
        self.max_positions = settings.max_positions or min(model.max_positions, 1024)
        if self.max_positions > model.max_positions:
            raise InvalidArgument(
                f"{context.name}.max_positions",
                f"{self.max_positions} is above {model.max_positions}, the limit of the checkpoint",
            )
        self.engine = DecoderEngine(
            model, replace(settings.engine_config(), max_positions=self.max_positions), self.metrics
        )
        context.log.info(
            "%s: %s on %s, %s, decode buckets %s, %d CUDA graphs",
            *(context.name, folder, device, dtype, self.engine.buckets, self.engine.graphs),
        )
        self.outbox = Outbox("decoder-outbox")

    def close(self) -> None:
        """Stop everything; Triton calls it when no request is left."""
        self.engine.close()
        self.outbox.close()


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """``auto``: float32 on a CPU, bfloat16 on a GPU."""
    return DTYPES.get(name, torch.float32 if device.type == "cpu" else torch.bfloat16)
