"""DAC against transformers' ``DacModel`` on small saved checkpoints, its sample counts, and its receptive field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backends.checkpoint_files import read_tensors
from backends.errors import CheckpointError, InvalidArgument
from backends.models.dac import Dac
from backends.models.named_tensors import NamedTensors
from tests.codec_folders import SIZES, dac_model, save

torch.set_num_threads(1)
# Odd strides, even strides, and both after one another.
pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
STRIDES = ([2, 4, 5, 8], [2, 4, 8, 8], [3, 5], [7, 3, 2])


def random_codes(frames: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(64, (frames, 3), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(dac_model(), tmp_path_factory.mktemp("dac"))


def with_config(folder: Path, target: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A copy of ``folder`` whose config went through ``change``."""
    target.mkdir()
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (target / "config.json").write_text(json.dumps(config))
    (target / "model.safetensors").symlink_to(folder / "model.safetensors")
    return target


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("strides", STRIDES)
@torch.inference_mode()
def test_decode_equals_transformers(strides: list[int], onednn: bool, tmp_path: Path) -> None:
    """The convolutions bit for bit. Codes to vectors to rounding: a product of 8 terms there is a table here, and the
    product rounds by the number of frames."""
    model = dac_model(1, downsampling_ratios=strides)
    codec = Dac.load(save(model, tmp_path / "codec"))
    worst = 0.0
    with torch.backends.mkldnn.flags(enabled=onednn):
        for frames in (1, 2, 7, 40):
            codes = random_codes(frames, frames)
            audio, wanted = codec.decode(codes), model.decode(audio_codes=codes.T[None]).audio_values[0]
            assert audio.shape == wanted.shape == (codec.samples(frames),)
            assert torch.equal(audio, model.decode(codec.vectors(codes[None])).audio_values[0])
            worst = max(worst, float((audio - wanted).abs().max() / wanted.std()))
    print(f"\nlargest difference {worst:.1e} of the standard deviation")
    assert worst <= 5e-5


def test_the_last_samples_are_lost_where_a_stride_is_odd(folder: Path) -> None:
    codec = Dac.load(folder)
    assert (codec.hop, codec.sampling_rate, codec.channels, codec.frame_rate) == (320, 24000, 1, 75)
    assert codec.samples(40) == 12792 == codec.decode(random_codes(40)).numel()
    assert codec.samples(0) == 0 and codec.decode(random_codes(0)).shape == (0,)


@pytest.mark.parametrize("split", [("parametrizations.weight.original0", "parametrizations.weight.original1"),
                                   ("weight_g", "weight_v")])  # fmt: skip
def test_weight_norm_split_is_weight_norm_folded(split: tuple[str, str], tmp_path: Path) -> None:
    """The parametrised folder as transformers writes it, the older spelling renamed from it, and the folded one."""
    model = dac_model(2)
    save(model, tmp_path / "folded")
    model.apply_weight_norm()
    save(model, tmp_path / "split")
    stored = load_file(tmp_path / "split" / "model.safetensors")
    size, direction = "parametrizations.weight.original0", "parametrizations.weight.original1"
    assert f"decoder.block.0.conv_t1.{size}" in stored, "transformers wrote no weight norm"
    # Sizes unlike the norms that they were split by: otherwise a norm over the wrong axis could pass.
    for name in [name for name in stored if name.endswith(size)]:
        stored[name] = stored[name] * (1 + 0.5 * torch.rand_like(stored[name]))
    model.load_state_dict(stored)
    renamed = {name.replace(size, split[0]).replace(direction, split[1]): value for name, value in stored.items()}
    save_file(renamed, tmp_path / "split" / "model.safetensors", metadata={"format": "pt"})
    codes = random_codes(20)
    audio = Dac.load(tmp_path / "split").decode(codes)
    with torch.inference_mode():
        wanted = model.decode(audio_codes=codes.T[None]).audio_values[0]
    # torch folds in another order: one rounding a weight.
    assert (audio - wanted).abs().max() <= 1e-4 * wanted.std()
    assert not torch.allclose(audio, Dac.load(tmp_path / "folded").decode(codes), atol=1e-2)


@pytest.mark.parametrize("strides", STRIDES)
@torch.inference_mode()
def test_the_receptive_field_is_what_a_changed_frame_changes(strides: list[int], tmp_path: Path) -> None:
    """In float64, where nearly the outermost taps are above the rounding: never beyond what is computed, and short of
    it by a fiftieth of a frame at most."""
    folder = save(dac_model(3, downsampling_ratios=strides), tmp_path / "codec")
    config = json.loads((folder / "config.json").read_text())
    stored = {
        k: v for k, v in read_tensors(folder).items() if k.startswith("decoder") or ".codebook" in k or "out_p" in k
    }
    codec = Dac(config, NamedTensors(stored, "test", torch.device("cpu"), torch.float64))
    frames = 2 * (codec.look_back + codec.look_ahead) + 1
    at = frames // 2
    first, last = frames * codec.hop, 0
    for seed in range(3):
        codes = random_codes(frames, seed)
        changed = codes.clone()
        changed[at] = (codes[at] + 1 + seed) % 64
        different = (codec.decode_batch(codes[None]) != codec.decode_batch(changed[None]))[0].nonzero()
        first, last = min(first, int(different[0])), max(last, int(different[-1]))
    before, after = at * codec.hop - first, last - at * codec.hop
    assert codec.reach.before - codec.hop / 50 <= before <= codec.reach.before
    assert codec.reach.after - codec.hop / 50 <= after <= codec.reach.after
    assert 0 <= codec.look_ahead * codec.hop - codec.reach.before < codec.hop
    assert 0 <= codec.reach.after - codec.look_back * codec.hop < codec.hop


