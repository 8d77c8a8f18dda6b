"""The stage ``tts_decoder``: prompt rows in, chunks of codes out while they are made."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from backends.decoder.chunks import ChunkSchedule
from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.decoder.metrics import DecoderMetrics
from backends.decoder.request import Chunk, DecodeRequest
from backends.decoder.sampler import SamplingParams
from backends.decoder.settings import DecoderSettings
from backends.device import resolve_device, use_threads
from backends.errors import InvalidArgument, VoxstageError
from backends.fields import SEED, TEMPERATURE, TOP_K, TOP_P, Number, frames_field, read_format, scalar
from backends.models.moss_tts_local import MossTTSLocal
from backends.outbox import Outbox
from backends.settings import home
from backends.timeline import Timeline

if TYPE_CHECKING:
    from backends.stage import StageContext, StageRequest

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_CANCEL_POLL_SECONDS = 0.05
_STREAM = Number("cancel", 0, 2**63 - 1)


class _StreamSink:
    """Turns the engine's chunks into responses of one request, on the outbox's thread."""

    def __init__(self, stage: DecoderStage, request: StageRequest, stream_id: int, audio_format: str) -> None:
        self._stage, self._request = stage, request
        self._stream_id, self._format = stream_id, audio_format

    def chunk(self, chunk: Chunk) -> None:
        # The ensemble cannot mix these with the request's own tensors, so each response repeats what the vocoder needs.
        outputs = {
            "codes": chunk.codes,
            "stream_id": scalar(self._stream_id, np.int64),
            "chunk_index": scalar(chunk.index, np.int32),
            "final": scalar(chunk.final, np.bool_),
            "finish_reason": scalar(chunk.finish_reason, np.object_),
            "error": scalar(chunk.error, np.object_),
            "format": scalar(self._format, np.object_),
            "timeline": scalar(chunk.timeline.to_json() if chunk.timeline else "", np.object_),
        }
        self._stage.outbox.put(lambda: self._request.reply(outputs, final=chunk.final))
        if chunk.final:
            self._stage.forget(self._stream_id)

    def fail(self, error: VoxstageError) -> None:
        self._stage.outbox.put(lambda: self._request.fail(error))
        self._stage.forget(self._stream_id)

    def end(self) -> None:
        # No data: a response into an ensemble whose client has gone can break its count of what is in flight (2.51).
        self._stage.outbox.put(self._request.finish)
        self._stage.forget(self._stream_id)


class DecoderStage:
    """Owns the engine. ``execute`` only queues; responses leave from the outbox."""

    Settings = DecoderSettings

    def __init__(self, settings: DecoderSettings, context: StageContext) -> None:
        device = resolve_device(settings.device)
        use_threads(settings.num_threads)
        dtype = _DTYPES.get(settings.dtype, torch.float32 if device.type == "cpu" else torch.bfloat16)
        folder = home() / settings.checkpoint / "tts"
        self.settings, self.metrics = settings, DecoderMetrics()
        load = MossTTSLocal.dummy if settings.load_format == "dummy" else MossTTSLocal.load
        self.model = load(folder, device, dtype, settings.stream_weights)
        if settings.max_positions > self.model.max_positions:
            raise InvalidArgument(
                "tts_decoder.max_positions",
                f"{settings.max_positions} is above {self.model.max_positions}, the limit of the checkpoint",
            )
        self.engine = DecoderEngine(
            self.model,
            EngineConfig(
                max_running=settings.max_running,
                max_waiting=settings.max_waiting,
                max_positions=settings.max_positions,
                prefill_rows=settings.prefill_rows,
                prefill_pieces=settings.prefill_pieces,
                deterministic=settings.deterministic,
                page_rows=settings.page_rows,
                kv_pages=settings.kv_pages,
                prefix_cache=settings.prefix_cache,
                lookahead=settings.lookahead,
                lookahead_min_batch=settings.lookahead_min_batch,
                cuda_graph=settings.cuda_graph,
                cuda_graph_min_free_gib=settings.cuda_graph_min_free_gib,
                force_frames=settings.force_frames,
                check_integrity=settings.check_integrity,
                num_threads=settings.num_threads,
                nice=settings.nice,
            ),
            self.metrics,
        )
        context.log.info(
            "%s: %s on %s, %s, decode buckets %s, %d CUDA graphs",
            *(context.name, folder, device, dtype, self.engine.buckets, self.engine.graphs),
        )
        self.outbox = Outbox("decoder-outbox")
        self._open: dict[int, StageRequest] = {}
        self._stop = threading.Event()
        self._poller = threading.Thread(target=self._poll_cancels, name="decoder-cancels", daemon=True)
        self._poller.start()

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
        self._open[stream_id] = request
        try:
            self.engine.submit(decode)
        except VoxstageError:
            self.forget(stream_id)
            raise

    def close(self) -> None:
        """Stop everything; Triton calls it when no request is left."""
        self._stop.set()
        self._poller.join()
        self.engine.close()
        self.outbox.close()

    def forget(self, stream_id: int) -> None:
        """The stream has ended; nobody asks about its client any more."""
        self._open.pop(stream_id, None)

    def read(self, request: StageRequest, stream_id: int) -> DecodeRequest:
        """The request behind the tensors. Raises InvalidArgument naming field, value and limit."""
        rows = self._read_rows(request)
        settings, defaults = self.settings, self.model.defaults

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
        rows, spec = request.tensor("rows"), self.model.rows
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

    def _poll_cancels(self) -> None:
        """For direct clients: inside an ensemble a running step never sees its cancel, the vocoder tells us."""
        while not self._stop.wait(_CANCEL_POLL_SECONDS):
            for stream_id, request in list(self._open.items()):
                if request.cancelled():
                    self.engine.cancel(stream_id)
