"""A whole utterance, gathered from the chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from client.chunk import AudioChunk
from client.playback import Playback, measure
from client.stream import ChunkStream


class SpeechStream(ChunkStream[AudioChunk]):
    """A ChunkStream of AudioChunk."""


@dataclass(frozen=True)
class Speech:
    """All audio of one request.

    audio          [n] float32 or int16, as the request's ``format`` asked, the channels in turns
    sample_rate    samples a second and channel
    finish_reason  ``stop``, ``length`` (cut at max_frames) or ``cancelled``
    timings        see ``Playback``
    channels       1 for mono; 2 for stereo, left first: ``audio.reshape(-1, 2)`` has one column a channel
    """

    audio: np.ndarray
    sample_rate: int
    finish_reason: str
    timings: Playback
    channels: int = 1

    @property
    def seconds(self) -> float:
        """Length of the audio in seconds."""
        return len(self.audio) // self.channels / self.sample_rate


def gather(chunks: Sequence[AudioChunk], started_at: float) -> Speech:
    """Join the chunks of one finished stream, which has at least its last chunk."""
    return Speech(
        audio=np.concatenate([chunk.audio for chunk in chunks]),
        sample_rate=chunks[-1].sample_rate,
        finish_reason=chunks[-1].finish_reason,
        timings=timings(chunks, started_at),
        channels=chunks[-1].channels,
    )


def timings(chunks: Sequence[AudioChunk], started_at: float) -> Playback:
    """Timings of the chunks received so far."""
    rate = chunks[0].sample_rate if chunks else 0
    return measure(started_at, [c.received_at for c in chunks], [c.samples for c in chunks], rate)
