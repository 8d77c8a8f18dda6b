"""The stage ``tts_decoder``: prompt rows in, chunks of codes out while they are made."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backends.decoder.chunks import ChunkSchedule
from backends.decoder.engine_stage import EngineStage
from backends.decoder.hangup_watch import HangupWatch
from backends.decoder.request import Chunk, DecodeRequest
from backends.decoder.sampler import SamplingParams
from backends.decoder.settings import DecoderSettings
from backends.errors import InvalidArgument, VoxstageError
from backends.fields import SEED, TEMPERATURE, TOP_K, TOP_P, Number, frames_field, read_format, scalar
from backends.models.moss_tts_local import MossTTSLocal
from backends.settings import home
from backends.timeline import Timeline

if TYPE_CHECKING:
    from backends.stage import StageContext, StageRequest

_STREAM = Number("cancel", 0, 2**63 - 1)


class _StreamSink:
    """Turns the engine's chunks into responses of one request, on the outbox's thread."""

    def __init__(self, stage: DecoderStage, request: StageRequest, stream_id: int, audio_format: str) -> None:
        self._stage, self._request = stage, request
        self._stream_id, self._format = stream_id, audio_format

    def chunk(self, chunk: Chunk) -> None:
        self._stage.outbox.put(lambda: self._request.reply(self._outputs(chunk), final=chunk.final))
        if chunk.final:
            self._stage.hangups.forget(self._stream_id)

    def _outputs(self, chunk: Chunk) -> dict[str, NDArray[Any]]:
        # The ensemble cannot mix these with the request's own tensors, so each response repeats what the vocoder needs.
        return {
            "codes": chunk.codes,
            "stream_id": scalar(self._stream_id, np.int64),
            "chunk_index": scalar(chunk.index, np.int32),
            "final": scalar(chunk.final, np.bool_),
            "finish_reason": scalar(chunk.finish_reason, np.object_),
            "error": scalar(chunk.error, np.object_),
            "format": scalar(self._format, np.object_),
            "timeline": scalar(chunk.timeline.to_json() if chunk.timeline else "", np.object_),
        }

    def fail(self, error: VoxstageError) -> None:
        self._stage.outbox.put(lambda: self._request.fail(error))
        self._stage.hangups.forget(self._stream_id)

    def end(self) -> None:
        # No data: a response into an ensemble whose client has gone can break its count of what is in flight (2.51).
        self._stage.outbox.put(self._request.finish)
        self._stage.hangups.forget(self._stream_id)


class DecoderStage(EngineStage):
    """``execute`` only queues; responses leave from the outbox."""

    Settings = DecoderSettings

    def __init__(self, settings: DecoderSettings, context: StageContext) -> None:
        load = MossTTSLocal.dummy if settings.load_format == "dummy" else MossTTSLocal.load
        super().__init__(settings, context, home() / settings.checkpoint / "tts", load)
        self.settings = settings
        self.hangups = HangupWatch(self.engine.cancel)

    def close(self) -> None:
        """Stop everything; Triton calls it when no request is left."""
        self.hangups.close()
        super().close()

    def execute(self, request: StageRequest) -> None:
        """Queue a request, or end the stream that ``cancel`` names."""
        cancel = _STREAM.read(request.tensor("cancel"))
        if cancel is not None:
            self.engine.cancel(int(cancel))
            request.finish()
            return
        self.engine.check_room()  # a refusal costs nothing: no rows are read, no lock is waited for
        # Random, so that nobody can cancel a stream that is not theirs by counting.
        stream_id = secrets.randbits(63)
        decode = self.read(request, stream_id)
        self.hangups.add(stream_id, request)
        try:
            self.engine.submit(decode)
        except BaseException:
            self.hangups.forget(stream_id)
            raise

    def read(self, request: StageRequest, stream_id: int) -> DecodeRequest:
        """The request behind the tensors. Raises InvalidArgument naming field, value and limit."""
        rows = self._read_rows(request)
        settings, defaults = self.settings, self.info.defaults

        def number(field: Number, default: int | float) -> int | float:
            value = field.read(request.tensor(field.name))
            return default if value is None else value

        room = settings.max_positions - len(rows)
        max_frames = int(number(frames_field("max_frames", room), min(defaults.max_frames, room)))
        # 0 stands for "not asked for": the prompt stage has to send some number.
        first = int(number(Number("first_chunk_frames", 0, room), 0)) or settings.first_chunk_frames
        largest = int(number(Number("chunk_frames", 0, room), 0)) or settings.chunk_frames
        sampling = SamplingParams(
            seed=int(number(SEED, 0)),
            temperature=float(number(TEMPERATURE, defaults.temperature)),
            top_p=float(number(TOP_P, defaults.top_p)),
            top_k=int(number(TOP_K, defaults.top_k)),
            text_temperature=defaults.text_temperature,
        )
        sink = _StreamSink(self, request, stream_id, read_format(request.tensor("format")))
        schedule = ChunkSchedule(first, max(first, largest), settings.slowest_rate)
        timeline, stamps = Timeline(), request.tensor("stamps")
        if stamps is not None and stamps.shape == (2,):
            timeline.stamp("received", float(stamps[0]))
            timeline.stamp("built", float(stamps[1]))
        return DecodeRequest(stream_id, rows, sampling, max_frames, schedule, sink, timeline=timeline)

    def _read_rows(self, request: StageRequest) -> Tensor:
        rows, spec = request.tensor("rows"), self.info.rows
        if rows is None:
            raise InvalidArgument("rows", "is missing")
        if rows.ndim != 2 or rows.shape[1] != spec.width or not len(rows):
            raise InvalidArgument(
                "rows", f"has shape {list(rows.shape)}, expected [P, {spec.width}] with P of at least 1"
            )
        if len(rows) >= self.settings.max_positions:
            raise InvalidArgument("rows", f"{len(rows)} rows leave no room in {self.settings.max_positions} positions")
        for part, name, limit in ((rows[:, :1], "text id", spec.text_vocab), (rows[:, 1:], "code", spec.pad_code + 1)):
            low, high = int(part.min()), int(part.max())
            if low < 0 or high >= limit:
                raise InvalidArgument("rows", f"{name} {low if low < 0 else high} is outside 0...{limit - 1}")
        return torch.from_numpy(rows.astype(np.int64))
