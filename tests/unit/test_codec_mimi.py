"""Mimi: parity with transformers, loading, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MimiConfig, MimiModel

from backends.checkpoint_files import read_tensors
from backends.errors import CheckpointError, InvalidArgument
from backends.json_file import read_json
from backends.models.codec import load_codec
from backends.models.mimi import Mimi
from backends.models.named_tensors import NamedTensors
from backends.vocoder.streaming import StreamingVocoder
from tests.mimi_cases import CONFIGS, mimi_codec, mimi_model, public_decode, published, random_codes

torch.set_num_threads(1)
CPU = torch.device("cpu")
# Standard deviations of the signal. Measured: 3e-6 to 8e-6, by other orders of summation in float32.
PARITY = 3e-5


@pytest.fixture(scope="module")
def small() -> MimiModel:
    return mimi_model(**CONFIGS["small"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model, encode side too, as transformers saves it."""
    where = tmp_path_factory.mktemp("mimi")
    mimi_model(encoder=True, **CONFIGS["small"]).save_pretrained(where)
    return where


def build(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Mimi:
    return Mimi(config, NamedTensors(tensors, "test", CPU, torch.float32))


def check_parity(model: MimiModel, codes: torch.Tensor, codec: Mimi) -> None:
    wanted = public_decode(model, codes)
    made = codec.decode(codes)
    assert made.shape == wanted.shape == (len(codes) * codec.hop * codec.channels,)
    error = float((made - wanted).abs().max() / wanted.std())
    print(f"largest difference: {error:.1e} standard deviations")
    assert error < PARITY


@pytest.mark.parametrize("name", CONFIGS)
def test_pcm_equals_the_public_decode_past_the_window(name: str) -> None:
    model = mimi_model(**CONFIGS[name])
    codec = mimi_codec(model)
    assert codec.sampling_rate == model.config.sampling_rate
    check_parity(model, random_codes(model.config, 60), codec)


def test_pcm_equals_the_public_decode_at_the_default_sizes() -> None:
    model = mimi_model()
    codec = mimi_codec(model)
    assert (codec.sampling_rate, codec.hop, codec.codebooks, codec.entries) == (24_000, 1920, 32, 2048)
    assert codec.frame_rate == 12.5 and codec.new_state(1, 25)[1].shape[4] >= 249
    check_parity(model, random_codes(model.config, 6), codec)
    assert StreamingVocoder(codec, slots=1).measure_exactness((1, 3), frames=5) == 0.0


def test_sample_counts_are_exact_and_the_codec_is_causal(small: MimiModel) -> None:
    codec = mimi_codec(small)
    codes = random_codes(small.config, 60, seed=2)
    whole = codec.decode(codes)
    for frames in range(1, 61):
        made = codec.decode(codes[:frames])
        assert made.shape == public_decode(small, codes[:frames]).shape == (frames * 48,)
        assert torch.equal(made, whole[: frames * 48]), frames
    assert codec.decode(codes[:0]).shape == (0,)


def test_a_saved_folder_loads_by_its_model_type(folder: Path) -> None:
    codec = load_codec(folder)
    assert isinstance(codec, Mimi)
    model = MimiModel.from_pretrained(folder)
    config, tensors = published(model)
    assert {n for n in tensors if not n.startswith("encoder.")} <= read_tensors(folder).keys()
    assert read_json(folder / "config.json")["upsampling_ratios"] == config["upsampling_ratios"]
    check_parity(model, random_codes(model.config, 20), codec)


def test_keys_of_older_configs_are_read(tmp_path: Path, small: MimiModel) -> None:
    small.save_pretrained(tmp_path)
    config = read_json(tmp_path / "config.json")
    del config["rope_parameters"], config["_frame_rate"], config["encoder_config"]
    codes = random_codes(small.config, 12)
    for change, same in (
        ({"rope_theta": 10_000.0, "frame_rate": 100.0}, True),
        ({"rope_theta": 100.0, "frame_rate": 100.0}, False),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        assert torch.equal(Mimi.load(tmp_path).decode(codes), mimi_codec(small).decode(codes)) == same


@pytest.mark.parametrize("used", [1, 2, 3, 5])
def test_fewer_codebooks_are_the_first_ones(used: int) -> None:
    model = mimi_model(**CONFIGS["other"])
    codec = mimi_codec(model, codebooks=used)
    assert codec.codebooks == used
    check_parity(model, random_codes(model.config, 10)[:, :used], codec)


@pytest.mark.parametrize("codebooks", [0, 6])
def test_codebooks_that_are_not_there_are_refused(small: MimiModel, codebooks: int) -> None:
    with pytest.raises(CheckpointError, match=f"codebooks: {codebooks} is not between 1 and the codec's 5"):
        mimi_codec(small, codebooks=codebooks)


def test_every_decode_side_tensor_is_used_and_needed(folder: Path) -> None:
    config, tensors = read_json(folder / "config.json"), read_tensors(folder)
    encode_side = ("encoder", "downsample")
    decode_side = {n: t for n, t in tensors.items() if not n.startswith(encode_side) and "input_proj" not in n}
    codes = torch.ones(3, 5, dtype=torch.int64)
    assert torch.equal(build(config, decode_side).decode(codes), build(config, tensors).decode(codes))
    for name, tensor in decode_side.items():
        if name.endswith("initialized"):
            continue
        with pytest.raises(CheckpointError, match=f"{name} is missing"):
            build(config, {other: t for other, t in tensors.items() if other != name})
        with pytest.raises(CheckpointError, match=f"{name} has shape"):
            build(config, tensors | {name: tensor[None]})
    for name in ("decoder.layers.1.conv.weight", "decoder_transformer.layers.0.self_attn.q_proj.bias", "upsample.bias"):
        with pytest.raises(CheckpointError, match=f"not known to this architecture: {name}"):
            build(config, tensors | {name: torch.zeros(1)})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "encodec"),
        ("use_causal_conv", False),
        ("pad_mode", "replicate"),
        ("trim_right_ratio", 0.5),
        ("hidden_act", "relu"),
        ("attention_bias", True),
        ("audio_channels", 3),
        ("head_dim", 15),
        ("sliding_window", None),
        ("num_quantizers", "5"),
        ("num_semantic_quantizers", 5),
        ("codebook_dim", 8),
        ("upsample_groups", 5),
        ("num_key_value_heads", 3),
        ("upsampling_ratios", [4, 0]),
        ("upsampling_ratios", 8),
        ("norm_eps", 0.0),
        ("frame_rate", 201.0),
    ],
)
def test_what_is_not_implemented_is_refused_by_key(small: MimiModel, key: str, value: object) -> None:
    config, tensors = published(small)
    with pytest.raises(CheckpointError, match=f"{key}: "):
        build(config | {key: value}, tensors)


