"""Audio in a prompt: what an encoder made of a clip, and how a decoder that reads it is checked and keyed."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backends.errors import InvalidArgument
from backends.models.protocol import AudioSpec

_DIGEST_WIDTH = 4  # int32 numbers of a digest of 16 bytes
CONTENT_WIDTH = _DIGEST_WIDTH + 1


@dataclass(frozen=True, slots=True)
class PromptAudio:
    """The encoder's states of the audio of one request.

    ``states`` float [N, width] on the CPU. ``digest``: bytes that name the audio; whoever has the same bytes has the
    same states. ``at`` int64 [N], ascending: the prompt rows whose embeddings the states are; None for a model that
    attends to them from every row (cross-attention).
    """

    states: Tensor
    digest: bytes
    at: Tensor | None = None

    def piece(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        """The states of rows ``start`` ... ``end`` - 1, and where these stand, counted from ``start``."""
        at = self.at if self.at is not None else torch.zeros(0, dtype=torch.int64)
        first, last = torch.searchsorted(at, torch.tensor([start, end])).tolist()
        return at[first:last] - start, self.states[first:last]

    def content(self, rows: int) -> NDArray[np.int32]:
        """What ``rows`` prompt rows hold beside their ids, int32 [rows, 5], for the prefix cache: zeros, or the name of
        the audio and a place in it, from 1.

        A row with an embedding of its own holds its place. Where every row attends to the audio, row 0 names it: all
        pages of a request continue its first one, so no page is found for other audio.
        """
        content = np.zeros((rows, CONTENT_WIDTH), dtype=np.int32)
        places = np.zeros(1, dtype=np.int64) if self.at is None else self.at.numpy()
        name = blake2b(self.digest, digest_size=4 * _DIGEST_WIDTH).digest()
        content[places, :_DIGEST_WIDTH] = np.frombuffer(name, dtype="<i4")
        content[places, _DIGEST_WIDTH] = np.arange(1, len(places) + 1)
        return content


def check_audio(audio: PromptAudio | None, spec: AudioSpec | None, prefill_rows: int) -> None:
    """Raise InvalidArgument unless ``audio`` is what a model of ``spec`` reads in a prompt of ``prefill_rows`` rows
    that are read in pieces.
    """
    if spec is None or audio is None:
        if audio is not None:
            raise InvalidArgument("audio", "is given, and this model reads none")
        if spec is not None and spec.cross is not None:
            raise InvalidArgument("audio", "is missing: this model attends to the states of an encoder")
        return
    count, width = audio.states.shape
    if width != spec.width:
        raise InvalidArgument("audio", f"states have width {width}, this model reads {spec.width}")
    if spec.cross is not None:
        if audio.at is not None or count != spec.cross.positions:
            raise InvalidArgument("audio", f"has {count} states, this model attends to exactly {spec.cross.positions}")
    elif audio.at is None or len(audio.at) != count:
        raise InvalidArgument("audio", f"has {count} states, which is not one for each of its rows")
    elif count and (int(audio.at[0]) < 0 or int(audio.at[-1]) >= prefill_rows or bool((audio.at.diff() < 1).any())):
        raise InvalidArgument("audio", f"its rows do not ascend from 0 to at most {prefill_rows - 1}")
