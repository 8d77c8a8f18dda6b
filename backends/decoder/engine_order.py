"""What an engine is made from, and what a stage has to know of one: the same in this process and across a border."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.decoder.metrics import DecoderMetrics
from backends.device import use_threads
from backends.errors import InvalidArgument
from backends.models.protocol import DecoderModel
from backends.models.sampling_defaults import SamplingDefaults
from backends.rows import RowSpec

#: Makes the model of a folder: (folder, device, dtype, stream_weights) -> model. Has to pickle.
LoadModel = Callable[[Path, torch.device, torch.dtype, bool], DecoderModel]

_DEFAULT_POSITIONS = 1024


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts of a running engine. ``graphs``: CUDA graphs of decode steps."""

    rows: RowSpec
    defaults: SamplingDefaults
    max_positions: int
    buckets: tuple[int, ...]
    graphs: int


@dataclass(frozen=True, slots=True)
class EngineOrder:
    """``config.max_positions`` 0: what the checkpoint has, up to 1024. ``name``: of the stage, for errors."""

    name: str
    load: LoadModel
    folder: Path
    device: torch.device
    dtype: torch.dtype
    stream_weights: bool
    config: EngineConfig


def build_engine(order: EngineOrder, metrics: DecoderMetrics) -> tuple[DecoderEngine, EngineInfo]:
    """Load the model and start its engine, in this process.

    Raises InvalidArgument for more positions than the checkpoint has, and what loading raises.
    """
    config = order.config
    use_threads(config.num_threads, order.device)
    model = order.load(order.folder, order.device, order.dtype, order.stream_weights)
    positions = config.max_positions or min(model.max_positions, _DEFAULT_POSITIONS)
    if positions > model.max_positions:
        raise InvalidArgument(
            f"{order.name}.max_positions",
            f"{positions} is above {model.max_positions}, the limit of the checkpoint",
        )
    engine = DecoderEngine(model, replace(config, max_positions=positions), metrics)
    return engine, EngineInfo(model.rows, model.defaults, positions, engine.buckets, engine.graphs)
