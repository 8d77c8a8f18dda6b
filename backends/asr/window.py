"""What ``asr_prompt`` hands to ``asr_decoder`` about one window: its states, and all else as one string.

Every tensor of a response costs on its way through three processes, whatever it holds, and this one is sent for each
window. So what is small travels together, as JSON: of a float that keeps every bit.
"""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backends.errors import Internal, InvalidArgument
from backends.fields import SEED, TEMPERATURE, Number

if TYPE_CHECKING:
    from backends.stage import StageRequest


@dataclass(frozen=True, slots=True)
class WindowMessage:
    """``window`` 0, 1 ... of ``transcription``, from ``begin`` to ``end`` seconds; ``last``: none follows.

    ``digest`` names the audio, in hexadecimal. ``max_tokens`` of 0: no limit of the request. ``stamps``: when the
    window passed the first of ASR_STATIONS, absolute seconds. ``error``: why there is nothing to be heard.
    """

    transcription: int
    window: int
    last: bool
    begin: float
    end: float
    digest: str
    language: str
    context: str
    max_tokens: int
    temperature: float
    seed: int
    stamps: tuple[float, ...]
    error: str = ""

    def tensors(self, states: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """The response of ``asr_prompt``: this message and float32 [N, width]; N = 0 where nothing is to be heard."""
        text = json.dumps({name: getattr(self, name) for name in _NAMES}, ensure_ascii=False)
        return {"window": np.array([text.encode()], dtype=np.object_), "states": states}

    @classmethod
    def read(cls, request: StageRequest) -> tuple[WindowMessage, NDArray[np.float32]]:
        """The message and the states, float32 [N, width], memory of their own. Raises Internal for an input that is
        missing or is no message: a client has no business here.
        """
        window, states = request.tensor("window"), request.tensor("states")
        if window is None or states is None:
            missing = "states" if window is not None else "window"
            raise Internal(f"{missing} is missing; the inputs of asr_decoder are the outputs of asr_prompt")
        try:
            message = cls(**json.loads(window.reshape(-1)[0]))
            message.check()
        except (IndexError, TypeError, ValueError, OverflowError, RecursionError, InvalidArgument) as error:
            raise Internal(f"window is no message of asr_prompt ({error})") from None
        return message, np.array(states, dtype=np.float32)

    def check(self) -> None:
        """Raise InvalidArgument, TypeError, ValueError or OverflowError for what no transcription has: JSON holds more
        than the tensors that it stands for.
        """
        for number in _NUMBERS:
            number.check(operator.index(getattr(self, number.name)))
        TEMPERATURE.check(float(self.temperature))
        if not all(math.isfinite(value) for value in (self.begin, self.end, *self.stamps)):
            raise ValueError("a time is not a finite number")
        bytes.fromhex(self.digest)
        if not all(isinstance(text, str) for text in (self.language, self.context, self.error)):
            raise TypeError("language, context and error are strings")


_NUMBERS = (
    Number("transcription", 0, 2**63 - 1), Number("window", 0, 2**31 - 1), Number("max_tokens", 0, 2**31 - 1), SEED,
)  # fmt: skip
_NAMES = tuple(field.name for field in dataclasses.fields(WindowMessage))