def test_other_kinds_of_rope_and_a_missing_decoder_are_refused(small: MimiModel) -> None:
    config, tensors = published(small)
    with pytest.raises(CheckpointError, match=r"rope_parameters.rope_type: 'linear'"):
        build(config | {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, tensors)
    with pytest.raises(CheckpointError, match="decoder_config"):
        build(config | {"decoder_config": None}, tensors)


def test_no_upsampling_is_refused_as_transformers_cannot_run_it(tmp_path: Path) -> None:
    model = MimiModel(MimiConfig(**CONFIGS["small"] | {"frame_rate": 200}))
    with pytest.raises(TypeError):
        public_decode(model, random_codes(model.config, 2))
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="frame_rate: 200"):
        Mimi.load(tmp_path)


@pytest.mark.parametrize(("bad", "limit"), [(-1, "below 0"), (64, "above 63")])
def test_ids_that_name_no_sound_are_refused(small: MimiModel, bad: int, limit: str) -> None:
    """As a language model's ids for padding and the end would be."""
    codec = mimi_codec(small)
    codes = random_codes(small.config, 4)
    codes[2, 3] = bad
    with pytest.raises(InvalidArgument, match=f"codes: {bad} is {limit}"):
        codec.decode(codes)
    with pytest.raises(InvalidArgument, match="dtype"):
        codec.decode(codes.float())
    with pytest.raises(InvalidArgument, match=r"\[4, 4\] is not \[frames, 5\]"):
        codec.decode(codes[:, :4])
