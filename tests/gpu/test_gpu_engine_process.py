"""An engine on a GPU in a process of its own: the same codes as in this one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from backends.decoder.engine_order import EngineOrder, build_engine
from backends.decoder.engine_process import EngineProcess
from backends.decoder.metrics import DecoderMetrics
from backends.models.moss_tts_local import MossTTSLocal
from tests.gpu.test_gpu_engine import config, make

pytestmark = pytest.mark.gpu
REQUESTS = 40


def test_the_codes_are_those_of_an_engine_in_this_process(voice: Path) -> None:
    device = torch.device("cuda:0")
    order = EngineOrder("tts_decoder", MossTTSLocal.dummy, voice / "tts", device, torch.bfloat16, True, config())
    engine, info = build_engine(order, DecoderMetrics())
    metrics = DecoderMetrics()
    apart = EngineProcess(order, metrics)
    found = []
    for each in (engine, apart):
        model = engine.model
        assert isinstance(model, MossTTSLocal)
        requests = [make(model, stream) for stream in range(REQUESTS)]
        for _, request in requests:
            each.submit(request)
        for listener, _ in requests:
            assert listener.done.wait(120) and not listener.error
        found.append([np.concatenate(listener.codes) for listener, _ in requests])
        each.close()
    assert (apart.info.buckets, apart.info.graphs) == (info.buckets, info.graphs) and info.graphs
    assert all(map(np.array_equal, *found))
    assert metrics.graph_replays.value >= metrics.steps.value * 0.9 > 0
