"""From logits to ids, and on to the next input of the frame-local transformer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from backends.kernels.noise import gumbel_noise, keep_mask
from backends.kernels.norm import add_layer_norm

MAX_IDS = 2048


@dataclass(frozen=True, slots=True)
class Draws:
    """How each row of a step draws. Buffers that a graph reads: change them in place.

    ``seeds`` and ``steps`` int64 [B]: the request's seed and how many frames it has made; ``temperature`` float64 [B],
    0 is greedy and ignores the rest; ``top_k`` int64 [B], 0 is off; ``top_p`` float64 [B], 1 is off. ``channels``:
    noise streams of one step, 1 + codebooks. A head with other settings (the stop head: its own temperature where
    the row samples, 0 where it is greedy, no filters) has its own ``Draws`` over the same seeds and steps.
    """

    seeds: Tensor
    steps: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    channels: int


def sample_ids(logits: Tensor, draws: Draws | None, channel: int, out: Tensor | None = None) -> Tensor:
    """Choose an id a row: ``logits`` [B, V] -> int64 [B], into ``out`` (any stride) if given.

    Arg max of ``logits / temperature + Gumbel noise`` over what top-k and top-p keep, in float64: noise and filters are
    those of :mod:`backends.kernels.noise`, noise stream ``channel``. ``draws`` None: every row is greedy. Ties go to
    the lower id. On CUDA an id can differ from the CPU's only where two scores, or a probability sum and ``top_p``, are
    equal to the last bits of a float64. More than 2048 ids a row (a text vocabulary) take library kernels there:
    greedy steps an arg max, others a sort of every row.
    """
    _check(logits, draws)
    if logits.is_cuda and logits.shape[1] > MAX_IDS:
        ids = choose_unasked(logits, draws, channel)
        return ids if out is None else out.copy_(ids)
    if logits.is_cuda:
        from backends.kernels.gpu import sampling as gpu

        return gpu.sample_ids(logits, draws, channel, out)
    ids = _choose(logits, draws, channel)
    return ids if out is None else out.copy_(ids)


def sample_embed(
    logits: Tensor,
    draws: Draws | None,
    channel: int,
    table: Tensor,
    offset: int,
    position: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`sample_ids`, then the embedding of the chosen id and the layer norm that reads it, in one kernel.

    ``table`` [rows, D], read at ``offset + id``; ``position`` [D] is added (rounded to the table's dtype) if given;
    ``weight``, ``bias`` [D] of the norm. Returns (ids int64 [B], x [B, D], normed [B, D]).
    """
    if logits.shape[1] > MAX_IDS:
        raise ValueError(f"{logits.shape[1]} ids a row, at most {MAX_IDS} are covered")
    _check(logits, draws)
    if logits.is_cuda:
        from backends.kernels.gpu import sampling as gpu

        return gpu.sample_embed(logits, draws, channel, table, offset, position, weight, bias, eps, out)
    ids = _choose(logits, draws, channel)
    normed, x = add_layer_norm(F.embedding(ids + offset, table), position, weight, bias, eps)
    return ids if out is None else out.copy_(ids), x, normed


def _check(logits: Tensor, draws: Draws | None) -> None:
    if logits.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"logits are {logits.dtype}; bfloat16, float16 or float32 are covered")
    if draws is not None and len(draws.seeds) != len(logits):
        raise ValueError(f"{len(logits)} rows of logits, draws for {len(draws.seeds)}")


def _choose(logits: Tensor, draws: Draws | None, channel: int) -> Tensor:
    """Greedy rows cost an arg max; noise and filters are computed for the sampled rows alone."""
    ids = logits.argmax(dim=-1)
    if draws is None:
        return ids
    rows = draws.temperature.nonzero().squeeze(1)
    if not len(rows):
        return ids
    scores = logits[rows].double() / draws.temperature[rows, None]
    top_k, top_p = draws.top_k[rows], draws.top_p[rows]
    if bool(((top_k > 0) | (top_p < 1)).any()):
        scores = scores.masked_fill(~keep_mask(scores, top_k, top_p), -torch.inf)
    # One stream of every step is wanted: stream `steps * channels + channel` of a step with one.
    streams = draws.steps[rows] * draws.channels + channel
    noise = gumbel_noise(draws.seeds[rows], streams, 1, logits.shape[1])[:, 0]
    return ids.index_copy(0, rows, (scores + noise).argmax(dim=-1))


def choose_unasked(logits: Tensor, draws: Draws | None, channel: int) -> Tensor:
    """:func:`sample_ids` of any width without a question to the device: every row is sorted and drawn, greedy ones for
    nothing. A CUDA graph may hold it.
    """
    ids = logits.argmax(dim=-1)
    if draws is None:
        return ids
    sampled = draws.temperature > 0
    scores = logits.double() / torch.where(sampled, draws.temperature, 1.0)[:, None]
    # A sum of all probabilities may round above 1, so rows without filters skip them rather than pass them.
    filtered = (draws.top_k > 0) | (draws.top_p < 1)
    keep = keep_mask(scores, draws.top_k, draws.top_p) | ~filtered[:, None]
    streams = draws.steps * draws.channels + channel
    noise = gumbel_noise(draws.seeds, streams, 1, logits.shape[1])[:, 0]
    return torch.where(sampled, (scores.masked_fill(~keep, -torch.inf) + noise).argmax(dim=-1), ids)
