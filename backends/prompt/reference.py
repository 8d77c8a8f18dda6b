"""The voice fields of a request: a name, or a clip with what belongs to it. Nothing is decoded here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.encoder.clip import ClipLimits
from backends.errors import InvalidArgument
from backends.fields import Number, read_bytes, read_string
from backends.prompt.text import check_text
from backends.voices.clip import (
    MAX_CHANNELS,
    MAX_RATE,
    MIN_RATE,
    read_clip_file,
    read_clip_samples,
    unwrap,
)
from backends.voices.desk import Clip
from backends.voices.named import NamedVoice

VOICE_INPUTS = (
    "voice", "reference_audio", "reference_sample_rate", "reference_channels", "reference_file", "reference_text",
)  # fmt: skip
_RATE = Number("reference_sample_rate", MIN_RATE, MAX_RATE)
_CHANNELS = Number("reference_channels", 1, MAX_CHANNELS)


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice that a request asks for. ``text``: what the clip says, for speech that goes on from it; else None."""

    clip: Clip
    text: str | None


def read_voice(
    tensors: Mapping[str, NDArray[Any] | None], known: Mapping[str, NamedVoice], wanted: ClipLimits | None
) -> Voice | None:
    """The voice behind the input tensors; None where none is asked for.

    ``wanted``: None where the checkpoint has no encoder. Raises InvalidArgument: for two voices at once, for a field
    that would have no effect, for an unknown name, and for what can be told about a clip without decoding it.
    """
    given = [name for name in ("voice", "reference_audio", "reference_file") if tensors[name] is not None]
    if len(given) > 1:
        raise InvalidArgument(given[1], f"is given beside {given[0]}; give one voice")
    source = given[0] if given else None
    for name, owners in (
        ("reference_sample_rate", ("reference_audio",)),
        ("reference_channels", ("reference_audio",)),
        ("reference_text", ("reference_audio", "reference_file")),
    ):
        if tensors[name] is not None and source not in owners:
            beside = f"beside {source}" if source else "alone"
            raise InvalidArgument(name, f"has no meaning {beside}; it belongs to {' or '.join(owners)}")
    if source is None:
        return None
    if wanted is None:
        raise InvalidArgument(source, "has no meaning here: the codec of this checkpoint encodes no clips")
    if source == "voice":
        return _named(read_string("voice", tensors["voice"]) or "", known)
    text = read_string("reference_text", tensors["reference_text"])
    if text is not None:
        check_text(text, "reference_text")
        text = text.strip()
    if source == "reference_file":
        return Voice(read_clip_file(source, unwrap(source, read_bytes(source, tensors[source]))), text)
    samples, rate = tensors[source], _RATE.read(tensors["reference_sample_rate"])
    channels = _CHANNELS.read(tensors["reference_channels"])
    assert samples is not None
    if rate is None:
        raise InvalidArgument("reference_sample_rate", "is missing; reference_audio does not say it")
    if samples.dtype != np.float32:
        raise InvalidArgument(source, f"is of type {samples.dtype}, expected float32")
    return Voice(read_clip_samples(source, samples, int(channels or 1), int(rate), wanted), text)


def _named(name: str, known: Mapping[str, NamedVoice]) -> Voice:
    if name not in known:
        listed = ", ".join(sorted(known)) or "there are none"
        shown = name if len(name) <= 64 else f"{name[:64]}..."
        raise InvalidArgument("voice", f"{shown!r} is unknown; known voices: {listed}")
    return Voice(known[name], known[name].text)
