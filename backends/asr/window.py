"""What ``asr_prompt`` hands to ``asr_decoder`` about one window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backends.errors import Internal
from backends.timeline import ASR_STATIONS

if TYPE_CHECKING:
    from backends.stage import StageRequest


@dataclass(frozen=True, slots=True)
class WindowMessage:
    """``window`` 0, 1 ... of ``transcription``, from ``begin`` to ``end`` seconds; ``last``: none follows.

    ``states`` float32 [N, width], memory of its own; none: nothing is to be heard, or ``error`` says why. ``digest``
    names the audio. ``max_tokens`` of 0: no limit of the request. ``stamps``: stations passed, absolute seconds.
    """

    transcription: int
    window: int
    last: bool
    begin: float
    end: float
    states: NDArray[np.float32]
    digest: bytes
    language: str
    context: str
    max_tokens: int
    temperature: float
    seed: int
    stamps: dict[str, float]
    error: str

    @classmethod
    def read(cls, request: StageRequest) -> WindowMessage:
        """Raises Internal for an input that is missing: a client has no business here."""

        def one(name: str) -> Any:
            tensor = request.tensor(name)
            if tensor is None:
                raise Internal(f"{name} is missing; the inputs of asr_decoder are the outputs of asr_prompt")
            return tensor if name in ("states", "stamps") else tensor.reshape(-1)[0]

        return cls(
            transcription=int(one("transcription")),
            window=int(one("window")),
            last=bool(one("last")),
            begin=float(one("begin")),
            end=float(one("end")),
            states=np.array(one("states"), dtype=np.float32),
            digest=bytes.fromhex(one("digest").decode()),
            language=one("language").decode(),
            context=one("context").decode(),
            max_tokens=int(one("max_tokens")),
            temperature=float(one("temperature")),
            seed=int(one("seed")),
            stamps=dict(zip(ASR_STATIONS, one("stamps").tolist(), strict=False)),
            error=one("error").decode(),
        )
