"""The streaming vocoder: chunks of many streams in, their samples out, the same bits for every chunking and every load.

What holds and why:

* T is exact. Streams of one step have the same T; nothing is ever padded in time, because padding would move the state.
* B is constant: a step always runs ``step_streams`` streams, the missing ones on scratch slots. So the shape of a
  step depends on T alone, and by construction load, slot number and neighbours reach no kernel's shape; a stream's
  rows are computed from its own rows and state only. On a GPU :meth:`StreamingVocoder.prepare` adds smaller B that
  were seen to give the same bits.
* Chunked equals whole, and a stream's place in the bucket does not matter: by construction in attention, by
  measurement in the matrix products (see backends/models/causal_transformer.py).
  :meth:`StreamingVocoder.measure_exactness` measures it on the machine at hand. On a GPU products of another number of
  rows may round differently, so there the bits belong to the chunk schedule, which is the request's.

:meth:`StreamingVocoder.step` runs inside CUDA graphs: slots and resets are tensors, no shape comes from data, nothing
synchronises with the host, and the state it writes never moves.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from backends.errors import Internal, InvalidArgument, VoxstageError
from backends.vocoder.buckets import stream_buckets
from backends.vocoder.engine import CodeChunk
from backends.vocoder.graphs import GraphOptions, VocoderGraphs
from backends.vocoder.metrics import VocoderMetrics
from backends.vocoder.state import CausalCodec, SlotState

# On a CPU the products of one stream's chunk are large enough: a larger bucket gains little when full and pays for
# scratch slots when not (benchmarks/vocoder.py). A GPU wants more.
CPU_STEP_STREAMS = 1
# One stream gains next to nothing from a second thread, and OpenMP threads that spin for one another on cores that
# other processes use stall for up to a second (measured on 2 busy cores at T = 1: median 5.5 ms a step with 1 thread,
# 19 to 117 ms with 2; OMP_WAIT_POLICY=PASSIVE brings 2 threads to 9 ms).
CPU_THREADS = 1


class StreamingVocoder:
    """Decodes up to ``step_streams`` streams a step on ``slots`` slots. One thread owns it; it takes no locks.

    Chunks longer than ``max_step_frames`` run as several steps. ``hop`` samples a frame and channel at
    ``sampling_rate`` Hz. On a GPU, call :meth:`prepare` before serving. Audio comes back on the host.
    """

    def __init__(
        self,
        codec: CausalCodec,
        step_streams: int = CPU_STEP_STREAMS,
        slots: int = 64,
        max_step_frames: int = 50,
        metrics: VocoderMetrics | None = None,
    ) -> None:
        if step_streams < 1:
            raise ValueError(f"step_streams: {step_streams} is below 1")
        if max_step_frames < 1:
            raise ValueError(f"max_step_frames: {max_step_frames} is below 1")
        self.codec = codec
        self.step_streams, self.max_step_frames = step_streams, max_step_frames
        self.hop, self.sampling_rate, self.channels = codec.hop, codec.sampling_rate, codec.channels
        self.metrics = metrics or VocoderMetrics()
        self.buckets: tuple[int, ...] = (step_streams,)
        self._graphs = VocoderGraphs(self.metrics, codec.device)
        self._on_gpu = codec.device.type == "cuda"
        with torch.inference_mode():
            self.state = SlotState(codec, slots, step_streams, max_step_frames)

    @property
    def graphs(self) -> int:
        """CUDA graphs that serve."""
        return len(self._graphs)

    @torch.inference_mode()
    def prepare(self, graphs: GraphOptions | None, deterministic: bool = True) -> None:
        """Before serving, on a GPU: compile kernels, choose the buckets and capture ``graphs`` (None: none).

        Nothing is captured afterwards. Does nothing on a CPU. ``deterministic`` False: smaller buckets whether they
        round alike or not.
        """
        if not self._on_gpu:
            return
        if self.state.free != self.state.slots:
            raise Internal("prepare: streams are open; graphs are captured before serving only")
        generator = torch.Generator().manual_seed(0)

        def random_codes(frames: int) -> Tensor:
            return torch.randint(self.codec.entries, (frames, self.codec.codebooks), generator=generator)

        def decode(codes: Tensor) -> Tensor:
            streams = len(codes)
            return self._packed_step(
                self._pack(codes, self.state.scratch[:streams], True).to(self.codec.device), streams
            )

        self.buckets = stream_buckets(decode, self.step_streams, self.max_step_frames, random_codes, deterministic)
        if graphs is not None:
            self._graphs.capture(
                self._packed_step,
                lambda streams, length: self._pack(
                    random_codes(length).expand(streams, -1, -1), self.state.scratch[:streams], True
                ),
                self.buckets,
                GraphOptions(min(graphs.max_frames, self.max_step_frames), graphs.min_free_bytes),
            )
        self.state.frames.zero_()

    def open(self) -> int:
        """A slot for a new stream. Unavailable when all are taken."""
        return self.state.open()

    def close(self, slot: int) -> None:
        """End a stream; nothing of it reaches the slot's next owner. Internal when the slot is not open."""
        self.state.close(slot)

    def check_codes(self, codes: Tensor) -> None:
        """InvalidArgument unless ``codes`` [T, codebooks] holds integers that the codec knows."""
        self.codec.check_codes(codes)

    @torch.inference_mode()
    def decode(self, slots: Sequence[int], codes: Tensor) -> Tensor:
        """The next T frames of b streams, b <= step_streams.

        ``slots``: b different open slots; ``codes``: integers [b, T, codebooks] -> float32 [b, T * hop * channels],
        full scale 1.0, not clipped. T = 0 gives [b, 0]. Everything is checked before any state moves: InvalidArgument
        for codes out of range (all b streams are refused together; :meth:`decode_each` keeps peers apart), Internal for
        slots that are not open or named twice. Internal for a step that breaks: the b streams have lost their state.
        """
        self._check_slots(slots)
        if codes.ndim != 3 or codes.shape[0] != len(slots):
            raise InvalidArgument(
                "codes", f"shape {list(codes.shape)} is not [{len(slots)}, frames, {self.codec.codebooks}]"
            )
        self.check_codes(codes.flatten(0, 1))
        return self._run(list(slots), codes)

    @torch.inference_mode()
    def decode_each(self, chunks: Sequence[CodeChunk]) -> list[Tensor | VoxstageError]:
        """Like :meth:`decode` for any number of chunks, T free; one result a chunk, in order.

        Chunks of equal T share steps. A bad chunk gets its own error and leaves its stream's state and all peers as
        they were. A step that breaks gives Internal to the streams of that step; close them, their state is lost.
        """
        results: list[Tensor | VoxstageError] = [Internal("the chunk was not decoded")] * len(chunks)
        groups: dict[int, list[int]] = {}
        taken: set[int] = set()
        for i, (slot, codes, _) in enumerate(chunks):
            try:
                self.state.check_open(slot)
                if slot in taken:
                    raise Internal(f"slot: {slot} has two chunks in one call")
                self.check_codes(codes)
            except VoxstageError as error:
                results[i] = error
                continue
            taken.add(slot)
            groups.setdefault(codes.shape[0], []).append(i)
        for members in groups.values():
            for at in range(0, len(members), self.step_streams):
                step = members[at : at + self.step_streams]
                try:
                    audio = self._run([chunks[i].slot for i in step], torch.stack([chunks[i].codes for i in step]))
                except Exception as error:  # whatever broke, it is these streams' alone
                    failure = error if isinstance(error, Internal) else Internal(f"vocoder step failed: {error}")
                    for i in step:
                        results[i] = failure
                else:
                    for i, result in zip(step, audio, strict=True):
                        results[i] = result
        return results

    @torch.inference_mode()
    def decode_whole(self, codes: Tensor) -> Tensor:
        """Codes [T, codebooks] of a whole stream -> float32 [T * hop * channels]. Needs no slot."""
        self.check_codes(codes)
        return self._run([self.state.scratch[0]], codes[None])[0]

    @torch.inference_mode()
    def measure_exactness(self, chunks: Sequence[int] = (1, 2, 3, 4, 5, 8, 16, 25, 50), frames: int = 100) -> float:
        """The largest difference of chunked against whole decode of random codes, full scale 1.0; 0.0 means bit for
        bit.

        Run it at start-up to know what this machine's libraries do: a fraction of a second a chunk size with the
        small voice.
        """
        generator = torch.Generator().manual_seed(0)
        codes = torch.randint(self.codec.entries, (frames, self.codec.codebooks), generator=generator)
        whole = self.decode_whole(codes)
        worst = 0.0
        for size in chunks:
            slot = self.open()
            pieces = [self.decode([slot], piece[None])[0] for piece in torch.split(codes, size)]
            self.close(slot)
            worst = max(worst, float((torch.cat(pieces) - whole).abs().max()))
        return worst

    def step(self, codes: Tensor, slots: Tensor, reset: Tensor) -> Tensor:
        """One step at full shape: ``codes`` int64 [B, T, codebooks], ``slots`` int64 and ``reset`` bool [B], all on the
        codec's device, slots all different -> float32 [B, T * hop * channels]. A reset stream starts from frame 0."""
        frames = self.state.frames.index_select(0, slots).masked_fill(reset, 0)
        audio = self.codec.step(codes, frames, slots, self.state.tensors)
        self.state.frames.index_copy_(0, slots, frames + codes.shape[1])
        return audio

    def _run(self, slots: list[int], codes: Tensor) -> Tensor:
        """Fill the bucket with scratch slots (code 0) and run as many steps as T needs."""
        used, total = codes.shape[:2]
        streams = next(size for size in self.buckets if size >= used)
        width = self.hop * self.channels
        audio = torch.empty(used, total * width, pin_memory=self._on_gpu)
        if not total:
            return audio
        places = slots + [place for place in self.state.scratch if place not in slots][: streams - used]
        full = codes.new_zeros(streams, total, self.codec.codebooks, dtype=torch.int64, device="cpu")
        full[:used] = codes
        for start in range(0, total, self.max_step_frames):
            part = full[:, start : start + self.max_step_frames]
            inputs = self._pack(part, places, start == 0)
            made = audio[:, start * width : (start + part.shape[1]) * width]
            self._step_to_host(inputs, streams, part.shape[1], made)
        for slot in slots:
            self.state.started(slot)
        return audio

    def _step_to_host(self, inputs: Tensor, streams: int, frames: int, audio: Tensor) -> None:
        """One step; the first rows of its samples go to ``audio`` on the host. Ends when they are there, because faults
        of a replay surface no earlier."""
        replayed = (streams, frames) in self._graphs
        try:
            if replayed:
                made = self._graphs.replay(inputs, streams, frames)
            else:
                made = self._packed_step(inputs.to(self.codec.device, non_blocking=True), streams)
            audio.copy_(made[: len(audio)], non_blocking=True)
            if self._on_gpu:
                torch.cuda.current_stream(self.codec.device).synchronize()
        except Exception as error:
            if replayed:
                self._graphs.disable("replay", error)
            raise
        self.metrics.step_shapes.inc(streams, frames, "graph" if replayed else "eager")

    def _pack(self, codes: Tensor, places: Sequence[int], first: bool) -> Tensor:
        """All inputs of a step in one tensor int64 [B * T * codebooks + 2 B] on the host, so that they take one copy:
        codes, slots, resets. ``first``: reset the streams that have not had a step."""
        fresh = [int(first and self.state.is_fresh(place)) for place in places]
        rest = torch.tensor([*places, *fresh])
        packed = torch.empty(codes.numel() + len(rest), dtype=torch.int64, pin_memory=self._on_gpu)
        packed[: -len(rest)] = codes.reshape(-1)
        packed[-len(rest) :] = rest
        return packed

    def _packed_step(self, packed: Tensor, streams: int) -> Tensor:
        """:meth:`step` on what :meth:`_pack` made, on the codec's device."""
        codes, slots, reset = packed.tensor_split([len(packed) - 2 * streams, len(packed) - streams])
        return self.step(codes.view(streams, -1, self.codec.codebooks), slots, reset != 0)

    def _check_slots(self, slots: Sequence[int]) -> None:
        if not 1 <= len(slots) <= self.step_streams:
            raise Internal(f"slots: {len(slots)} streams do not fit a step of 1 to {self.step_streams}")
        if len(set(slots)) != len(slots):
            raise Internal(f"slots: {list(slots)} names a slot twice")
        for slot in slots:
            self.state.check_open(slot)
