"""Decode buckets: how many rows a step computes, chosen so that the choice cannot be heard.

A floating-point product may use another kernel, and so another order of sums, at another number of rows. A server that
lets the load pick the number of rows therefore changes its answers with the load. Two ways out: compute every step at
one size (always right, and cheap where a step is bound by reading the weights), or use several sizes after having
*seen* that they agree. At load, every size of the ladder runs a whole step on the same random rows; a size stays in the
ladder only if every hidden state and every logit equals, bit for bit, that of the largest. A kernel is chosen by shapes
and not by values, so a ladder that agrees on random rows agrees on all.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from backends.decoder.cross_cache import DecoderAttention
from backends.models.protocol import CodeSampler, DecoderModel, Heads

log = logging.getLogger(__name__)

_SMALLEST = 2  # one row is a matrix-vector product, a kernel of its own in most libraries


class _Recorder(CodeSampler):
    """Greedy choices, with the logits kept for comparison."""

    def __init__(self) -> None:
        self.logits: list[Tensor] = []

    def stop(self, logits: Tensor) -> Tensor:
        self.logits.append(logits)
        return logits.argmax(dim=-1) == 1

    def code(self, logits: Tensor, codebook: int) -> Tensor:
        self.logits.append(logits)
        return logits.argmax(dim=-1)


def decode_buckets(model: DecoderModel, slots: int, deterministic: bool) -> tuple[int, ...]:
    """Ascending row counts for up to ``slots`` rows; the last one holds them all.

    ``deterministic``: only sizes whose bits were seen to equal the largest one's on this machine; False takes the whole
    ladder.
    """
    ladder = [size for size in (2**power for power in range(1, slots.bit_length())) if size < slots]
    largest = max(slots, _SMALLEST)
    if not deterministic:
        return (*ladder, largest)
    generator = torch.Generator().manual_seed(0)
    spec = model.rows
    rows = torch.randint(spec.codebook_size, (largest, spec.width), generator=generator)
    rows[:, 0] = spec.assistant_slot_id
    reference = _step(model, rows)
    kept = [size for size in ladder if _agrees(model, rows, size, reference)]
    if len(kept) < len(ladder):
        log.info("decode buckets %s of %s agree bit for bit on this machine", [*kept, largest], [*ladder, largest])
    return (*kept, largest)


def _agrees(model: DecoderModel, rows: Tensor, size: int, reference: list[Tensor]) -> bool:
    """Whether ``size`` rows give the reference's bits, wherever in the reference batch they stood."""
    for start in range(0, len(rows) - size + 1, max(1, size // 2)):
        part = _step(model, rows[start : start + size])
        if not all(torch.equal(a, b[start : start + size]) for a, b in zip(part, reference, strict=True)):
            return False
    return True


def alike_in_any_place(model: DecoderModel, count: int, shift: int) -> bool:
    """Whether rows of a product of ``count`` rows have the same bits ``shift`` rows further on, seen at load.

    A library may divide the sums of one part of a product and not those of another.
    """
    spec, generator = model.rows, torch.Generator().manual_seed(0)
    rows = torch.randint(spec.codebook_size, (count, spec.width), generator=generator)
    rows[:, 0] = spec.assistant_slot_id
    return torch.equal(_hidden(model, rows).roll(shift, 0), _hidden(model, rows.roll(shift, 0)))


def _step(model: DecoderModel, rows: Tensor) -> list[Tensor]:
    """Hidden states and every logit of one decode step of ``rows``."""
    with torch.inference_mode():
        hidden, recorder = _hidden(model, rows), _Recorder()
        model.frame(hidden, recorder)
    return [hidden, *recorder.logits]


def _hidden(model: DecoderModel, rows: Tensor) -> Tensor:
    """Hidden states of ``rows``, each at position 0.

    Attention is replaced by a sum of a row's own heads: it is per row by construction, the rest of a layer is not.
    """
    positions = torch.zeros(len(rows), dtype=torch.int64, device=model.device)

    def attend(layer: int, qkv: Tensor, heads: Heads) -> Tensor:
        q, k, v = heads.split(qkv)
        return (q + (k + v).repeat_interleave(heads.count // heads.kv_count, dim=1)).flatten(1)

    with torch.inference_mode():
        attention = DecoderAttention(attend, lambda layer, q: q.flatten(1))
        return model.backbone(model.embed(rows.to(model.device)), positions, attention)
