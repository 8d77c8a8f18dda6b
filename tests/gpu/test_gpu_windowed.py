"""The windowed engine on a GPU: the promise of the batch shape, with the kernels that a GPU has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backends.errors import VoxstageError
from backends.models.codec import WINDOW_CODECS
from backends.models.window_codec import WindowCodec
from backends.vocoder.engine import CodeChunk
from backends.vocoder.windowed import WindowedVocoder
from tests.codec_folders import dac_model, higgs_model, save

pytestmark = pytest.mark.gpu
STEP_STREAMS = 16
#: Against the CPU and against one window, in standard deviations of the signal.
BOUND = 1e-4


@pytest.fixture(scope="module", params=["dac", "higgs_audio_v2_tokenizer"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Named after its ``model_type``."""
    model = dac_model() if request.param == "dac" else higgs_model()
    return save(model, tmp_path_factory.mktemp("gpu") / request.param)


@pytest.fixture(scope="module")
def codec(folder: Path) -> WindowCodec:
    return WINDOW_CODECS[folder.name].load(folder, "cuda")


def random_codes(codec: WindowCodec, frames: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(codec.entries, (frames, codec.codebooks), generator=generator)


def audio_of(*results: torch.Tensor | VoxstageError) -> torch.Tensor:
    for result in results:
        assert isinstance(result, torch.Tensor), result
    return torch.cat([result for result in results if isinstance(result, torch.Tensor)])


@pytest.mark.parametrize("frames", [1, 7, 26, 45, 70])
def test_a_window_alone_has_the_bits_of_a_full_batch_at_every_place(codec: WindowCodec, frames: int) -> None:
    vocoder = WindowedVocoder(codec, STEP_STREAMS)
    items = [random_codes(codec, frames, seed) for seed in range(STEP_STREAMS)]
    slots = [vocoder.open() for _ in items]
    together = vocoder.decode_each([CodeChunk(slot, item, True) for slot, item in zip(slots, items, strict=True)])
    for item, result in zip(items, together, strict=True):
        assert torch.equal(audio_of(result), vocoder.decode_whole(item))
    for place in range(0, STEP_STREAMS, 5):
        company = [*items[:place], items[3], *items[place + 1 :]]
        vocoder = WindowedVocoder(codec, STEP_STREAMS)
        results = vocoder.decode_each([CodeChunk(vocoder.open(), item, True) for item in company])
        assert torch.equal(audio_of(results[place]), audio_of(together[3])), place


def test_alone_equals_among_fifteen_others(codec: WindowCodec) -> None:
    """One schedule, 16 streams that start one chunk after another."""
    sizes = [12, 6, 6, 25, 6]
    streams = [random_codes(codec, sum(sizes), 50 + seed) for seed in range(STEP_STREAMS)]
    vocoder = WindowedVocoder(codec, STEP_STREAMS)
    slots = [vocoder.open() for _ in streams]
    made: list[list[torch.Tensor]] = [[] for _ in streams]
    for turn in range(STEP_STREAMS + len(sizes)):
        live = [n for n in range(STEP_STREAMS) if 0 <= turn - n < len(sizes)]
        chunks = [
            CodeChunk(slots[n], streams[n].split(sizes)[turn - n], turn - n == len(sizes) - 1) for n in reversed(live)
        ]
        for n, result in zip(reversed(live), vocoder.decode_each(chunks), strict=True):
            made[n].append(audio_of(result))
    for n, codes in enumerate(streams):
        alone = WindowedVocoder(codec, STEP_STREAMS)
        slot = alone.open()
        parts = codes.split(sizes)
        wanted = [alone.decode_each([CodeChunk(slot, part, part is parts[-1])])[0] for part in parts]
        assert torch.equal(torch.cat(made[n]), audio_of(*wanted)), n


def test_windows_join_to_one_window_and_to_the_cpu(codec: WindowCodec, folder: Path) -> None:
    vocoder = WindowedVocoder(codec, STEP_STREAMS)
    codes = random_codes(codec, 60, 9)
    whole = vocoder.decode_whole(codes).cpu()
    reference = WINDOW_CODECS[folder.name].load(folder).decode(codes)
    difference = float((whole - reference).abs().max() / reference.std())
    joined = vocoder.measure_exactness((4, 25))
    print(f"\n{folder.name}: {difference:.1e} sd from the CPU; chunked {joined:.1e} of the largest sample")
    assert whole.shape == reference.shape
    assert difference <= BOUND and joined <= BOUND
