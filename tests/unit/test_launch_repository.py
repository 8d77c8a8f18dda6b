"""Reading config.pbtxt without protobuf, and the models of a repository."""

from __future__ import annotations

import pytest

from backends.launch.failure import LaunchError
from backends.launch.pbtxt import PbtxtError, parse_pbtxt
from backends.launch.repository import find_models
from tests.conftest import ROOT

STAGE = """
# A comment with "quotes" { and braces }
name: "stage"
backend: "python"   # trailing
max_batch_size: 0
input [
  { name: "text" data_type: TYPE_STRING dims: [ -1 ] optional: true },
  { name: "seed", data_type: TYPE_INT64, dims: [ 1 ] }
]
model_transaction_policy { decoupled: true }
parameters { key: "size" value { string_value: "4" } }
parameters: { key: 'odd "#{' value: { string_value: "a\\nb" "c" } }
"""
ENSEMBLE = """
platform: "ensemble"
ensemble_scheduling { step [ { model_name: "stage" model_version: -1 } , { model_name: "other" } ] }
"""


def write(folder, text, name="config.pbtxt"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def test_reads_lists_messages_comments_and_strings():
    config = parse_pbtxt(STAGE)
    seed = {"name": ["seed"], "data_type": ["TYPE_INT64"], "dims": ["1"]}
    text = {"name": ["text"], "data_type": ["TYPE_STRING"], "dims": ["-1"], "optional": ["true"]}
    assert config["input"] == [text, seed]
    assert config["parameters"][1] == {"key": ['odd "#{'], "value": [{"string_value": ["a\nbc"]}]}
    assert parse_pbtxt("a < b: [1, 2.5] >; c: -3") == {"a": [{"b": ["1", "2.5"]}], "c": ["-3"]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb {", "line 2"),
        ("a: 1\nb: [1", "line 2"),
        ("a:", "line 1"),
        ("a: 1 }", "line 1"),
        ('x: 1\n\ny: "open', "line 3"),
        (": 1", "field name"),
        ("a: }", "expected a value"),
    ],
)
def test_broken_text_names_its_line(text, words):
    with pytest.raises(PbtxtError, match=words):
        parse_pbtxt(text)


def test_models_know_their_parameters_inputs_and_steps(tmp_path):
    write(tmp_path / "r" / "stage", STAGE)
    write(tmp_path / "e" / "whole", ENSEMBLE)
    stage, whole = find_models([tmp_path / "r", tmp_path / "e"])
    assert (stage.name, stage.is_stage, stage.inputs) == ("stage", True, ("text", "seed"))
    assert stage.parameters == {"size": "4", 'odd "#{': "a\nbc"}
    assert (whole.name, whole.is_stage, whole.steps) == ("whole", False, ("stage", "other"))


def test_a_named_config_wins_where_a_model_has_one(tmp_path):
    write(tmp_path / "a", 'backend: "python"')
    write(tmp_path / "a" / "configs", 'platform: "tensorrt_plan"', "tensorrt.pbtxt")
    write(tmp_path / "b", 'backend: "python"')
    assert [model.is_stage for model in find_models([tmp_path], "tensorrt")] == [False, True]
    assert [model.is_stage for model in find_models([tmp_path])] == [True, True]


def test_missing_empty_broken_and_doubled_are_one_sentence_each(tmp_path):
    with pytest.raises(LaunchError, match="does not exist"):
        find_models([tmp_path / "missing"])
    with pytest.raises(LaunchError, match="holds no model"):
        find_models([tmp_path])
    write(tmp_path / "r" / "m", 'name: "m" {')
    with pytest.raises(LaunchError, match=r"config\.pbtxt cannot be read: line 1"):
        find_models([tmp_path / "r"])
    write(tmp_path / "r" / "m", 'name: "m"')
    write(tmp_path / "s" / "m", 'name: "m"')
    with pytest.raises(LaunchError, match="the model m stands in two places"):
        find_models([tmp_path / "r", tmp_path / "s"])


def test_a_config_name_that_no_model_has_is_refused() -> None:
    repository = [ROOT / "model_repository"]
    with pytest.raises(LaunchError, match=r"--model-config-name tensorrd: .*known: default, tensorrt"):
        find_models(repository, "tensorrd")
    names = [model.name for model in find_models(repository)]
    assert [model.name for model in find_models(repository, "default")] == names
