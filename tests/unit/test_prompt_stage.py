"""What ``tts_prompt`` accepts, and the sentences with which it refuses."""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np
import pytest

from backends.errors import InvalidArgument
from backends.fields import scalar
from backends.launch.repository import find_models
from backends.prompt.service import INPUTS, PromptSettings, PromptStage
from backends.settings import home


class Request:
    """A request without a server: what a stage reads, and what it replied."""

    def __init__(self, parameters: dict[str, Any] | None = None, **tensors: Any) -> None:
        self._tensors, self._parameters = tensors, parameters or {}
        self.reply_tensors: dict[str, Any] = {}

    def tensor(self, name: str) -> Any:
        return self._tensors.get(name)

    def parameters(self) -> dict[str, Any]:
        return self._parameters

    def reply(self, outputs: dict[str, Any], final: bool = False) -> None:
        self.reply_tensors = outputs


class Context:
    name, log = "tts_prompt", logging.getLogger("test")


@pytest.fixture(scope="module")
def stage() -> PromptStage:
    context: Any = Context()
    return PromptStage(PromptSettings(), context)


def text(value: str | bytes) -> Any:
    return np.array([value.encode() if isinstance(value, str) else value], dtype=np.object_)


def ask(stage: PromptStage, **tensors: Any) -> dict[str, Any]:
    request: Any = Request(**tensors)
    stage.execute(request)
    return request.reply_tensors


def test_defaults_come_from_the_checkpoint(stage: PromptStage) -> None:
    reply = ask(stage, text=text("Hi."))
    assert reply["rows"].shape == (26, 13) and reply["rows"].dtype == np.int32
    assert reply["temperature"][0] == 0 and reply["max_frames"][0] == 250 and reply["format"][0] == b"f32"
    assert ask(stage, text=text("Hi."))["seed"][0] != reply["seed"][0]
    assert ask(stage, text=text("Hi."), seed=scalar(2**63 - 1, np.int64))["seed"][0] == 2**63 - 1


BAD = [
    ({}, "text: is missing"),
    ({"text": text("")}, "text: is empty"),
    ({"text": text("  \n\t ")}, "text: holds nothing but white space"),
    ({"text": text("?!... --")}, "text: '?!... --' holds no letter and no digit"),
    ({"text": text("\U0001f600\U0001f389")}, "holds no letter and no digit"),
    ({"text": text("a\0b")}, "text: holds a NUL character at index 1"),
    ({"text": text(b"caf\xc3(")}, "text: is not valid UTF-8: byte 0xc3 at offset 3"),
    ({"text": text(b"\xed\xa0\x80")}, "text: is not valid UTF-8"),
    ({"text": text("x" * 100_000)}, "text: 100000 bytes is far above 774 rows"),
    ({"text": text("x" * 1000)}, "text: makes 1023 prompt rows; with max_frames 250 the limit is 774"),
    ({"text": np.array([b"a", b"b"], dtype=np.object_)}, "text: has shape [2], expected [1]"),
    ({"text": np.zeros((0,), dtype=np.object_)}, "text: has shape [0], expected [1]"),
    ({"seed": scalar(-1, np.int64)}, "seed: -1 is below 0, the smallest value"),
    ({"temperature": scalar(-1, np.float32)}, "temperature: -1 is below 0"),
    ({"temperature": scalar(float("nan"), np.float32)}, "temperature: nan is not a finite number"),
    ({"temperature": scalar(1e9, np.float32)}, "temperature: 1000000000 is above 10, the largest value"),
    ({"top_p": scalar(0.0, np.float32)}, "top_p: 0 is too small; it must be above 0"),
    ({"top_p": scalar(1.1, np.float32)}, "top_p: 1.1 is above 1, the largest value"),
    ({"top_k": scalar(-1, np.int32)}, "top_k: -1 is below 0"),
    ({"max_frames": scalar(0, np.int32)}, "max_frames: 0 is below 1"),
    ({"max_frames": scalar(751, np.int32)}, "max_frames: 751 is above 750"),
    ({"format": text("mp3")}, "format: 'mp3' is not one of f32, s16, b64"),
    ({"first_chunk_frames": scalar(0, np.int32)}, "first_chunk_frames: 0 is below 1"),
    ({"chunk_frames": scalar(9999, np.int32)}, "chunk_frames: 9999 is above 250"),
    ({"seed": np.zeros(2, dtype=np.int64)}, "seed: has shape [2], expected [1]"),
    ({"parameters": {"foo": 3}}, "foo: is not an input of tts; it has text, seed"),
]


@pytest.mark.parametrize(("tensors", "sentence"), BAD, ids=[sentence[:40] for _, sentence in BAD])
def test_bad_input_names_field_value_and_limit(stage: PromptStage, tensors: dict[str, Any], sentence: str) -> None:
    defaults = {"text": text("Hi.")} if "text" not in tensors and tensors else {}
    with pytest.raises(InvalidArgument, match=re.escape(sentence)) as caught:
        ask(stage, **defaults, **tensors)
    assert str(caught.value).startswith("INVALID_ARG ")
    assert ask(stage, text=text("Hi."))["rows"].shape == (26, 13)


def test_every_input_of_the_ensemble_is_read() -> None:
    models = {model.name: model for model in find_models([home() / "model_repository", home() / "ensemble"])}
    assert models["tts"].inputs == models["tts_prompt"].inputs == INPUTS
