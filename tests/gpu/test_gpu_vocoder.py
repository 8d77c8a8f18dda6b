"""The streaming vocoder on a GPU, with random weights of the small voice's sizes: graphs, load, chunks, faults."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backends.errors import Internal
from backends.json_file import read_json
from backends.kernels import norm, ring
from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from backends.models.named_tensors import NamedTensors, RandomTensors
from backends.vocoder.engine import CodeChunk
from backends.vocoder.graphs import GraphOptions
from backends.vocoder.streaming import StreamingVocoder
from tests import ring_cases

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
pytest.importorskip("triton", reason="triton is not installed")
pytestmark = pytest.mark.gpu
STREAMS, FRAMES = 16, 25
DTYPES = [torch.bfloat16, torch.float32]
NAMES = ["bfloat16", "float32"]
CUTS = [[200], [1] * 200, [31, 1, 8, 30, 30, 17, 31, 31, 21]]


@pytest.fixture(scope="module", params=DTYPES, ids=NAMES)
def codec(request: pytest.FixtureRequest, voice: Path) -> MossAudioTokenizer:
    return MossAudioTokenizer.dummy(voice / "codec", "cuda:0", dtype=request.param)


def engine(codec: MossAudioTokenizer, graphs: GraphOptions | None, **options: Any) -> StreamingVocoder:
    vocoder = StreamingVocoder(codec, STREAMS, slots=32, max_step_frames=FRAMES)
    vocoder.prepare(graphs, **options)
    return vocoder


@pytest.fixture(scope="module")
def graphed(codec: MossAudioTokenizer) -> StreamingVocoder:
    vocoder = engine(codec, GraphOptions(FRAMES), deterministic=False)
    assert vocoder.buckets == (1, 2, 4, 8, 16) and vocoder.graphs == 5 * FRAMES
    return vocoder


@pytest.fixture(scope="module")
def eager(codec: MossAudioTokenizer) -> StreamingVocoder:
    vocoder = engine(codec, None, deterministic=False)
    assert vocoder.graphs == 0
    return vocoder


def random_codes(frames: int, seed: int) -> Tensor:
    return torch.randint(1024, (frames, 12), generator=torch.Generator().manual_seed(seed))


def stream(vocoder: StreamingVocoder, codes: Tensor, sizes: list[int]) -> Tensor:
    slot = vocoder.open()
    made = [vocoder.decode([slot], part[None])[0] for part in codes.split(sizes)]
    vocoder.close(slot)
    return torch.cat(made)


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize("sizes", CUTS, ids=len)
def test_ring_equals_float64(dtype: torch.dtype, block: int, sizes: list[int]) -> None:
    case = ring_cases.RingCase("cuda", dtype, heads=3, block=block, lines=270)
    ring_cases.check_ring(ring, case, sizes)


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("block", [16, 32, 64])
def test_ring_does_not_see_cuts_or_company(dtype: torch.dtype, block: int) -> None:
    case = ring_cases.RingCase("cuda", dtype, heads=3, block=block, lines=270)
    ring_cases.check_ring_invariance(ring, case, CUTS)


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("width", [192, 768, 1280])
def test_accumulate_layer_norm(dtype: torch.dtype, width: int) -> None:
    ring_cases.check_accumulate(norm, "cuda", dtype, 37, width)


def test_every_graph_equals_its_eager_step(graphed: StreamingVocoder, eager: StreamingVocoder) -> None:
    """Three steps a shape, so that the state which a replay leaves is the eager one too."""
    for count in graphed.buckets:
        for frames in range(1, FRAMES + 1):
            made = []
            for vocoder in (graphed, eager):
                slots = [vocoder.open() for _ in range(count)]
                codes = torch.stack([random_codes(3 * frames, 1000 * count + 10 * frames + i) for i in range(count)])
                made.append([vocoder.decode(slots, part) for part in codes.split(frames, dim=1)])
                for slot in slots:
                    vocoder.close(slot)
            for mine, other in zip(*made, strict=True):
                assert torch.equal(mine, other), (count, frames)
    counted = graphed.metrics.step_shapes.values
    assert all(counted[str(b), str(t), "graph"] >= 3 for b in graphed.buckets for t in range(1, FRAMES + 1))
    assert not any(run == "eager" for _, _, run in counted)


def test_a_graph_survives_other_shapes_and_allocations(graphed: StreamingVocoder) -> None:
    codes = random_codes(11, 5)
    first = stream(graphed, codes, [5, 1, 5])
    junk = [torch.full((1 << 22,), float("nan"), device="cuda") for _ in range(8)]
    del junk
    assert torch.equal(stream(graphed, codes, [5, 1, 5]), first)
    assert not first.isnan().any()


def among_others(vocoder: StreamingVocoder, codes: Tensor, sizes: list[int], others: int, seed: int) -> Tensor:
    """One stream whose steps are shared by up to ``others`` streams that join and leave, at a random place."""
    rng = random.Random(seed)
    slot, made = vocoder.open(), []
    peers: list[int] = []
    for turn, part in enumerate(codes.split(sizes)):
        while len(peers) < others and rng.random() < 0.8:
            peers.append(vocoder.open())
        while peers and rng.random() < 0.3:
            vocoder.close(peers.pop(rng.randrange(len(peers))))
        chunks = [CodeChunk(p, random_codes(len(part), 31 * turn + p)) for p in peers]
        place = rng.randint(0, len(chunks))
        chunks.insert(place, CodeChunk(slot, part))
        audio = vocoder.decode_each(chunks)[place]
        assert isinstance(audio, Tensor), audio
        made.append(audio)
    for used in (slot, *peers):
        vocoder.close(used)
    return torch.cat(made)


@pytest.mark.parametrize("graphs", [GraphOptions(FRAMES), None], ids=["graph", "eager"])
def test_load_does_not_change_a_bit(codec: MossAudioTokenizer, graphs: GraphOptions | None) -> None:
    vocoder = engine(codec, graphs)
    print(f"\nbuckets that agree bit for bit: {vocoder.buckets}")
    sizes = [4, 5, 6, 8, 10, 12, 15, 19, 24, 25, 25, 1, 2, 3, 7]
    codes = random_codes(sum(sizes), 77)
    alone = stream(vocoder, codes, sizes)
    for seed in range(6):
        assert torch.equal(among_others(vocoder, codes, sizes, STREAMS - 1, seed), alone), seed


def test_chunked_against_whole(codec: MossAudioTokenizer, graphed: StreamingVocoder) -> None:
    """The difference to steps of one other size: no drift over 1,000 frames, and within the bound of the dtype.

    Measured on an H200, torch 2.11: 5e-7 in float32; 3e-7 in bfloat16, where products this small were the same at every
    size (those of the full-size codec are not).
    """
    codes, rng = random_codes(1000, 8), random.Random(0)
    whole = stream(graphed, codes, [FRAMES] * 40)
    full_scale = float(whole.abs().max())
    sizes: list[int] = []
    while sum(sizes) < 1000:
        sizes.append(min(rng.randint(1, FRAMES), 1000 - sum(sizes)))
    for name, cut in (("random", sizes), ("single", [1] * 1000)):
        apart = (stream(graphed, codes, cut) - whole).abs() / full_scale
        early, late = (float(part.max()) for part in (apart[: 100 * graphed.hop], apart[-100 * graphed.hop :]))
        print(f"\n{codec.dtype} {name}: {early:.1e} of full scale in the first 100 frames, {late:.1e} in the last 100")
        assert max(early, late) <= (1e-5 if codec.dtype == torch.float32 else 1e-3)
        assert late <= 2 * max(early, 1e-7)


def test_equals_the_cpu(voice: Path) -> None:
    """The rings against the other implementation of the same formula, both in float32, with the same weights."""
    drawn: dict[str, Tensor] = {}

    class Recorder(RandomTensors):
        def take(self, name: str, *shape: int) -> Tensor:
            drawn[name] = super().take(name, *shape)
            return drawn[name]

    config = read_json(voice / "codec" / "config.json")
    on_cpu = MossAudioTokenizer(config, Recorder(0, torch.device("cpu"), torch.float32))
    on_gpu = MossAudioTokenizer(config, NamedTensors(drawn, "drawn", torch.device("cuda:0"), torch.float32))
    codes = random_codes(120, 3)
    want = on_cpu.decode(codes)
    got = stream(engine(on_gpu, None), codes, [25, 25, 1, 4, 20, 25, 20])
    assert float((got - want).abs().max() / want.abs().max()) < 1e-5


class Broken:
    """A graph whose replay fails."""

    def replay(self) -> None:
        raise RuntimeError("replay failed on purpose")


def test_a_failed_replay_fails_its_step_only(codec: MossAudioTokenizer, eager: StreamingVocoder) -> None:
    vocoder = engine(codec, GraphOptions(8))
    streams = vocoder.buckets[-1]
    broken, peer = vocoder.open(), vocoder.open()
    codes = [random_codes(9, 1), random_codes(9, 2)]
    wanted = stream(vocoder, codes[1], [4, 2, 3])
    first = vocoder.decode_each([CodeChunk(broken, codes[0][:5]), CodeChunk(peer, codes[1][:4])])
    graphs = vocoder._graphs._graphs
    graphs.update({(b, 4): (Broken(), *graphs[b, 4][1:]) for b in vocoder.buckets})  # type: ignore[misc]
    second = vocoder.decode_each([CodeChunk(broken, codes[0][5:]), CodeChunk(peer, codes[1][4:6])])
    assert isinstance(second[0], Internal) and "replay failed on purpose" in str(second[0])
    assert vocoder.graphs == 0 and vocoder.metrics.graph_failures.value == 1
    vocoder.close(broken)
    third = vocoder.decode_each([CodeChunk(peer, codes[1][6:])])
    audio = [first[1], second[1], third[0]]
    assert torch.equal(torch.cat([part for part in audio if isinstance(part, Tensor)]), wanted), "a peer was touched"
    assert vocoder.metrics.step_shapes.values[str(streams), "3", "eager"] == 1
    assert torch.equal(stream(vocoder, codes[1], [4, 2, 3]), wanted), "the next stream"


def test_a_fault_of_the_copy_back_is_a_fault_of_the_replay(
    codec: MossAudioTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocoder = engine(codec, GraphOptions(4))
    slot = vocoder.open()
    synchronize = torch.cuda.Stream.synchronize

    def fails(stream: torch.cuda.Stream) -> None:
        synchronize(stream)
        raise RuntimeError("an asynchronous error")

    monkeypatch.setattr(torch.cuda.Stream, "synchronize", fails)
    result = vocoder.decode_each([CodeChunk(slot, random_codes(2, 0))])
    assert isinstance(result[0], Internal) and "an asynchronous error" in str(result[0])
    assert vocoder.graphs == 0 and vocoder.metrics.graph_failures.value == 1


def test_a_failed_capture_serves_eagerly(codec: MossAudioTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused:
        def __init__(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("capture failed on purpose")

    monkeypatch.setattr(torch.cuda, "graph", Refused)
    vocoder = engine(codec, GraphOptions(4))
    assert vocoder.graphs == 0 and vocoder.metrics.graph_failures.value == 1
    assert stream(vocoder, random_codes(6, 0), [4, 2]).shape == (6 * 1920,)


def test_the_memory_guard_captures_nothing_when_told_so(codec: MossAudioTokenizer) -> None:
    vocoder = engine(codec, GraphOptions(4, min_free_bytes=1 << 50))
    assert vocoder.graphs == 0 and vocoder.metrics.graph_failures.value == 0
    assert stream(vocoder, random_codes(6, 0), [4, 2]).shape == (6 * 1920,)


def test_capture_is_before_serving_only(codec: MossAudioTokenizer) -> None:
    vocoder = engine(codec, GraphOptions(4))
    vocoder.open()
    with pytest.raises(Internal, match="before serving only"):
        vocoder.prepare(GraphOptions(4))


def test_a_step_does_not_wait_for_the_device(codec: MossAudioTokenizer) -> None:
    """``set_sync_debug_mode`` raises at any call inside a step that waits; only the end of a step may."""
    vocoder = engine(codec, None)
    inputs: Callable[[int], Tensor] = lambda frames: vocoder._pack(  # noqa: E731
        random_codes(frames, 0).expand(STREAMS, -1, -1), vocoder.state.scratch, True
    ).cuda()
    for packed in [inputs(frames) for frames in (1, 4, 25)]:
        torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.inference_mode():
                vocoder._packed_step(packed, STREAMS)
        finally:
            torch.cuda.set_sync_debug_mode("default")
