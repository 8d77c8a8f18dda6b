"""``tts_vocoder`` without a server: chunks as the decoder sends them, and what the stage answers."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import numpy as np
import torch

from backends.fields import scalar
from backends.vocoder.service import VocoderStage
from backends.vocoder.streaming import StreamingVocoder

HOP = 1920


class Context:
    """A server that only notes which streams the vocoder asks the decoder to end."""

    name, log = "tts_vocoder", logging.getLogger("test")

    def __init__(self) -> None:
        self.cancelled: list[int] = []

    def call(self, model: str, inputs: dict[str, Any]) -> None:
        assert model == "tts_decoder"
        self.cancelled.append(int(inputs["cancel"][0]))


class Request:
    """One chunk as the decoder sends it, and what was answered."""

    def __init__(self, stream: int, index: int, codes: torch.Tensor, final: bool = False, form: str = "f32") -> None:
        self._tensors = {
            "codes": codes.numpy().astype(np.int32),
            "stream_id": scalar(stream, np.int64),
            "chunk_index": scalar(index, np.int32),
            "final": scalar(final, np.bool_),
            "finish_reason": scalar("stop" if final else "", np.object_),
            "error": scalar("", np.object_),
            "format": scalar(form, np.object_),
            "timeline": scalar("", np.object_),
        }
        self.answers: list[dict[str, Any]] = []
        self.gate, self.done = threading.Event(), threading.Event()
        self.gate.set()

    def tensor(self, name: str) -> Any:
        return self._tensors[name]

    def cancelled(self) -> bool:
        return False

    def reply(self, outputs: dict[str, Any], final: bool = False) -> None:
        assert self.gate.wait(10)
        self.answers.append(outputs)
        self.done.set()

    def finish(self) -> None:
        self.done.set()

    @property
    def answer(self) -> dict[str, Any]:
        assert self.done.wait(20), "no answer came"
        assert len(self.answers) == 1
        return self.answers[0]

    @property
    def error(self) -> str:
        text = self.answer["error"][0]
        return text.decode() if isinstance(text, bytes) else str(text)


def random_codes(frames: int, seed: int) -> torch.Tensor:
    return torch.randint(1024, (frames, 12), generator=torch.Generator().manual_seed(seed))


def send(stage: VocoderStage, requests: list[Request]) -> None:
    """Let the chunks wait together, so that those of equal length share a step."""
    held: Any = Request(999, 0, random_codes(1, 0), final=True)
    held.gate.clear()
    stage.execute(held)
    deadline = time.monotonic() + 10
    while stage._inbox and time.monotonic() < deadline:
        time.sleep(0.001)
    for request in requests:
        untyped: Any = request
        stage.execute(untyped)
    held.gate.set()
    assert held.answer["final"][0]


def engine(stage: VocoderStage) -> StreamingVocoder:
    assert isinstance(stage.vocoder, StreamingVocoder)
    return stage.vocoder


def idle(stage: VocoderStage) -> bool:
    state, deadline = engine(stage).state, time.monotonic() + 10
    while state.free < state.slots and time.monotonic() < deadline:
        time.sleep(0.001)
    return state.free == state.slots
