"""Requests to a decoder engine in process, and somebody who listens to them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from backends.decoder.chunks import ChunkSchedule
from backends.decoder.engine import DecoderEngine
from backends.decoder.engine_process import EngineProcess
from backends.decoder.request import Chunk, DecodeRequest
from backends.decoder.sampler import SamplingParams
from backends.errors import VoxstageError
from backends.models.moss_tts_local_prompt import PromptBuilder


class Listener:
    """Collects one stream."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.error: VoxstageError | None = None
        self.done, self.started = threading.Event(), threading.Event()

    def chunk(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.started.set()
        if chunk.final:
            self.done.set()

    def fail(self, error: VoxstageError) -> None:
        self.error = error
        self.done.set()

    def end(self) -> None:
        self.done.set()

    def codes(self) -> np.ndarray[Any, Any]:
        assert self.done.wait(60) and self.error is None
        assert [chunk.index for chunk in self.chunks] == list(range(len(self.chunks)))
        assert [chunk.final for chunk in self.chunks] == [False] * (len(self.chunks) - 1) + [True]
        return np.concatenate([chunk.codes for chunk in self.chunks])


def make(prompts: PromptBuilder, text: str, stream: int, frames: int = 12) -> tuple[Listener, DecodeRequest]:
    listener = Listener()
    sampling = SamplingParams(stream, 0.8 if stream % 2 else 0.0, 0.95, 40, 0.7)
    rows = torch.from_numpy(prompts.build(text)).long()
    return listener, DecodeRequest(stream, rows, sampling, frames, ChunkSchedule(2, 6), listener)


def play(
    engine: DecoderEngine | EngineProcess, requests: Sequence[tuple[Listener, DecodeRequest]], together: bool
) -> list[np.ndarray[Any, Any]]:
    """The codes of every request, all at once or one after another."""
    codes = []
    for listener, request in requests:
        engine.submit(request)
        if not together:
            codes.append(listener.codes())
    return [listener.codes() for listener, _ in requests] if together else codes
