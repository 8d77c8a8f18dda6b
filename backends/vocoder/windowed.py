"""The windowed vocoder, for codecs that look ahead: each chunk decodes a window with enough context on both sides.

What holds and why:

* A window depends on the stream's own codes and chunk sizes only (backends/vocoder/window.py). Its context is what the
  codec's kernels and strides reach, so windows join to what one whole decode gives, to rounding: the shapes differ, and
  convolution kernels round by shape. :meth:`WindowedVocoder.measure_exactness` measures it.
* Exact-length buckets: only windows of the same length share a batch, and nothing is padded in time. A codec that looks
  ahead hears padding in the last ten frames of the shorter item.
* The number of rows of a batch depends on the length of its windows alone (:meth:`WindowedVocoder.batch_rows`); missing
  rows are code 0. So load reaches no kernel's shape, and a window has the same bits alone and in company. On a CPU one
  row is the default: there is no padding to pay for. ``deterministic`` False gives up the padding, and with it this
  promise.
* On a GPU: float32 without TF32, deterministic algorithms, and no benchmark run that would choose one by time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from backends.errors import Internal, InvalidArgument, Unavailable, VoxstageError
from backends.models.window_codec import WindowCodec
from backends.vocoder.engine import CodeChunk
from backends.vocoder.window import StreamWindow, Window


class WindowedVocoder:
    """Decodes up to ``step_streams`` windows a batch, for up to ``slots`` open streams. One thread owns it.

    A batch has at most as many frames as ``step_streams`` windows of ``max_step_frames`` new frames with their context:
    longer windows share it with fewer others. A chunk of more than ``max_chunk_frames`` frames is refused.
    ``count_batch`` hears of every batch how many windows it held, padding not counted.
    """

    def __init__(
        self,
        codec: WindowCodec,
        step_streams: int = 1,
        slots: int = 64,
        max_step_frames: int = 50,
        max_chunk_frames: int = 1000,
        deterministic: bool = True,
        count_batch: Callable[[int], None] | None = None,
    ) -> None:
        limits = {
            "step_streams": step_streams,
            "slots": slots,
            "max_step_frames": max_step_frames,
            "max_chunk_frames": max_chunk_frames,
        }
        for name, value in limits.items():
            if value < 1:
                raise ValueError(f"{name}: {value} is below 1")
        self.codec, self.step_streams, self.slots = codec, step_streams, slots
        self.max_chunk_frames, self.deterministic = max_chunk_frames, deterministic
        self.hop, self.sampling_rate, self.channels = codec.hop, codec.sampling_rate, codec.channels
        self._batch_frames = step_streams * (max_step_frames + codec.look_back + codec.look_ahead)
        self._count_batch = count_batch
        self._free = list(reversed(range(slots)))
        self._streams: dict[int, StreamWindow] = {}

    @property
    def free(self) -> int:
        """Slots that nobody owns."""
        return len(self._free)

    def batch_rows(self, frames: int) -> int:
        """Rows of every batch of windows of ``frames`` frames; without ``deterministic`` the most it may have."""
        return max(1, min(self.step_streams, self._batch_frames // frames))

    def open(self) -> int:
        """A slot for a new stream. Unavailable when all are taken."""
        if not self._free:
            raise Unavailable(f"slots: all {self.slots} vocoder slots are taken")
        slot = self._free.pop()
        self._streams[slot] = StreamWindow(torch.zeros(0, self.codec.codebooks, dtype=torch.int64))
        return slot

    def close(self, slot: int) -> None:
        """End a stream, finished or not. Internal when the slot is not open."""
        if slot not in self._streams:
            raise Internal(f"slot: {slot} is not open")
        del self._streams[slot]
        self._free.append(slot)

    def check_codes(self, codes: Tensor) -> None:
        """InvalidArgument unless ``codes`` [T, codebooks] holds integers that the codec knows, T within the limit."""
        self.codec.check_codes(codes)
        if len(codes) > self.max_chunk_frames:
            raise InvalidArgument(
                "codes", f"{len(codes)} frames are more than {self.max_chunk_frames}, the most a chunk may have"
            )

    @torch.inference_mode()
    def decode_each(self, chunks: Sequence[CodeChunk]) -> list[Tensor | VoxstageError]:
        """One result a chunk, in order: float32 [samples] that are final now, possibly none; with ``last``, all.

        A chunk that is refused leaves its stream as it was. A batch that fails is decoded again window by window, each
        in the same shape, so that Internal goes to those alone that fail by themselves.
        """
        results: list[Tensor | VoxstageError] = [torch.zeros(0, device=self.codec.device)] * len(chunks)
        buckets: dict[int, list[int]] = {}
        planned: dict[int, tuple[Window, StreamWindow]] = {}
        taken: set[int] = set()
        for i, chunk in enumerate(chunks):
            try:
                planned[i] = self._plan(chunk, taken)
            except VoxstageError as error:
                results[i] = error
                continue
            taken.add(chunk.slot)
            if frames := planned[i][0].frames:
                buckets.setdefault(frames, []).append(i)
        for frames, members in buckets.items():
            rows = self.batch_rows(frames)
            for at in range(0, len(members), rows):
                batch = members[at : at + rows]
                for i, result in zip(batch, self._decode([planned[i][0] for i in batch]), strict=True):
                    results[i] = result
        for i, (_, stream) in planned.items():
            if isinstance(results[i], Tensor):
                self._streams[chunks[i].slot] = stream
        return results

    @torch.inference_mode()
    def decode_whole(self, codes: Tensor) -> Tensor:
        """Codes [T, codebooks] of a whole stream -> float32 [codec.samples(T)], in one window. Needs no slot."""
        self.check_codes(codes)
        if not len(codes):
            return torch.zeros(0, device=self.codec.device)
        return self._run([Window(codes.cpu().long(), 0, None)])[0]

    @torch.inference_mode()
    def measure_exactness(self, chunks: Sequence[int] = (4, 25), frames: int = 60) -> float:
        """The largest difference of chunked against whole decode of random codes, over the largest sample."""
        generator = torch.Generator().manual_seed(0)
        codes = torch.randint(self.codec.entries, (frames, self.codec.codebooks), generator=generator)
        whole, worst = self.decode_whole(codes), 0.0
        for size in chunks:
            stream, pieces = StreamWindow(codes[:0]), []
            parts = codes.split(size)
            for i, part in enumerate(parts):
                last = i == len(parts) - 1
                window, stream = stream.advance(part, last, self.codec.look_back, self.codec.look_ahead)
                if window.frames:
                    pieces += self._run([window])
            worst = max(worst, float((torch.cat(pieces) - whole).abs().max()))
        return worst / max(float(whole.abs().max()), 1e-9)

    def _plan(self, chunk: CodeChunk, taken: set[int]) -> tuple[Window, StreamWindow]:
        stream = self._streams.get(chunk.slot)
        if stream is None:
            raise Internal(f"slot: {chunk.slot} is not open")
        if chunk.slot in taken:
            raise Internal(f"slot: {chunk.slot} has two chunks in one call")
        if stream.ended:
            raise Internal(f"slot: {chunk.slot} has had its last chunk")
        self.check_codes(chunk.codes)
        return stream.advance(chunk.codes.cpu().long(), chunk.last, self.codec.look_back, self.codec.look_ahead)

    def _decode(self, windows: list[Window]) -> list[Tensor | VoxstageError]:
        """Windows of one length, no more than a batch holds; one result each."""
        try:
            audio: list[Tensor | VoxstageError] = [*self._run(windows)]
        except RuntimeError as error:
            if len(windows) == 1:
                return [Internal(f"vocoder step failed: {error}")]
            return [result for window in windows for result in self._decode([window])]
        return audio

    def _run(self, windows: list[Window]) -> list[Tensor]:
        """One batch, filled up with rows of code 0."""
        frames = windows[0].frames
        rows = self.batch_rows(frames) if self.deterministic else len(windows)
        codes = torch.zeros(rows, frames, self.codec.codebooks, dtype=torch.int64)
        for row, window in zip(codes, windows, strict=False):
            row.copy_(window.codes)
        with self._exact_kernels():
            audio = self.codec.decode_batch(codes.to(self.codec.device))
        if self._count_batch is not None:
            self._count_batch(len(windows))
        # Copies: a result must not keep the whole batch alive.
        return [window.cut(row, self.hop * self.channels).clone() for row, window in zip(audio, windows, strict=False)]

    def _exact_kernels(self) -> AbstractContextManager[None]:
        if self.codec.device.type != "cuda":
            return nullcontext()
        flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        )
        return flags
