"""The audio encoder on a GPU: torch's codes, a CUDA graph's, and a TensorRT engine's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.encoder.build import EngineBuild, EnginePlan
from backends.encoder.builder import load_runtime
from backends.encoder.engine import EngineEncoder
from backends.encoder.export import compare, sample_clips
from backends.encoder.passport import Passport
from backends.encoder.runtime import TorchEncoder
from backends.errors import InvalidArgument
from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from benchmarks.encoder import Graphs

pytestmark = pytest.mark.gpu
LENGTHS = (1, 2, 9, 24, 25, 26, 60, 125)
#: As in tests/unit/test_encoder_export.py: a code may differ where two entries are equally near within rounding.
SHARE = 0.999


@pytest.fixture(scope="module")
def codec(voice: Path) -> MossAudioTokenizer:
    """On the CPU: the reference."""
    return MossAudioTokenizer.load(voice / "codec")


@pytest.fixture(scope="module")
def clips(codec: MossAudioTokenizer) -> list[np.ndarray]:
    return [clip for seed in range(4) for clip in sample_clips(codec, LENGTHS, seed)]


def test_torch_on_a_gpu_has_the_codes_of_the_cpu(
    voice: Path, codec: MossAudioTokenizer, clips: list[np.ndarray]
) -> None:
    encoder = TorchEncoder(voice / "codec", torch.device("cuda", 0))
    found = compare(encoder.encode, codec, clips)
    print(f"\n{found.equal_codes} of {found.codes} codes equal")
    assert found.share >= SHARE
    assert all(np.array_equal(encoder.encode(clip), encoder.encode(clip)) for clip in clips)


def test_a_graph_equals_eager(voice: Path, clips: list[np.ndarray]) -> None:
    encoder = TorchEncoder(voice / "codec", torch.device("cuda", 0))
    graphs = Graphs(encoder.codec, torch.device("cuda", 0))
    assert all(np.array_equal(graphs.encode(clip[None])[0], encoder.encode(clip)) for clip in clips)


@pytest.fixture(scope="module")
def engine(voice: Path, codec: MossAudioTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A TensorRT engine of the voice for this GPU, and its passport."""
    try:
        trt = load_runtime("tensorrt")
    except InvalidArgument as error:
        pytest.skip(str(error))
    plan = EnginePlan(voice / "codec", "tensorrt", "fp32", 30.0, 8, (), tmp_path_factory.mktemp("engine"))
    passport = EngineBuild(plan, print).run()
    assert EngineBuild(plan, print).verdict() is None
    return EngineEncoder(trt, plan.engine.read_bytes(), codec.codebooks, codec.hop), passport


def test_an_engine_has_the_codes_of_torch(engine: Any, codec: MossAudioTokenizer, clips: list[np.ndarray]) -> None:
    encoder, passport = engine
    found = compare(encoder.encode, codec, clips)
    print(f"\n{found.equal_codes} of {found.codes} codes equal")
    assert found.share >= SHARE
    assert isinstance(passport, Passport) and passport.agreement is not None and passport.agreement >= SHARE


@pytest.mark.parametrize("frames", [1, 25, 125])
def test_an_engine_gives_a_clip_the_same_codes_in_every_batch(
    engine: Any, codec: MossAudioTokenizer, frames: int
) -> None:
    encoder, _ = engine
    batch = np.stack(sample_clips(codec, [frames] * 8))
    solo = [encoder.encode(clip) for clip in batch]
    for size in (2, 3, 8):
        together = encoder.encode_batch(batch[:size])
        assert all(np.array_equal(together[i], solo[i]) for i in range(size))
