"""One request's life in the decoder: waiting, prefill, running, done."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backends.decoder.chunks import ChunkSchedule
from backends.decoder.prompt_audio import PromptAudio
from backends.decoder.sampler import SamplingParams
from backends.errors import VoxstageError
from backends.timeline import Timeline


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
    timeline: Timeline | None = None


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
    """A request as the engine holds it. ``rows`` int64 [P, width] on the CPU, P >= 1.

    Its positions fall into three kinds. The first ``prefill_rows`` are read in pieces. From there on every row goes
    through a decode step: rows that are known (the end of the prompt, and after a retraction what was generated before)
    are fed in and their outputs dropped; the last known row's output is the next frame. Which kind a position is
    depends on its rows alone, so keys and values at a position always come from the same kind of computation, whether
    they were cached, recomputed, or never left.
    """

    stream_id: int
    rows: Tensor
    sampling: SamplingParams
    max_frames: int
    schedule: ChunkSchedule
    sink: ChunkSink
    audio: PromptAudio | None = None
    # Set by the engine when it takes the request: its place in the order of arrival, the kind of its rows.
    order: int = 0
    prefill_rows: int = 0
    slot_token: int = 0
    phase: Phase = Phase.WAITING
    slot: int = -1
    # Pages held; rows that came from the prefix cache; positions stored or on their way; rows known or on their way.
    pages: list[int] = field(default_factory=list)
    hit: int = 0
    stored: int = 0
    total: int = 0
    on_device: bool = False
    # Layers whose keys and values of the audio its slot holds; of an encoder-decoder model.
    cross_layers: int = 0
    generated: list[Tensor] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    # Int32: the rows as the prefix cache compares them, with what they hold of the audio; set with the keys.
    prompt: NDArray[np.int32] | None = None
    chunks: int = 0
    pending: list[Tensor] = field(default_factory=list)
    retractions: int = 0
    timeline: Timeline = field(default_factory=Timeline)

    def __post_init__(self) -> None:
        self.total = len(self.rows)

    @property
    def frames(self) -> int:
        """Frames made so far."""
        return len(self.generated)

    @property
    def launched_frames(self) -> int:
        """Frames made or being made."""
        return self.total - len(self.rows)

    def row(self, position: int) -> Tensor:
        """The known row at ``position``, int64 [width]."""
        if position < len(self.rows):
            return self.rows[position]
        codes = self.generated[position - len(self.rows)].long()
        return torch.cat([codes.new_tensor([self.slot_token]), codes])

    def add_frame(self, codes: Tensor) -> None:
        """Take one frame, int32 [codebooks], and send a chunk when the schedule says so."""
        self.generated.append(codes)
        self.pending.append(codes)
        if self.frames < self.max_frames and len(self.pending) >= self.schedule.next_size():
            self._send(final=False)

    def finish(self, reason: FinishReason, error: str = "") -> None:
        """Send what is left as the last chunk; a stream that is broken or that nobody wants sends no more frames."""
        if reason in (FinishReason.CANCELLED, FinishReason.ERROR):
            self.pending.clear()
        self._send(final=True, reason=reason.value, error=error)

    def _send(self, final: bool, reason: str = "", error: str = "") -> None:
        count = len(self.pending)
        codes = torch.stack(self.pending).numpy() if count else np.zeros((0, self.rows.shape[1] - 1), dtype=np.int32)
        self.pending = []
        self.schedule.take(count)
        self.timeline.stamp("first_chunk")
        if final:
            self.timeline.stamp("last_chunk")
        self.sink.chunk(Chunk(codes, self.chunks, final, reason, error, self.timeline if final else None))
        self.chunks += 1


def rows_to_prefill(rows: Tensor, slot_id: int) -> int:
    """How many leading rows of a prompt int64 [P, width] are read in pieces; all others go through decode steps.

    The row before the first audio row (or the last row, when there is none) already makes a frame, so it is
    decode-shaped, and so is everything after it.
    """
    audio = (rows[:, 0] == slot_id).nonzero()
    first = int(audio[0]) if len(audio) else len(rows)
    return max(first - 1, 0)
