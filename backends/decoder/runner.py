"""The runner: what one decode step and one piece of prefill do on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backends.decoder.buckets import decode_buckets
from backends.decoder.kv_cache import SlotCache
from backends.decoder.sampler import Sampler, SamplingParams
from backends.models.protocol import DecoderModel


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one decode step made, on the host: by slot, the codes int32 [codebooks], or None where the row ended."""

    frames: dict[int, Tensor | None]


class Runner:
    """Runs the model at fixed shapes: decode at the rows of a bucket, prefill at ``prefill_rows`` rows of one request.

    Which bucket a step takes depends on the load, so all buckets must give the same bits; see
    :mod:`backends.decoder.buckets`. The last prompt row goes through a decode step, like every generated row: it is the
    row whose step makes the first frame.
    """

    def __init__(
        self, model: DecoderModel, slots: int, positions: int, prefill_rows: int, deterministic: bool = True
    ) -> None:
        self.model, self.slots, self.prefill_rows = model, slots, prefill_rows
        # Padding rows of the last piece of a prompt are written too, so the cache ends on a whole piece.
        pieces = -(-positions // prefill_rows)
        self.cache = SlotCache(model.kv, slots, pieces * prefill_rows, model.device)
        self.buckets = decode_buckets(model, self.cache, slots, deterministic)
        spec, device = model.rows, model.device
        self.sampler = Sampler(slots, spec.width, max(spec.codebook_size, 2), device)
        # By slot, with one more line for the scratch slot: the next input row and how many frames were made before it.
        self._rows = torch.full((slots + 1, spec.width), spec.pad_code, dtype=torch.int64, device=device)
        self._rows[:, 0] = 0
        self._steps = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self._lengths: dict[int, int] = {}

    def prefill(self, slot: int, rows: Tensor, start: int) -> int:
        """Read the next piece of ``rows`` int64 [P, width] from ``start`` (a multiple of ``prefill_rows``) into
        ``slot``.

        Returns the next start; done when it reaches P - 1.
        """
        end = min(start + self.prefill_rows, len(rows) - 1)
        piece = torch.zeros(self.prefill_rows, rows.shape[1], dtype=torch.int64)
        piece[:, 1:] = self.model.rows.pad_code
        piece[: end - start] = rows[start:end]
        positions = torch.arange(start, start + self.prefill_rows, device=self.model.device)
        attend = self.cache.prefill(slot, start, self.prefill_rows)
        self.model.backbone(self.model.embed(piece.to(self.model.device)), positions, attend)
        return end

    def join(self, slot: int, last_row: Tensor, position: int, sampling: SamplingParams) -> None:
        """Let a prefilled request decode from now on: its next input is ``last_row`` int64 [width] at ``position``."""
        self._rows[slot] = last_row.to(self._rows.device)
        self._steps[slot] = 0
        self._lengths[slot] = position + 1
        self.sampler.set_slot(slot, sampling)

    def leave(self, slot: int) -> None:
        """Take ``slot`` out of the batch."""
        self._lengths.pop(slot, None)
        self.sampler.set_slot(slot, None)

    def step(self) -> StepResult:
        """One decode step of every joined slot, at the smallest bucket that holds them."""
        slots, lengths = tuple(self._lengths), tuple(self._lengths.values())
        padding = next(bucket for bucket in self.buckets if bucket >= len(slots)) - len(slots)
        device = self.model.device
        slot_ids = torch.tensor(slots + (self.cache.scratch,) * padding, device=device)
        positions = torch.tensor([length - 1 for length in lengths] + [0] * padding, device=device)
        attend = self.cache.decode(slots, lengths, slot_ids, positions)
        self.sampler.begin(slots, self._steps[slot_ids])
        hidden = self.model.backbone(self.model.embed(self._rows[slot_ids]), positions, attend)
        codes, stop = self.model.frame(hidden, self.sampler)
        self._rows[slot_ids, 0] = self.model.rows.assistant_slot_id
        self._rows[slot_ids, 1:] = codes
        self._steps[slot_ids] += 1
        self._lengths = {slot: length + 1 for slot, length in zip(slots, lengths, strict=True)}
        host = codes.to("cpu", torch.int32)
        return StepResult(
            {
                slot: None if ended else frame
                for slot, frame, ended in zip(slots, host, stop.tolist()[: len(slots)], strict=False)
            }
        )
