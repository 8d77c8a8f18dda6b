"""The stage ``asr_decoder``: windows with their states in, text out while it is written, in the order of the audio.

Windows of one transcription are requests of their own, decoded side by side; a :class:`Transcript` puts what they write
in order. All of that happens on the outbox's thread. ``asr_prompt`` is told when a window has been said, so that it
sends the next one, and when to stop.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from backends.asr.decoders import load_decoder
from backends.asr.family import load_family
from backends.asr.notes import DONE, STOP, Notes
from backends.asr.settings import AsrDecoderSettings
from backends.asr.transcript import Piece, Transcript
from backends.asr.window import WindowMessage
from backends.decoder.chunks import ChunkSchedule
from backends.decoder.engine_stage import EngineStage
from backends.decoder.prompt_audio import PromptAudio
from backends.decoder.request import Chunk, DecodeRequest
from backends.decoder.sampler import SamplingParams
from backends.errors import Internal, InvalidArgument, VoxstageError
from backends.fields import scalar
from backends.heap import keep_freed_memory
from backends.settings import home
from backends.timeline import ASR_STATIONS, Timeline

if TYPE_CHECKING:
    from backends.stage import StageContext, StageRequest

log = logging.getLogger(__name__)

_PROMPT = "asr_prompt"
_TOMBSTONES = 4096


@dataclass(eq=False, slots=True)
class _Window:
    """A window while it is inside. ``stream``: its name in the engine."""

    message: WindowMessage
    states: NDArray[np.float32]
    request: StageRequest
    stream: int
    timeline: Timeline


@dataclass(eq=False, slots=True)
class _Transcription:
    transcript: Transcript = field(default_factory=Transcript)
    windows: dict[int, _Window] = field(default_factory=dict)
    timeline: Timeline | None = None


class _Sink:
    """What the engine says about one window, on its way to the outbox's thread."""

    def __init__(self, put: Callable[[Callable[[], None]], None], said: Callable[[Chunk], None]) -> None:
        self._put, self._said = put, said

    def chunk(self, chunk: Chunk) -> None:
        self._put(lambda: self._said(chunk))

    def fail(self, error: VoxstageError) -> None:
        nothing = np.zeros((0, 1), dtype=np.int32)
        self.chunk(Chunk(nothing, 0, final=True, finish_reason="error", error=str(error)))

    def end(self) -> None:
        """Cancelled by us: the request has been ended already."""