def test_the_family_hears_ten_frames_each_way(folder: Path) -> None:
    """The published strides: 9.8 frames before, 10.8 after its first sample; in float32 9.2 can be measured."""
    codec = Dac.load(folder)
    assert (codec.look_ahead, codec.look_back) == (10, 10)
    assert [round(samples / codec.hop, 2) for samples in codec.reach] == [9.82, 10.79]


def test_fewer_codebooks(folder: Path) -> None:
    codec = Dac.load(folder, codebooks=2)
    model = dac_model()
    codes = random_codes(12)[:, :2]
    with torch.inference_mode():
        assert torch.equal(codec.decode(codes), model.decode(audio_codes=codes.T[None]).audio_values[0])
    for wrong in (0, 4):
        with pytest.raises(CheckpointError, match=f"codebooks: {wrong} is not between 1 and the codec's 3"):
            Dac.load(folder, codebooks=wrong)


def test_absent_config_keys_have_the_public_defaults(tmp_path: Path, folder: Path) -> None:
    def drop(config: dict[str, Any]) -> None:
        for key in ("upsampling_ratios", "hidden_size", "hop_length", "codebook_dim"):
            del config[key]

    codec = Dac.load(with_config(folder, tmp_path / "codec", drop))
    assert torch.equal(codec.decode(random_codes(5)), Dac.load(folder).decode(random_codes(5)))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "encodec", "model_type: 'encodec' is not 'dac'"),
        ("upsampling_ratios", [8, 1], "upsampling_ratios: a stride of 1 is not implemented"),
        ("downsampling_ratios", "2,4", "downsampling_ratios: '2,4' is not a list of strides"),
        ("decoder_hidden_size", 20, "decoder_hidden_size: 20 cannot be halved 4 times"),
        ("codebook_size", 0, "codebook_size: 0 is not a whole number"),
        ("n_codebooks", 2.5, "n_codebooks: 2.5 is not a whole number"),
        ("n_codebooks", 4, "quantizer.quantizers.3.codebook.weight is missing"),
        ("n_codebooks", 2, r"not known to this architecture: quantizer.quantizers.2.codebook.weight"),
        ("codebook_dim", 4, r"codebook.weight has shape \[64, 8\], the config asks for \[64, 4\]"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    folder: Path, tmp_path: Path, key: str, value: object, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        Dac.load(with_config(folder, tmp_path / "codec", lambda config: config.update({key: value})))


@pytest.mark.parametrize(
    ("take", "add", "message"),
    [
        ("decoder.block.1.res_unit2.snake1.alpha", None, "decoder.block.1.res_unit2.snake1.alpha is missing"),
        ("decoder.conv2.weight", None, "decoder.conv2.weight is missing"),
        ("decoder.conv2.weight", "decoder.conv2.weight_g", "decoder.conv2.weight_v is missing"),
        (None, "decoder.block.4.snake1.alpha", "not known to this architecture: decoder.block.4.snake1.alpha"),
        ("encoder.conv1.weight", "encoder.surprise", None),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    folder: Path, tmp_path: Path, take: str | None, add: str | None, message: str | None
) -> None:
    """What only encodes may be there or not."""
    stored = load_file(folder / "model.safetensors")
    if take:
        del stored[take]
    if add:
        stored[add] = torch.zeros(1, 1, 1)
    target = with_config(folder, tmp_path / "codec", lambda config: None)
    (target / "model.safetensors").unlink()
    save_file(stored, target / "model.safetensors")
    if message is None:
        assert Dac.load(target).codebooks == SIZES["n_codebooks"]
        return
    with pytest.raises(CheckpointError, match=message):
        Dac.load(target)


@pytest.mark.parametrize(("bad", "limit"), [(-1, "below 0"), (64, "above 63")])
def test_codes_outside_the_codebook_are_refused(folder: Path, bad: int, limit: str) -> None:
    codec, codes = Dac.load(folder), random_codes(4)
    codes[2, 1] = bad
    with pytest.raises(InvalidArgument, match=f"INVALID_ARG codes: {bad} is {limit}"):
        codec.decode(codes)
    with pytest.raises(InvalidArgument, match="dtype"):
        codec.decode(codes.float())
    with pytest.raises(InvalidArgument, match=r"shape \[4, 2\]"):
        codec.decode(codes[:, :2])
