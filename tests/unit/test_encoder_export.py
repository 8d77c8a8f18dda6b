"""The ONNX graph of the encoder: the same codes as torch, at any length, whatever shares its batch."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from backends.encoder import export
from backends.encoder.digest import checkpoint_digest, file_sha256, graph_key
from backends.encoder.export import compare, export_encoder, write_atomically
from backends.encoder.graph import OPSET
from backends.encoder.runtime import OnnxEncoder
from backends.errors import CheckpointError
from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from tests.unit.tiny_codec import patch, stereo_config, tiny_config, transformer, write_codec

torch.set_num_threads(1)
MAX_FRAMES = 750
HOP = 1920
#: A code may differ where two entries are equally near within float32 rounding, and with it the rest of its frame. None
#: did in 20,000 codes. This allows one frame in 1,000, far from what a wrong network gives (random codes: 0.1 % equal).
SHARE = 0.999


@pytest.fixture(scope="module")
def codec(voice: Path) -> MossAudioTokenizer:
    return MossAudioTokenizer.load(voice / "codec")


@pytest.fixture(scope="module")
def model(voice: Path) -> bytes:
    return export_encoder(voice / "codec", MAX_FRAMES)


@pytest.fixture(scope="module")
def encoder(model: bytes) -> OnnxEncoder:
    return OnnxEncoder(model, threads=1)


@pytest.fixture(scope="module")
def speech(golden: Path) -> NDArray[np.float32]:
    """11 s of the voice, three times over."""
    return np.tile(load_file(golden / "codec_long.safetensors")["pcm"], 6)


def clip(speech: NDArray[np.float32], frames: int, seed: int) -> NDArray[np.float32]:
    """Speech from somewhere, at some level, with a little noise."""
    draw = np.random.default_rng(seed)
    start, level = draw.integers(len(speech) - frames * HOP + 1), draw.uniform(0.05, 1.0)
    noise = draw.normal(0, 0.003, frames * HOP)
    return (speech[start : start + frames * HOP] * level + noise).astype(np.float32)


def test_the_graph_is_pinned_and_small(model: bytes, voice: Path) -> None:
    graph = onnx.load_model_from_string(model)
    assert [(entry.domain, entry.version) for entry in graph.opset_import] == [("", OPSET)]
    assert len(graph.graph.node) < 600
    (audio,), (codes,) = graph.graph.input, graph.graph.output
    dims = [[dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in (audio, codes)]
    assert dims == [["batch", "samples"], ["batch", "frames", 12]]
    assert codes.type.tensor_type.elem_type == onnx.TensorProto.INT32
    stored = {tensor.data_type for tensor in graph.graph.initializer}
    assert stored == {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64}  # weights stay fp32
    assert export_encoder(voice / "codec", MAX_FRAMES) == model  # same checkpoint, same bytes


def test_fifty_clips_of_odd_lengths_have_the_codes_of_torch(
    encoder: OnnxEncoder, codec: MossAudioTokenizer, speech: NDArray[np.float32]
) -> None:
    draw = np.random.default_rng(1)
    lengths = [1, 2, 8, 9, 10, 24, 25, 26, 140, *(int(n) for n in draw.integers(1, 30, 41))]
    clips = [clip(speech, frames, i) for i, frames in enumerate(lengths)]
    found = compare(encoder.encode, codec, clips)
    print(f"\n{len(clips)} clips: {found.equal_codes} of {found.codes} codes equal ({found.share:.4%})")
    assert found.share >= SHARE


def test_the_longest_clip_and_one_frame_more(
    encoder: OnnxEncoder, codec: MossAudioTokenizer, speech: NDArray[np.float32]
) -> None:
    longest = np.resize(speech, MAX_FRAMES * HOP)
    assert compare(encoder.encode, codec, [longest]).share >= SHARE
    # The graph's tables end with whole blocks of 9 frames, a little after its limit; then it fails, and never guesses.
    with pytest.raises(Exception, match="broadcast"):
        encoder.encode(np.resize(speech, (MAX_FRAMES + 9) * HOP))


def test_silence_and_full_scale(encoder: OnnxEncoder, codec: MossAudioTokenizer) -> None:
    square = np.where(np.arange(30 * HOP) % 100 < 50, 1.0, -1.0).astype(np.float32)
    assert compare(encoder.encode, codec, [np.zeros(30 * HOP, np.float32), square, 50 * square]).share >= SHARE


@pytest.mark.parametrize("frames", [1, 9, 27, 40])
def test_batched_equals_solo_bit_for_bit(encoder: OnnxEncoder, speech: NDArray[np.float32], frames: int) -> None:
    clips = [clip(speech, frames, seed) for seed in range(8)]
    solo = [encoder.encode(audio) for audio in clips]
    for size in (2, 3, 8):
        batch = encoder.encode_batch(np.stack(clips[:size]))
        assert all(np.array_equal(batch[i], solo[i]) for i in range(size))


def test_a_frame_does_not_see_what_follows(encoder: OnnxEncoder, speech: NDArray[np.float32]) -> None:
    whole = encoder.encode(clip(speech, 60, 5))
    for frames in (1, 9, 31):
        assert np.array_equal(encoder.encode(clip(speech, 60, 5)[: frames * HOP]), whole[:frames])


@pytest.mark.parametrize("context", [0.08, 0.5, 1.0, 4.0])
def test_other_sizes_and_windows(tmp_path: Path, context: float) -> None:
    folder = write_codec(tmp_path / "codec", tiny_config(context, codebooks=2))
    codec, encoder = MossAudioTokenizer.load(folder), OnnxEncoder(export_encoder(folder, 200), 1)
    draw = np.random.default_rng(2)
    clips = [draw.normal(0, 1, frames * codec.hop).astype(np.float32) for frames in (1, 7, 50, 51, 133, 200)]
    assert compare(encoder.encode, codec, clips).share >= SHARE


def test_periods_and_widths_of_their_own(tmp_path: Path) -> None:
    config = tiny_config()
    config["encoder_kwargs"] = [patch(8), transformer(8, 64, max_period=500), transformer(64, 32), patch(2)]
    config["quantizer_kwargs"] |= {"input_dim": 64, "rvq_dim": 48, "output_dim": 32}
    folder = write_codec(tmp_path / "codec", config)
    codec, encoder = MossAudioTokenizer.load(folder), OnnxEncoder(export_encoder(folder, 60), 1)
    audio = np.random.default_rng(3).normal(0, 1, 60 * codec.hop).astype(np.float32)
    assert compare(encoder.encode, codec, [audio]).share >= SHARE


def test_two_channels_and_the_first_codebooks(tmp_path: Path) -> None:
    """As in MOSS-TTS-Local v1.5: a stereo codec, of which the voice speaks fewer codebooks than there are."""
    folder = write_codec(tmp_path / "codec", stereo_config())
    codec = MossAudioTokenizer.load(folder, codebooks=3)
    encoder = OnnxEncoder(export_encoder(folder, 40, codebooks=3), 1)
    draw = np.random.default_rng(4)
    clips = [draw.normal(0, 0.3, frames * 2 * codec.hop).astype(np.float32) for frames in (1, 4, 13, 40)]
    assert compare(encoder.encode, codec, clips).share >= SHARE
    assert encoder.encode(clips[1]).shape == (4, 3)
    whole = MossAudioTokenizer.load(folder).encode(torch.from_numpy(clips[1]))
    assert np.array_equal(encoder.encode(clips[1]), whole[:, :3]), "later codebooks change nothing in the first ones"


def test_weights_that_no_file_holds_are_refused(voice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_LARGEST_BYTES", 1_000_000)
    with pytest.raises(CheckpointError, match=r"0\.0\d+ GB of weights are above 0\.001 GB.*runtime=torch"):
        export_encoder(voice / "codec", 10)


def test_keys_follow_checkpoint_and_limit(tmp_path: Path) -> None:
    one = write_codec(tmp_path / "a", tiny_config())
    same = write_codec(tmp_path / "b", tiny_config())
    other = write_codec(tmp_path / "c", tiny_config(), seed=1)
    assert checkpoint_digest(one) == checkpoint_digest(same) != checkpoint_digest(other)
    assert graph_key(one, 10) == graph_key(same, 10)
    assert len({graph_key(one, 10), graph_key(one, 11), graph_key(one, 10, 2), graph_key(other, 10)}) == 4
    (same / "config.json").write_text((same / "config.json").read_text().replace("200", "400", 1))
    assert checkpoint_digest(one) != checkpoint_digest(same)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, b"old")
    assert file_sha256(path) == hashlib.sha256(b"old").hexdigest()

    def fail(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]
