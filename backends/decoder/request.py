"""One request's life in the decoder: waiting, prefill, running, done."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backends.decoder.chunks import ChunkSchedule
from backends.decoder.sampler import SamplingParams
from backends.errors import VoxstageError


class Phase(enum.Enum):
    """Where a request stands. It only ever moves forward."""

    WAITING = "waiting"
    PREFILL = "prefill"
    RUNNING = "running"
    DONE = "done"


class FinishReason(enum.Enum):
    """Why a stream ended, as it stands in the ``finish_reason`` of the last chunk."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Frames handed over together: ``codes`` int32 [T, codebooks], T >= 0. The last one names its reason."""

    codes: NDArray[np.int32]
    index: int
    final: bool = False
    finish_reason: str = ""
    error: str = ""


class ChunkSink(Protocol):
    """Where a request's chunks go. Called from the engine's thread; must not block."""

    def chunk(self, chunk: Chunk) -> None:
        """The next chunk; nothing follows a final one."""
        ...

    def fail(self, error: VoxstageError) -> None:
        """The request failed before its first chunk."""
        ...

    def end(self) -> None:
        """The stream was cancelled: it ends here without another chunk."""
        ...


@dataclass(eq=False, slots=True)
class DecodeRequest:
    """A request as the engine holds it. ``rows`` int64 [P, width] on the CPU, P >= 1."""

    stream_id: int
    rows: Tensor
    sampling: SamplingParams
    max_frames: int
    schedule: ChunkSchedule
    sink: ChunkSink
    phase: Phase = Phase.WAITING
    slot: int = -1
    prefilled: int = 0
    frames: int = 0
    chunks: int = 0
    pending: list[Tensor] = field(default_factory=list)
    received: float = field(default_factory=time.monotonic)

    def add_frame(self, codes: Tensor) -> None:
        """Take one frame, int32 [codebooks], and send a chunk when the schedule says so."""
        self.pending.append(codes)
        self.frames += 1
        if self.frames < self.max_frames and len(self.pending) >= self.schedule.next_size():
            self._send(final=False)

    def finish(self, reason: FinishReason, error: str = "") -> None:
        """Send what is left as the last chunk."""
        self._send(final=True, reason=reason.value, error=error)

    def _send(self, final: bool, reason: str = "", error: str = "") -> None:
        count = len(self.pending)
        codes = torch.stack(self.pending).numpy() if count else np.zeros((0, self.rows.shape[1] - 1), dtype=np.int32)
        self.pending = []
        self.schedule.take(count)
        self.sink.chunk(Chunk(codes, self.chunks, final, reason, error))
        self.chunks += 1
