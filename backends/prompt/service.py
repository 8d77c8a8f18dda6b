"""The stage ``tts_prompt``: checks a request, fills in what it left open, gets its voice, and makes the prompt rows.

A request without a voice is answered by the thread that takes it. One with a voice is answered by whoever has its codes
(backends/voices/desk.py), so that it never holds up the others; hence the stage is decoupled.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backends.encoder.clip import ClipLimits, no_encoder
from backends.errors import Cancelled, Internal, InvalidArgument, VoxstageError
from backends.fields import SEED, TEMPERATURE, TOP_K, TOP_P, Number, frames_field, read_format, read_string, scalar
from backends.metrics import Counter, Metrics
from backends.models.languages import check_language
from backends.models.moss_tts_local_prompt import PromptBuilder
from backends.models.sampling_defaults import SamplingDefaults
from backends.prompt.parameters import refuse_unknown
from backends.prompt.reference import VOICE_INPUTS, Voice, read_voice
from backends.prompt.settings import PromptSettings
from backends.prompt.text import check_text
from backends.settings import home
from backends.voices.cache import Codes, Result
from backends.voices.desk import VoiceDesk, encoder_identity
from backends.voices.metrics import VoiceMetrics
from backends.voices.named import NamedVoice, load_voices

if TYPE_CHECKING:
    from backends.stage import StageContext, StageRequest

INPUTS = (
    "text", "seed", "temperature", "top_p", "top_k", "max_frames", "format", "first_chunk_frames", "chunk_frames",
    *VOICE_INPUTS,
)  # fmt: skip
_ENCODER = "audio_encoder"
_BYTES_PER_ROW = 16
_ADVICE = "shorten the text, or split it into sentences"


class PromptMetrics(VoiceMetrics, Metrics):
    """What ``tts_prompt`` counts."""

    def __init__(self) -> None:
        super().__init__()
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
    """One response a request. One instance: the voice cache lives in its process."""

    Settings = PromptSettings

    def __init__(self, settings: PromptSettings, context: StageContext) -> None:
        checkpoint = home() / settings.checkpoint
        folder = checkpoint / "tts"
        check_language(folder, settings.language, f"{context.name}.language")
        self.settings, self.metrics, self._context = settings, PromptMetrics(), context
        self.builder, self.defaults = PromptBuilder(folder), SamplingDefaults.load(folder)
        self.desk, self.voices = self._open_desk(checkpoint), dict[str, NamedVoice]()
        if self.desk is not None and settings.voices:
            self.voices = load_voices(home() / settings.voices, self.desk.wanted, f"{context.name}.voices")
        self._voices_begun = False
        context.log.info(
            "%s: tokenizer of %s, voices: %s", context.name, folder, ", ".join(self.voices) or "none with a name"
        )

    def execute(self, request: StageRequest) -> None:
        """Answer with rows and fields now or, for a voice, later. Raises VoxstageError for what is refused at once."""
        received = time.monotonic()
        self.metrics.requests.inc()
        if self.desk is not None and not self._voices_begun:
            # Not at load: the encoder may load after us, and a request cannot come before it is there.
            self._voices_begun = True
            self.desk.encode_named(list(self.voices.values()))
        try:
            refuse_unknown(request.parameters(), "tts", INPUTS)
            tensors = {name: request.tensor(name) for name in INPUTS}
            speech = self.read(tensors)
            voice = read_voice(tensors, self.voices, self.desk.wanted if self.desk else None)
            if voice is None or self.desk is None:
                self._reply(request, speech, self.rows(speech), received)
                return
            del tensors
            request.release()
            self.rows(speech)  # a text that does not fit without the voice need not wait for it
        except VoxstageError:
            self.metrics.refused.inc()
            raise

        def answer(result: Result) -> None:
            self._answer(request, speech, voice, result, received)

        self.desk.ask(voice.clip, answer, request.cancelled)

    def _answer(
        self, request: StageRequest, speech: SpeechRequest, voice: Voice, result: Result, received: float
    ) -> None:
        """Reply to a request whose voice is there, or could not be had."""
        try:
            if isinstance(result, VoxstageError):
                raise result
            self._reply(request, speech, self.rows(speech, voice, result), received)
        except Cancelled:
            request.finish()
        except VoxstageError as error:
            self.metrics.refused.inc(isinstance(error, InvalidArgument))
            request.fail(error)
        except Exception as error:
            self._context.log.exception("a request with a voice failed")
            request.fail(Internal(f"{type(error).__name__}: {error}"))

    def _open_desk(self, checkpoint: Path) -> VoiceDesk | None:
        """None for a codec without an encoder: then there are no voices from clips."""
        settings, folder = self.settings, checkpoint / "codec"
        if (why := no_encoder(folder)) is not None:
            self._context.log.info("%s: no voices: %s", self._context.name, why)
            return None
        wanted = ClipLimits.load(folder, settings.max_voice_seconds)
        return VoiceDesk(
            wanted,
            self._encode,
            encoder_identity(checkpoint, "float32"),
            self.metrics,
            workers=settings.voice_workers,
            max_waiting=settings.max_waiting_voices,
            cache_bytes=int(settings.voice_cache_mib * 2**20),
            nice=settings.voice_nice,
        )

    def _encode(self, samples: NDArray[np.float32]) -> Codes:
        """Codes int32 [frames, codebooks] of samples float32 [n], by the model audio_encoder."""
        codes = self._context.infer(_ENCODER, {"audio": samples[None]}, ["codes"])["codes"]
        assert self.desk is not None
        expected = (1, len(samples) // self.desk.wanted.frame_samples, self.builder.width - 1)
        if codes.shape != expected:
            raise Internal(f"{_ENCODER} answered codes of shape {list(codes.shape)}, expected {list(expected)}")
        return codes[0].astype(np.int32, copy=False)

    def _reply(self, request: StageRequest, speech: SpeechRequest, rows: NDArray[np.int32], received: float) -> None:
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
            },
            final=True,
        )

    def close(self) -> None:
        """End the voices' threads; Triton calls it when no request is left."""
        if self.desk is not None:
            self.desk.close()

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

    def rows(self, speech: SpeechRequest, voice: Voice | None = None, codes: Codes | None = None) -> NDArray[np.int32]:
        """Prompt rows int32 [P, width]. Raises InvalidArgument where text, voice and frames exceed the context."""
        total, frames, language = self.settings.max_positions, speech.max_frames, self.settings.language
        limit = total - frames
        if limit < 1:
            raise InvalidArgument("max_frames", f"{frames} frames leave no room for a prompt in max_positions {total}")
        room = f"the {limit} prompt rows that max_frames {frames} leaves of max_positions {total}"
        # A row is a token, and few tokens have as many bytes: this spares the tokenizer a text that cannot fit anyway.
        most = _BYTES_PER_ROW * limit
        for field, text in (("text", speech.text), ("reference_text", voice.text if voice else None)):
            size = len(text.encode("utf-8")) if text else 0
            if size > most:
                raise InvalidArgument(
                    field, f"is {size} bytes long, above {most} bytes, the most for {room}; {_ADVICE}"
                )
        if voice is None or codes is None:
            rows, what = self.builder.build(speech.text, language), ""
        else:
            if voice.text is None:
                rows, also = self.builder.build(speech.text, language, codes), ""
            else:
                rows, also = (
                    self.builder.continue_from(codes, voice.text, speech.text, language),
                    " with reference_text",
                )
            what = f"{also}, {len(codes)} of them for the voice"
        if len(rows) > limit:
            raise InvalidArgument("text", f"makes {len(rows)} prompt rows{what}, above {room}; {_ADVICE}")
        return rows
