"""MOSS-Audio-Tokenizer: parity with the public implementation, loading, refusals."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from backends.checkpoint_files import read_json, read_tensors
from backends.errors import CheckpointError, Internal, InvalidArgument
from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from backends.models.named_tensors import NamedTensors, RandomTensors
from backends.vocoder.streaming import StreamingVocoder
from tests.unit.tiny_codec import stereo_config

torch.set_num_threads(1)
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "checkpoints/voice/codec"
GOLDEN = sorted((ROOT / "tests/golden").glob("*.safetensors"))
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def codec() -> MossAudioTokenizer:
    return MossAudioTokenizer.load(FOLDER)


def build(config: dict, tensors: dict | None = None) -> MossAudioTokenizer:
    return MossAudioTokenizer(config, NamedTensors(tensors or read_tensors(FOLDER), "test", CPU, torch.float32))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_pcm_equals_the_public_decode(codec: MossAudioTokenizer, path: Path) -> None:
    golden = load_file(path)
    assert (codec.decode(golden["codes"]) - golden["pcm"]).abs().max() < 1e-5


def test_reencoded_codes_equal_the_public_encoder(codec: MossAudioTokenizer) -> None:
    golden = load_file(ROOT / "tests/golden/codec_long.safetensors")
    codes = codec.encode(golden["pcm"])
    share = (codes == golden["reencoded_codes"]).float().mean().item()
    assert share == 1.0, f"only {share:.2%} of the codes are equal"


def test_table_decode_equals_the_public_formula(codec: MossAudioTokenizer) -> None:
    tensors = {name: t.float() for name, t in read_tensors(FOLDER).items() if name.startswith("quantizer")}

    def convolve(name: str, x: torch.Tensor) -> torch.Tensor:
        size, direction = (tensors[f"{name}.parametrizations.weight.original{i}"] for i in (0, 1))
        return F.conv1d(x, torch._weight_norm(direction, size, 0), tensors[f"{name}.bias"])

    codes = torch.randint(1024, (50, 12), generator=torch.Generator().manual_seed(0))
    total = torch.zeros(1, 256, 50)
    for i in range(12):
        entry = tensors[f"quantizer.quantizers.{i}.codebook.weight"][codes[:, i]].t()[None]
        total += convolve(f"quantizer.quantizers.{i}.out_proj", entry)
    wanted = convolve("quantizer.output_proj", total)[0].t()
    assert (codec.quantizer.decode(codes) - wanted).abs().max() <= 1e-6 * wanted.abs().max().clamp(min=1.0)


def test_encode_pads_to_whole_frames_and_takes_nothing(codec: MossAudioTokenizer) -> None:
    assert codec.encode(torch.zeros(1)).shape == (1, 12)
    assert codec.encode(torch.zeros(1921)).shape == (2, 12)
    assert codec.encode(torch.zeros(0)).shape == (0, 12)
    assert codec.decode(torch.zeros(0, 12, dtype=torch.int64)).shape == (0,)
    with pytest.raises(InvalidArgument, match="pcm"):
        codec.encode(torch.zeros(2, 1920))


def test_every_published_tensor_is_used_and_needed() -> None:
    config, tensors = read_json(FOLDER / "config.json"), read_tensors(FOLDER)
    index = json.loads((FOLDER / "model.safetensors.index.json").read_text())
    assert tensors.keys() == index["weight_map"].keys()
    with pytest.raises(CheckpointError, match=r"decoder\.7\.bias"):
        build(config, tensors | {"decoder.7.bias": torch.zeros(1)})
    for name in (
        "decoder.6.output_proj.weight",
        "quantizer.quantizers.11.codebook.weight",
        "encoder.1.input_proj.weight",
    ):
        with pytest.raises(CheckpointError, match=f"{name} is missing"):
            build(config, {other: t for other, t in tensors.items() if other != name})
    with pytest.raises(CheckpointError, match=r"linear1.weight has shape \[1, 1\]"):
        build(config, tensors | {"decoder.0.transformer.layers.0.linear1.weight": torch.zeros(1, 1)})


def test_fewer_codebooks_are_the_first_ones(codec: MossAudioTokenizer) -> None:
    eight = MossAudioTokenizer.load(FOLDER, codebooks=8)
    golden = load_file(ROOT / "tests/golden/codec_long.safetensors")
    assert eight.codebooks == 8
    assert torch.equal(eight.encode(golden["pcm"]), codec.encode(golden["pcm"])[:, :8])
    with pytest.raises(CheckpointError, match="13"):
        MossAudioTokenizer.load(FOLDER, codebooks=13)


def test_decoding_needs_no_encoder(codec: MossAudioTokenizer) -> None:
    half = MossAudioTokenizer.load(FOLDER, decode_only=True)
    codes = torch.randint(1024, (5, 12), generator=torch.Generator().manual_seed(0))
    assert torch.equal(half.decode(codes), codec.decode(codes))
    with pytest.raises(Internal, match="decode only"):
        half.encode(torch.zeros(1920))


@pytest.mark.parametrize(
    ("side", "key", "value"),
    [
        ("decoder_kwargs", "gating", "silu"),
        ("decoder_kwargs", "norm", "rms_norm"),
        ("encoder_kwargs", "positional_embedding", "sin"),
        ("decoder_kwargs", "causal", False),
        ("decoder_kwargs", "num_heads", 6),
        ("decoder_kwargs", "module_type", "Conv"),
        ("decoder_kwargs", "qk_norm", True),
    ],
)
def test_what_is_not_implemented_is_refused_by_key(side: str, key: str, value: object) -> None:
    config = copy.deepcopy(read_json(FOLDER / "config.json"))
    entry = next(e for e in config[side] if e["module_type"] == "Transformer")
    entry[key] = value
    with pytest.raises(CheckpointError, match=rf"{side}\[\d\]\.{key}.*{value}"):
        build(config)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mimi"},
        {"number_channels": 3},
        {"number_channels": 2},  # at this sampling rate the patches make one channel
        {"number_channels": 2, "enable_channel_interleave": False},
        {"quantizer_kwargs": {"quantizer_type": "rvq"}},
        {"downsample_rate": 960},
    ],
    ids=lambda c: next(iter(c)),
)
def test_other_architectures_are_refused(change: dict) -> None:
    with pytest.raises(CheckpointError):
        build(read_json(FOLDER / "config.json") | change)


def test_public_release_sizes_build_and_stream() -> None:
    """The public 24 kHz release in small: 32 quantizers, widths that need no input projection, a 10 s window."""

    common = read_json(FOLDER / "config.json")["decoder_kwargs"][0]
    common |= {"d_model": 128, "num_heads": 2, "num_layers": 1, "dim_feedforward": 256, "layer_scale": 0.01}

    def block(inputs: int, outputs: int) -> dict:
        return common | {"input_dimension": inputs, "output_dimension": outputs}

    def patch(size: int) -> dict:
        return {"module_type": "PatchedPretransform", "patch_size": size}

    config = {
        "sampling_rate": 24000,
        "downsample_rate": 1920,
        "causal_transformer_context_duration": 10,
        "encoder_kwargs": [patch(240), block(240, 64), patch(2), *[block(128, 64), patch(2)] * 2, block(128, 128)],
        "decoder_kwargs": [block(128, 128), patch(2), *[block(64, 128), patch(2)] * 2, block(64, 240), patch(240)],
        "quantizer_kwargs": {
            "input_dim": 128,
            "rvq_dim": 96,
            "output_dim": 128,
            "num_quantizers": 32,
            "quantizer_type": "rlfq",
        },
    }
    codec = MossAudioTokenizer(config, RandomTensors(0, CPU, torch.float32))
    pcm = 0.1 * torch.randn(1920 * 12, generator=torch.Generator().manual_seed(0))
    codes = codec.encode(pcm)
    assert codes.shape == (12, 32) and codec.decode(codes).shape == (1920 * 12,)
    assert [h.shape[4] >= 125 * r - 1 for h, r in zip(codec.new_state(1, 25), (1, 2, 4, 8), strict=True)] == [True] * 4


def test_two_channels_are_one_stream_of_twice_the_rate() -> None:
    """The public code flattens [2, n] to samples in turns before it encodes, and undoes that after it has decoded."""
    stereo = MossAudioTokenizer(stereo_config(), RandomTensors(0, CPU, torch.float32))
    mono = MossAudioTokenizer(stereo_config(96000, 1), RandomTensors(0, CPU, torch.float32))
    assert (stereo.channels, stereo.hop, stereo.frame_rate) == (2, 3840, 12.5)
    codes = torch.randint(1024, (30, 4), generator=torch.Generator().manual_seed(0))
    audio = stereo.decode(codes)
    assert audio.shape == (30 * 3840 * 2,) and torch.equal(audio, mono.decode(codes))
    assert torch.equal(stereo.encode(audio), mono.encode(audio))
    assert stereo.encode(audio[: 3840 * 2 + 1]).shape == (2, 4)


@pytest.mark.parametrize("bucket", [1, 3])
def test_stereo_streams_past_every_window(bucket: int) -> None:
    codec = MossAudioTokenizer(stereo_config(), RandomTensors(0, CPU, torch.float32))
    vocoder = StreamingVocoder(codec, bucket, slots=2)
    codes = torch.randint(1024, (60, 4), generator=torch.Generator().manual_seed(1))
    slot = vocoder.open()
    made = [vocoder.decode([slot], part[None])[0] for part in codes.split([1, 4, 5, 20, 3, 1, 26])]
    assert torch.equal(torch.cat(made), codec.decode(codes))


def test_names_of_the_stereo_release_load(tmp_path: Path) -> None:
    """v2 names a layer's matrices otherwise; what they hold is the same."""
    names: dict[str, torch.Tensor] = {}

    class Recorder(RandomTensors):
        def take(self, name: str, *shape: int) -> torch.Tensor:
            names[name] = super().take(name, *shape)
            return names[name]

    config = stereo_config()
    drawn = MossAudioTokenizer(config, Recorder(0, CPU, torch.float32))
    v2 = {
        name.replace("in_projs.0", "in_proj").replace("out_projs.0", "out_proj").replace("linear1", "ffn.0")
        .replace("linear2", "ffn.2"): tensor.contiguous()
        for name, tensor in names.items()
    }  # fmt: skip
    assert "decoder.10.transformer.layers.0.self_attn.in_proj.weight" in v2
    save_file(v2, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    codes = torch.randint(1024, (5, 4), generator=torch.Generator().manual_seed(0))
    assert torch.equal(MossAudioTokenizer.load(tmp_path).decode(codes), drawn.decode(codes))


@pytest.mark.parametrize(("version", "channels", "hop", "rates"), [(1, 1, 1920, 4), (2, 2, 3840, 6)])
def test_the_public_sizes_are_understood(version: int, channels: int, hop: int, rates: int) -> None:
    """Every shape of the public releases, on no memory at all."""
    folder = ROOT / f"benchmarks/configs/moss_audio_tokenizer_v{version}/codec"

    class Meta(RandomTensors):
        def take(self, name: str, *shape: int) -> torch.Tensor:
            taken.append(math.prod(shape))
            return torch.empty(shape, device="meta")

    taken: list[int] = []
    tensors = Meta(0, CPU, torch.float32)
    tensors.device = torch.device("meta")
    codec = MossAudioTokenizer(read_json(folder / "config.json"), tensors)
    assert (codec.channels, codec.hop, codec.frame_rate, codec.codebooks) == (channels, hop, 12.5, 32)
    assert len(codec.new_state(1, 25)) == rates
    assert 1.5e9 < sum(taken) < 2.3e9
