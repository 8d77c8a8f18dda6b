"""What a stage and the process of its engine say to each other. Pickled: both ends are this program."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from backends.decoder.chunks import ChunkSchedule
from backends.decoder.engine_order import EngineInfo
from backends.decoder.prompt_audio import PromptAudio
from backends.decoder.request import Chunk, ChunkSink, DecodeRequest
from backends.decoder.sampler import SamplingParams
from backends.errors import VoxstageError
from backends.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Submit:
    """A request, its tensors as arrays: rows int64 [P, width], states [N, width], at int64 [N]."""

    stream_id: int
    rows: NDArray[np.int64]
    sampling: SamplingParams
    max_frames: int
    schedule: ChunkSchedule
    audio: tuple[NDArray[Any], bytes, NDArray[np.int64] | None] | None
    stamps: dict[str, float]

    @classmethod
    def of(cls, request: DecodeRequest) -> Submit:
        audio = request.audio
        packed = None
        if audio is not None:
            packed = (audio.states.numpy(), audio.digest, None if audio.at is None else audio.at.numpy())
        return cls(
            request.stream_id, request.rows.numpy(), request.sampling, request.max_frames, request.schedule, packed,
            dict(request.timeline.stamps),
        )  # fmt: skip

    def request(self, sink: ChunkSink) -> DecodeRequest:
        """The request again, with another sink."""
        audio = None
        if self.audio is not None:
            states, digest, at = self.audio
            audio = PromptAudio(torch.from_numpy(states), digest, None if at is None else torch.from_numpy(at))
        return DecodeRequest(
            self.stream_id, torch.from_numpy(self.rows), self.sampling, self.max_frames, self.schedule, sink, audio,
            timeline=Timeline(self.stamps),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a stream."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class Close:
    """End everything."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine runs."""

    info: EngineInfo


@dataclass(frozen=True, slots=True)
class NotReady:
    """It could not be made."""

    error: VoxstageError


@dataclass(frozen=True, slots=True)
class Said:
    """The next chunk of a stream."""

    stream_id: int
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Failed:
    """A stream that ended with an error before its first chunk."""

    stream_id: int
    error: VoxstageError


@dataclass(frozen=True, slots=True)
class Ended:
    """A stream that was cancelled."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class Counted:
    """What the engine's metrics have gained: see :meth:`backends.metrics.Metrics.changes`."""

    changes: dict[str, float | list[float]]


@dataclass(frozen=True, slots=True)
class Logged:
    """A line of the log."""

    level: int
    text: str


Order = Submit | Cancel | Close
Answer = Ready | NotReady | Said | Failed | Ended | Counted | Logged


def write(connection: Connection, message: Any) -> None:
    """Send ``message``. Raises OSError when nobody is at the other end."""
    connection.send_bytes(pickle.dumps(message, protocol=5))


def read(connection: Connection) -> Any:
    """The next message. Raises EOFError or OSError when the other end has gone."""
    return pickle.loads(connection.recv_bytes())