class AsrDecoderStage(EngineStage):
    """Owns the engine and the transcripts. One instance: windows of a transcription have to meet.

    There is no :class:`HangupWatch`: inside an ensemble a running step never sees a cancel, and asking costs a message
    to the server and back for every window. The next window tells (:meth:`execute`).
    """

    Settings = AsrDecoderSettings

    def __init__(self, settings: AsrDecoderSettings, context: StageContext) -> None:
        keep_freed_memory()
        folder: Path = home() / settings.checkpoint
        self.settings, self.family = settings, load_family(folder)
        super().__init__(settings, context, folder, load_decoder(folder, settings.load_format == "dummy"))
        self.defaults = self.info.defaults
        self._transcriptions: dict[int, _Transcription] = {}
        self._dead: OrderedDict[int, None] = OrderedDict()
        self._notes = Notes(partial(context.call, _PROMPT))

    def execute(self, request: StageRequest) -> None:
        """Queue a window."""
        message, states = WindowMessage.read(request)
        if request.cancelled():
            self.outbox.put(lambda: self._hang_up(message.transcription))
            request.finish()
            return
        request.release()
        timeline = Timeline(dict(zip(ASR_STATIONS, message.stamps, strict=False)))
        window = _Window(message, states, request, secrets.randbits(63), timeline)
        self.outbox.put(lambda: self._arrive(window))

    def close(self) -> None:
        """Stop everything; Triton calls it when no request is left."""
        super().close()
        self._notes.close()

    # All that follows runs on the outbox's thread.

    def _arrive(self, window: _Window) -> None:
        try:
            self._take(window)
        except Exception as error:  # nobody expected it: this transcription ends, and nobody waits for ever
            log.exception("a window could not be taken in")
            window.request.fail(Internal(f"{type(error).__name__}: {error}"))
            self._hang_up(window.message.transcription)

    def _take(self, window: _Window) -> None:
        message = window.message
        if message.transcription in self._dead:
            window.request.finish()
            return
        held = self._transcriptions.setdefault(message.transcription, _Transcription())
        held.windows[message.window] = window
        nothing = bool(message.error) or not len(window.states)
        detection = None if nothing else self.family.detection(message.language)
        reader = None if nothing or detection is not None else self.family.reader(message.language)
        held.transcript.open(message.window, reader, message.begin, message.end, message.last)
        if nothing:
            reason = "error" if message.error else "stop"
            self._say(message.transcription, held.transcript.finish(message.window, reason, message.error))
        elif detection is not None:
            self._submit(window, detection, None, lambda chunk: self._detected(window, chunk), 1)
        else:
            self._decode(window, message.language)

    def _decode(self, window: _Window, language: str) -> None:
        message = window.message
        try:
            rows, at = self.family.build(len(window.states), language, message.context)
        except VoxstageError as error:
            self._failed(window, error)
            return
        self._submit(window, rows, at, lambda chunk: self._said(window, chunk), message.max_tokens)

    def _submit(
        self,
        window: _Window,
        rows: NDArray[np.int32],
        at: NDArray[np.int64] | None,
        said: Callable[[Chunk], None],
        max_tokens: int,
    ) -> None:
        message, room = window.message, self.info.max_positions - len(rows)
        try:
            if room < 1:
                raise InvalidArgument(
                    "context",
                    f"and audio make {len(rows)} prompt rows, no room is left in {self.info.max_positions} positions",
                )
            states, name = torch.from_numpy(window.states), bytes.fromhex(message.digest)
            audio = PromptAudio(states, name, None if at is None else torch.from_numpy(at))
            sampling = SamplingParams(
                seed=message.seed,
                temperature=message.temperature,
                top_p=self.defaults.top_p,
                top_k=self.defaults.top_k,
                text_temperature=self.defaults.text_temperature,
            )
            limit = min(max_tokens or self.defaults.max_frames, room)
            size = self.settings.chunk_tokens
            self.engine.submit(
                DecodeRequest(
                    window.stream, torch.from_numpy(rows.astype(np.int64)), sampling, limit,
                    ChunkSchedule(size, size, 1.0), _Sink(self.outbox.put, said), audio, timeline=window.timeline,
                )
            )  # fmt: skip
        except VoxstageError as error:
            self._failed(window, error)

    def _detected(self, window: _Window, chunk: Chunk) -> None:
        """The language that a window is in; now it can be decoded."""
        held = self._transcriptions.get(window.message.transcription)
        if held is None:
            return
        if chunk.error or chunk.finish_reason == "cancelled":
            self._said(window, chunk)
            return
        message = window.message
        language = self.family.detected(int(chunk.codes[0, 0]) if len(chunk.codes) else -1)
        held.transcript.open(message.window, self.family.reader(language), message.begin, message.end, message.last)
        self._decode(window, language)

    def _said(self, window: _Window, chunk: Chunk) -> None:
        number, message = window.message.transcription, window.message
        held = self._transcriptions.get(number)
        if held is None or message.window not in held.windows:
            return
        tokens = chunk.codes[:, 0].tolist()
        if not chunk.final:
            self._say(number, held.transcript.feed(message.window, tokens))
            return
        if held.timeline is None or message.window == 0:
            held.timeline = window.timeline
        self._say(number, held.transcript.finish(message.window, chunk.finish_reason, chunk.error, tokens))

    def _failed(self, window: _Window, error: VoxstageError) -> None:
        message = window.message
        held = self._transcriptions[message.transcription]
        self._say(message.transcription, held.transcript.finish(message.window, "error", str(error)))

    def _say(self, number: int, pieces: list[Piece]) -> None:
        """Send what can be said, and tell ``asr_prompt`` of windows that are done."""
        held = self._transcriptions.get(number)
        for piece in pieces if held is not None else ():
            assert held is not None
            window = held.windows[piece.window]
            if piece.closes:
                del held.windows[piece.window]
                self._notes.put(STOP if piece.final else DONE, number)
            window.request.reply(self._outputs(piece, held), final=piece.closes)
            if piece.final:
                self._drop(number)

    def _outputs(self, piece: Piece, held: _Transcription) -> dict[str, NDArray[Any]]:
        timeline = ""
        if piece.final and held.timeline is not None:
            held.timeline.stamps.pop("last_chunk", None)
            held.timeline.stamp("last_chunk")
            timeline = json.dumps(held.timeline.relative(ASR_STATIONS))
        return {
            "text": scalar(piece.text, np.object_),
            "segments": scalar(json.dumps(piece.segments, ensure_ascii=False), np.object_),
            "detected_language": scalar(piece.language, np.object_),
            "chunk_index": scalar(piece.index, np.int32),
            "final": scalar(piece.final, np.bool_),
            "finish_reason": scalar(piece.finish_reason, np.object_),
            "error": scalar(piece.error, np.object_),
            "timeline": scalar(timeline, np.object_),
        }

    def _hang_up(self, number: int) -> None:
        """Nobody listens any more."""
        if number not in self._dead:
            self._notes.put(STOP, number)
            self._drop(number)

    def _drop(self, number: int) -> None:
        """End what is left of a transcription, and let nothing of it follow. No data: see ``_StreamSink.end``."""
        held = self._transcriptions.pop(number, None)
        self._dead[number] = None
        while len(self._dead) > _TOMBSTONES:
            self._dead.popitem(last=False)
        for window in list(held.windows.values()) if held is not None else ():
            self.engine.cancel(window.stream)
            window.request.finish()
