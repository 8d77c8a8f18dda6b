"""The stage ``tts_prompt``: checks a request, fills in what it left open, and makes the prompt rows."""

from __future__ import annotations

import secrets
import time
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backends.errors import InvalidArgument, VoxstageError
from backends.fields import SEED, TEMPERATURE, TOP_K, TOP_P, Number, frames_field, read_format, read_string, scalar
from backends.metrics import Counter, Metrics
from backends.models.languages import check_language
from backends.models.moss_tts_local_prompt import PromptBuilder
from backends.models.sampling_defaults import SamplingDefaults
from backends.prompt.settings import PromptSettings
from backends.settings import home

if TYPE_CHECKING:
    from backends.stage import StageContext, StageRequest

INPUTS = (
    "text", "seed", "temperature", "top_p", "top_k", "max_frames", "format", "first_chunk_frames", "chunk_frames",
)  # fmt: skip
# Request parameters that Triton's own front ends may add; anything else is a field we do not have.
_TRITON_PARAMETERS = ("triton_", "sequence_", "priority", "timeout", "binary_data", "headers")


class PromptMetrics(Metrics):
    """What ``tts_prompt`` counts."""

    def __init__(self) -> None:
        self.requests = Counter("voxstage_prompt_requests", "Requests seen")
        self.refused = Counter("voxstage_prompt_refused", "Requests refused as INVALID_ARG")


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """A request with every field resolved. Chunk sizes of 0 mean the decoder's own defaults."""

    text: str
    seed: int
    temperature: float
    top_p: float
    top_k: int
    max_frames: int
    format: str
    first_chunk_frames: int
    chunk_frames: int


class PromptStage:
    """Stateless: one call, one answer. Any number of instances may run."""

    Settings = PromptSettings
    one_instance = False

    def __init__(self, settings: PromptSettings, context: StageContext) -> None:
        folder = home() / settings.checkpoint / "tts"
        check_language(folder, settings.language, f"{context.name}.language")
        self.settings, self.metrics = settings, PromptMetrics()
        self.builder, self.defaults = PromptBuilder(folder), SamplingDefaults.load(folder)
        context.log.info("%s: tokenizer of %s", context.name, folder)

    def execute(self, request: StageRequest) -> None:
        """Answer with rows and fields, or raise InvalidArgument."""
        received = time.monotonic()
        self.metrics.requests.inc()
        try:
            self._refuse_unknown(request.parameters())
            speech = self.read({name: request.tensor(name) for name in INPUTS})
            rows = self.rows(speech)
        except VoxstageError:
            self.metrics.refused.inc()
            raise
        request.reply(
            {
                "rows": rows,
                "seed": scalar(speech.seed, np.int64),
                "temperature": scalar(speech.temperature, np.float32),
                "top_p": scalar(speech.top_p, np.float32),
                "top_k": scalar(speech.top_k, np.int32),
                "max_frames": scalar(speech.max_frames, np.int32),
                "format": scalar(speech.format, np.object_),
                "first_chunk_frames": scalar(speech.first_chunk_frames, np.int32),
                "chunk_frames": scalar(speech.chunk_frames, np.int32),
                # One clock for all processes of a machine: the timeline starts here.
                "stamps": np.array([received, time.monotonic()], dtype=np.float64),
            }
        )

    def close(self) -> None:
        """Nothing to free."""

    def read(self, tensors: dict[str, NDArray[Any] | None]) -> SpeechRequest:
        """The request behind the input tensors. Raises InvalidArgument naming field, value and limit."""
        text = read_string("text", tensors["text"])
        if text is None:
            raise InvalidArgument("text", "is missing")
        check_text(text)

        def number(field: Number, default: int | float) -> Any:
            value = field.read(tensors[field.name])
            return default if value is None else value

        chunk_limit = self.settings.max_chunk_frames
        max_frames = frames_field("max_frames", self.settings.max_frames_limit)
        return SpeechRequest(
            text=text,
            seed=number(SEED, secrets.randbits(63)),
            temperature=number(TEMPERATURE, self.defaults.temperature),
            top_p=number(TOP_P, self.defaults.top_p),
            top_k=number(TOP_K, self.defaults.top_k),
            max_frames=number(max_frames, min(self.defaults.max_frames, self.settings.max_frames_limit)),
            format=read_format(tensors["format"]),
            first_chunk_frames=number(frames_field("first_chunk_frames", chunk_limit), 0),
            chunk_frames=number(frames_field("chunk_frames", chunk_limit), 0),
        )

    def rows(self, speech: SpeechRequest) -> NDArray[np.int32]:
        """Prompt rows int32 [P, width]. Raises InvalidArgument where text and frames exceed the context."""
        # One id takes at least one byte, so this spares the tokenizer a text that cannot fit anyway.
        limit = self.settings.max_positions - speech.max_frames
        size = len(speech.text.encode("utf-8"))
        if size > 16 * max(limit, 1):
            raise InvalidArgument("text", f"{size} bytes is far above {limit} rows, the room that max_frames leaves")
        rows = self.builder.build(speech.text, self.settings.language)
        if len(rows) > limit:
            raise InvalidArgument(
                "text",
                f"makes {len(rows)} prompt rows; with max_frames {speech.max_frames} the limit is {limit} "
                f"(max_positions {self.settings.max_positions}): shorten the text, or split it into sentences",
            )
        return rows

    @staticmethod
    def _refuse_unknown(parameters: dict[str, Any]) -> None:
        for name in parameters:
            if not name.startswith(_TRITON_PARAMETERS):
                raise InvalidArgument(name, f"is not an input of tts; it has {', '.join(INPUTS)}")


def check_text(text: str) -> None:
    """Raise InvalidArgument unless ``text`` holds something that can be spoken: a letter or a digit, and no NUL."""
    if "\0" in text:
        raise InvalidArgument("text", f"holds a NUL character at index {text.index(chr(0))}; it cannot be spoken")
    if not text.strip():
        raise InvalidArgument("text", "is empty" if not text else "holds nothing but white space")
    if not any(unicodedata.category(character)[0] in "LN" for character in text):
        shown = text if len(text) <= 20 else f"{text[:20]}..."
        raise InvalidArgument("text", f"{shown!r} holds no letter and no digit, so there is nothing to speak")
