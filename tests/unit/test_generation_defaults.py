"""What a checkpoint advises, and the sentences about advice that cannot be followed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from backends.errors import CheckpointError
from backends.launch.failure import USAGE, LaunchError
from backends.launch.parameters import check_checkpoints
from backends.launch.repository import find_models
from backends.models.generation_defaults import FILE, read_generation_defaults
from backends.models.languages import check_language
from backends.models.sampling_defaults import SamplingDefaults
from tests.conftest import ROOT


def written(folder: Path, content: object) -> Path:
    (folder / FILE).write_text(json.dumps(content))
    return folder


def test_the_advice_of_the_voice_that_ships(voice: Path) -> None:
    assert SamplingDefaults.load(voice / "tts") == SamplingDefaults(
        temperature=0.0, top_p=1.0, top_k=50, text_temperature=0.7, max_frames=250
    )


def test_no_file_is_no_advice(tmp_path: Path) -> None:
    assert read_generation_defaults(tmp_path) == {}
    assert SamplingDefaults.load(tmp_path).max_frames == 750


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"languages": 5}, "languages is 5, expected a list of names"),
        ({"languages": ["English", 5]}, "languages is ['English', 5], expected a list of names"),
        ({"languages": "English"}, "languages is 'English', expected a list of names"),
        ({"language": ["English"]}, "language is not known; did you mean languages?"),
        ({"max_new_frames": 0.5}, "max_new_frames is 0.5, expected a whole number of 1 or more, below 2^31"),
        ({"sampled": 5}, "sampled is 5, expected an object"),
        ({"sampled": {"audio_top_p": "high"}}, "sampled.audio_top_p is 'high', expected a number above 0, up to 1"),
        (
            {"sampled": {"audio_temprature": 1}},
            "sampled.audio_temprature is not known; did you mean sampled.audio_temperature?",
        ),
        ({"recommended": {"do_sample": "no"}}, "recommended.do_sample is 'no', expected true or false"),
        (
            {"sampled": {"audio_repetition_penalty": 1.2}},
            "sampled.audio_repetition_penalty is 1.2, expected 1, which is off: this build does not implement it",
        ),
        (
            {"sampled": {"text_top_k": 1}},
            "sampled.text_top_k is 1, expected 0 or a whole number of 2 or more, which is off: this build does not "
            "implement it",
        ),
    ],
)
def test_advice_that_cannot_be_followed_is_refused_by_name(tmp_path: Path, content: object, problem: str) -> None:
    written(tmp_path, content)
    for load in (lambda: check_language(tmp_path, "English"), lambda: SamplingDefaults.load(tmp_path)):
        with pytest.raises(CheckpointError) as caught:
            load()
        assert caught.value.args[0] == f"{tmp_path / FILE}: {problem}"


def test_serve_says_it_before_it_starts_anything(voice: Path, tmp_path: Path) -> None:
    for part in ("tts", "codec"):
        (tmp_path / part).mkdir()
        shutil.copy(voice / part / "config.json", tmp_path / part)
    written(tmp_path / "tts", {"languages": 5})
    models = [model for model in find_models([ROOT / "model_repository"]) if model.name == "tts_prompt"]
    with pytest.raises(LaunchError, match=r"languages is 5, expected a list of names$") as caught:
        check_checkpoints(models, {"tts_prompt": {"checkpoint": str(tmp_path)}}, ROOT)
    assert caught.value.exit_code == USAGE
