"""What serve.py says about a checkpoint before anything is loaded."""

from __future__ import annotations

import json

import pytest

from backends.checkpoint import inspect_checkpoint
from backends.errors import CheckpointError

TTS = {"model_type": "moss_tts_local", "architectures": ["MossTTSLocalModel"]}
CODEC = {"model_type": "moss-audio-tokenizer", "architectures": ["MossAudioTokenizerModel"]}


@pytest.fixture
def folder(tmp_path):
    for name, config in (("tts", TTS), ("codec", CODEC)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_known_checkpoint(folder):
    checkpoint = inspect_checkpoint(folder)
    assert checkpoint.tts.model_type == "moss_tts_local"
    assert checkpoint.codec.folder == folder / "codec"


def test_the_voice_that_ships_is_known(pytestconfig):
    checkpoint = inspect_checkpoint(pytestconfig.rootpath / "checkpoints" / "voice")
    assert checkpoint.tts.config["n_vq"] == 12


def test_architectures_may_be_left_out(folder):
    (folder / "tts" / "config.json").write_text('{"model_type": "moss_tts_local"}')
    assert inspect_checkpoint(folder).tts.model_type == "moss_tts_local"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("tts", '{"model_type": "llama"}', ["tts/config.json", "'llama'", "moss_tts_local"]),
        ("tts", "{}", ["model_type None"]),
        ("codec", '{"model_type": "moss_tts_local"}', ["codec/config.json", "moss-audio-tokenizer"]),
        ("codec", json.dumps({**CODEC, "architectures": ["Other"]}), ["['Other']", "MossAudioTokenizerModel"]),
        ("codec", json.dumps({**CODEC, "architectures": 3}), ["architectures 3"]),
        ("tts", '{"model_type": ["a"]}', ["model_type ['a']"]),
        ("tts", "{", ["cannot be read as JSON"]),
        ("tts", "[]", ["no JSON object"]),
        ("tts", None, ["config.json does not exist"]),
    ],
)
def test_what_is_unknown_or_broken_is_named(folder, name, text, words):
    path = folder / name / "config.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(CheckpointError) as caught:
        inspect_checkpoint(folder)
    for word in words:
        assert word in str(caught.value)


def test_missing_folders_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere does not exist"):
        inspect_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="needs tts/ and codec/"):
        inspect_checkpoint(tmp_path)
