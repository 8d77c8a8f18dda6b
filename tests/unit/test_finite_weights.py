"""Weights that are not finite are refused at load, whichever way an architecture takes them."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from backends.checkpoint_files import load_weights, weight_files
from backends.errors import CheckpointError
from backends.models.finite import check_finite
from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from backends.models.moss_tts_local import MossTTSLocal
from backends.models.named_tensors import NamedTensors

CPU = torch.device("cpu")
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_value_is_found_wherever_it_stands(dtype: torch.dtype, bad: float) -> None:
    for size in (1, 7, 4099):  # shorter than a vector register, and no multiple of one
        for place in {0, size // 2, size - 1}:
            tensor = torch.zeros(size, dtype=dtype)
            tensor[place] = bad
            with pytest.raises(
                CheckpointError, match=rf"^INVALID_CHECKPOINT here: w holds 1 of {size} values that are"
            ):
                check_finite(tensor, "w", "here", dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_largest_values_pass(dtype: torch.dtype) -> None:
    limit = torch.finfo(dtype).max
    check_finite(torch.tensor([limit, -limit, 0.0] * 100, dtype=dtype), "w", "here", dtype)


def test_what_is_no_floating_point_number_passes() -> None:
    for tensor in (torch.zeros(0), torch.tensor([2**62]), torch.tensor([True]), torch.ones(3, dtype=torch.float8_e5m2)):
        check_finite(tensor, "w", "here", torch.float16)


def test_an_8_bit_float_may_be_bad_as_well() -> None:
    with pytest.raises(CheckpointError, match="w holds 1 of 1 values that are not finite"):
        check_finite(torch.tensor([math.nan]).to(torch.float8_e4m3fn), "w", "here", torch.float32)


def test_what_the_dtype_of_the_model_cannot_hold_is_refused(tmp_path: Path) -> None:
    sentence = r"weight holds 70000, above 65504, the largest number in torch\.float16$"
    tensors = {"weight": torch.tensor([[-7e4]])}
    with pytest.raises(CheckpointError, match=sentence):
        NamedTensors(dict(tensors), "here", CPU, torch.float16).take("weight", 1, 1)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=sentence):
        load_weights(nn.Linear(1, 1, bias=False).half(), tmp_path, torch.float16)


@pytest.mark.parametrize(
    ("part", "name", "load"),
    [
        ("tts", "transformer.layers.3.mlp.up_proj.weight", lambda f: MossTTSLocal.load(f, CPU, torch.float32)),
        ("codec", "quantizer.output_proj.bias", lambda f: MossAudioTokenizer.load(f)),
    ],
)
def test_a_damaged_checkpoint_does_not_load(
    voice: Path, tmp_path: Path, part: str, name: str, load: Callable[[Path], object]
) -> None:
    folder = shutil.copytree(voice / part, tmp_path / part)
    path = next(path for path in weight_files(folder) if name in load_file(path))
    tensors = load_file(path)
    tensors[name].view(-1)[5] = math.nan
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert caught.value.args[0] == f"{folder}: {name} holds 1 of {tensors[name].numel()} values that are not finite"
