"""The Higgs Audio v2 tokenizer against transformers' model on a small saved checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backends.errors import CheckpointError, InvalidArgument
from backends.models.codec import load_codec
from backends.models.higgs_audio_tokenizer import HiggsAudioTokenizer
from tests.codec_folders import higgs_model, save

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model() -> Any:
    return higgs_model()


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(model, tmp_path_factory.mktemp("higgs"))


def random_codes(frames: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(1024, (frames, 8), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("frames", [1, 2, 30])
@torch.inference_mode()
def test_decode_equals_transformers(model: Any, folder: Path, frames: int) -> None:
    """Not bit for bit: the projections are folded into tables, which sums in another order."""
    codec = HiggsAudioTokenizer.load(folder)
    codes = random_codes(frames, frames)
    audio, wanted = codec.decode(codes), model.decode(codes.T[None]).audio_values[0, 0]
    assert audio.shape == wanted.shape == (frames * 960,), "odd strides lose nothing here"
    difference = float((audio - wanted).abs().max() / wanted.std())
    print(f"\n{frames} frames: largest difference {difference:.1e} of the standard deviation")
    assert difference <= 5e-5


def test_the_format_says_its_sizes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And loading it makes room for the kernels of all window lengths, unless the environment says how much."""
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "99")
    load_codec(folder)
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "99"
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    codec = load_codec(folder)
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "8192"
    assert isinstance(codec, HiggsAudioTokenizer)
    assert (codec.hop, codec.sampling_rate, codec.frame_rate) == (960, 24000, 25)
    assert (codec.codebooks, codec.entries, codec.channels) == (8, 1024, 1)
    assert (codec.look_ahead, codec.look_back) == (10, 10)


def test_begin_and_end_sound_like_code_0_and_nothing_else_is_accepted(folder: Path) -> None:
    codec = HiggsAudioTokenizer.load(folder)
    marked, plain = random_codes(12), random_codes(12)
    marked[0, 1:], plain[0, 1:] = 1024, 0
    marked[11, :3], plain[11, :3] = 1025, 0
    assert torch.equal(codec.decode(marked), codec.decode(plain))
    for bad, limit in ((1026, "above 1025"), (-1, "below 0")):
        marked[5, 5] = bad
        with pytest.raises(InvalidArgument, match=f"INVALID_ARG codes: {bad} is {limit}"):
            codec.decode(marked)


@torch.inference_mode()
def test_fewer_codebooks(model: Any, folder: Path) -> None:
    codes = random_codes(6)[:, :3]
    wanted = model.decode(codes.T[None]).audio_values[0, 0]
    audio = HiggsAudioTokenizer.load(folder, codebooks=3).decode(codes)
    assert (audio - wanted).abs().max() <= 5e-5 * wanted.std()


def test_weight_norm_split_is_weight_norm_folded(model: Any, folder: Path, tmp_path: Path) -> None:
    """As the original release stores the acoustic half."""
    split = higgs_model()
    split.apply_weight_norm()
    save(split, tmp_path / "split")
    name = "acoustic_decoder.block.0.conv_t1.parametrizations.weight.original0"
    assert name in load_file(tmp_path / "split" / "model.safetensors")
    codes = random_codes(9)
    audio, wanted = (
        HiggsAudioTokenizer.load(tmp_path / "split").decode(codes),
        HiggsAudioTokenizer.load(folder).decode(codes),
    )
    assert (audio - wanted).abs().max() <= 5e-5 * wanted.std()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "dac", "model_type: 'dac' is not 'higgs_audio_v2_tokenizer'"),
        ("target_bandwidths", [0.1], "target_bandwidths: 0.1 kbit/s is less than one codebook"),
        ("target_bandwidths", "2", "target_bandwidths: '2' is not a list of numbers"),
        ("target_bandwidths", [2.3], "quantizer.quantizers.8.codebook.embed is missing"),
        ("acoustic_model_config", {"model_type": "encodec"}, "acoustic_model_config.model_type: 'encodec'"),
        ("acoustic_model_config", [1], r"acoustic_model_config: \[1\] is not an object"),
        ("acoustic_model_config", {"decoder_hidden_size": -1}, "acoustic_model_config.decoder_hidden_size: -1"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    folder: Path, tmp_path: Path, key: str, value: object, message: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        HiggsAudioTokenizer.load(tmp_path)


def test_a_tensor_that_is_missing_or_unknown_is_named(folder: Path, tmp_path: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    for name in [name for name in stored if name.startswith(("semantic_model.", "fc1."))]:
        del stored[name]
    save_file(stored, tmp_path / "model.safetensors")
    assert HiggsAudioTokenizer.load(tmp_path).codebooks == 8, "what only encodes is not asked for"
    stored["fc3.weight"] = stored["fc2.weight"].clone()
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"not known to this architecture: fc3\.weight"):
        HiggsAudioTokenizer.load(tmp_path)
    del stored["fc3.weight"], stored["fc2.bias"]
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"fc2\.bias is missing"):
        HiggsAudioTokenizer.load(tmp_path)
