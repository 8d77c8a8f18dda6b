"""The decoder engine on a GPU, with random weights of the small voice's sizes: every switch, the same codes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.decoder.chunks import ChunkSchedule
from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.decoder.request import Chunk, DecodeRequest
from backends.decoder.sampler import SamplingParams
from backends.errors import VoxstageError
from backends.models.moss_tts_local import MossTTSLocal
from tests.gpu.no_sync import forbid_sync

pytestmark = pytest.mark.gpu
REQUESTS, SLOTS = 100, 64


class Listener:
    """Collects one stream."""

    def __init__(self) -> None:
        self.codes: list[np.ndarray[Any, Any]] = []
        self.chunk_count = 0
        self.reason, self.error = "", ""
        self.done, self.started = threading.Event(), threading.Event()

    def chunk(self, chunk: Chunk) -> None:
        self.codes.append(chunk.codes)
        self.started.set()
        if chunk.final:
            self.reason, self.error = chunk.finish_reason, chunk.error
            self.done.set()

    def fail(self, error: VoxstageError) -> None:
        self.error = str(error)
        self.done.set()

    def end(self) -> None:
        self.done.set()


@pytest.fixture(scope="module")
def model(voice: Path) -> MossTTSLocal:
    return MossTTSLocal.dummy(voice / "tts", torch.device("cuda:0"), torch.bfloat16)


def make(model: MossTTSLocal, stream: int, frames: int | None = None) -> tuple[Listener, DecodeRequest]:
    """A prompt of random text ids; two neighbours share theirs, so that the prefix cache has something to find."""
    generator = torch.Generator().manual_seed(stream // 2)
    length = int(torch.randint(20, 150, (1,), generator=generator))
    rows = torch.full((length, model.rows.width), model.rows.pad_code, dtype=torch.int64)
    rows[:, 0] = torch.randint(0, 250, (length,), generator=generator)
    sampling = SamplingParams(stream, 0.0 if stream % 3 == 0 else 0.9, 0.9, 40, 0.8)
    listener = Listener()
    frames = 5 + stream % 20 if frames is None else frames
    return listener, DecodeRequest(stream + 1, rows, sampling, frames, ChunkSchedule(4, 25), listener)


def run(engine: DecoderEngine, model: MossTTSLocal, count: int, at_once: int) -> list[np.ndarray[Any, Any]]:
    listeners: list[Listener] = []
    for stream in range(count):
        listener, request = make(model, stream)
        if stream >= at_once:
            assert listeners[stream - at_once].done.wait(120)
        engine.submit(request)
        listeners.append(listener)
    for listener in listeners:
        assert listener.done.wait(120)
        assert not listener.error, listener.error
    return [np.concatenate(listener.codes) for listener in listeners]


def config(**switches: Any) -> EngineConfig:
    return EngineConfig(
        **{"max_running": SLOTS, "max_waiting": 1000, "max_positions": 256, "prefill_rows": 64, "prefill_pieces": 4}
        | switches
    )


@pytest.fixture(scope="module")
def reference(model: MossTTSLocal) -> list[np.ndarray[Any, Any]]:
    """One by one, everything off."""
    engine = DecoderEngine(model, config(lookahead=False, cuda_graph=False, prefix_cache=False))
    codes = run(engine, model, REQUESTS, 1)
    engine.close()
    return codes


SWITCHES = [
    {"lookahead": lookahead, "cuda_graph": graph, "prefix_cache": cache}
    for lookahead in (False, True)
    for graph in (False, True)
    for cache in (False, True)
] + [{"kv_pages": 20}]


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_no_switch_and_no_load_changes_a_code(
    model: MossTTSLocal, reference: list[np.ndarray[Any, Any]], switches: dict[str, Any]
) -> None:
    engine = DecoderEngine(model, config(**switches))
    assert (engine.graphs > 0) == switches.get("cuda_graph", True)
    for at_once in (64, 16, 4) if len(switches) > 1 else (64, 1):  # cold, then warm
        codes = run(engine, model, REQUESTS, at_once)
        same = [np.array_equal(a, b) for a, b in zip(codes, reference, strict=True)]
        assert all(same), f"{same.count(False)} of {REQUESTS} differ at {at_once} at once"
        engine.check_idle()
    if switches.get("prefix_cache", True):
        assert engine.metrics.prefix_hits.value > 0
    if "kv_pages" in switches:
        assert engine.metrics.retracted.value > 0
    if switches.get("cuda_graph", True):
        assert engine.metrics.graph_replays.value >= engine.metrics.steps.value * 0.9
    engine.close()


def test_a_step_does_not_synchronise(model: MossTTSLocal, monkeypatch: pytest.MonkeyPatch) -> None:
    """``set_sync_debug_mode`` raises at any call that waits for the device, launch by launch, eager and graph."""
    for graph in (False, True):
        engine = DecoderEngine(model, config(cuda_graph=graph))
        faults = forbid_sync(engine, monkeypatch)
        run(engine, model, 8, 8)
        assert not faults
        engine.close()


@pytest.fixture
def engine(model: MossTTSLocal) -> Iterator[DecoderEngine]:
    engine = DecoderEngine(model, config(max_running=4))
    yield engine
    engine.close()


def test_a_failed_replay_falls_back_to_eager_for_good(engine: DecoderEngine, model: MossTTSLocal) -> None:
    expected = run(engine, model, 6, 4)
    assert engine.graphs == len(engine.buckets) * 2

    class Broken:
        def replay(self) -> None:
            raise RuntimeError("replay failed on purpose")

    graphs = engine._runner._graphs
    assert graphs is not None
    graphs._graphs = {key: (Broken(), ids, out) for key, (_, ids, out) in graphs._graphs.items()}  # type: ignore[misc]
    assert all(np.array_equal(a, b) for a, b in zip(run(engine, model, 6, 4), expected, strict=True))
    assert engine.metrics.graph_failures.value == 1 and engine.graphs == 0


def test_a_failed_replay_of_a_pass_reads_prompts_eagerly_to_the_same_codes(
    engine: DecoderEngine, model: MossTTSLocal
) -> None:
    expected = run(engine, model, 6, 4)
    assert engine.prefill_graph and engine.metrics.prefill_graph_replays.value == engine.metrics.prefill_passes.value

    class Broken:
        def replay(self) -> None:
            raise RuntimeError("replay failed on purpose")

    each = engine._runner._pass
    assert each is not None
    each._graph = Broken()  # type: ignore[assignment]
    assert all(np.array_equal(a, b) for a, b in zip(run(engine, model, 6, 4), expected, strict=True))
    assert engine.metrics.graph_failures.value == 1 and not engine.prefill_graph and engine.graphs > 0


def test_a_failed_capture_serves_eagerly(model: MossTTSLocal, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused:
        def __init__(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("capture failed on purpose")

    monkeypatch.setattr(torch.cuda, "graph", Refused)
    engine = DecoderEngine(model, config(max_running=4))
    assert engine.graphs == 0 and not engine.prefill_graph and engine.metrics.graph_failures.value == 2
    run(engine, model, 4, 4)
    engine.close()


def test_the_memory_guard_captures_nothing_when_told_so(model: MossTTSLocal) -> None:
    engine = DecoderEngine(model, config(max_running=4, cuda_graph_min_free_gib=10_000.0))
    assert engine.graphs == 0 and not engine.prefill_graph and engine.metrics.graph_failures.value == 0
    run(engine, model, 4, 4)
    engine.close()
