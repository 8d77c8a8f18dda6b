"""Choosing an id, one program a row: arg max, or filters and Gumbel noise in float64; then the embedding, normed."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from backends.kernels.gpu.early import early_launch
from backends.kernels.gpu.norm import layer_norm_row, warps_for
from backends.kernels.sampling import Draws

# SplitMix64, as in backends/decoder/sampler.py.
_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
_MIX1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _mix(z):
    z = (z ^ (z >> 30)) * _MIX1
    z = (z ^ (z >> 27)) * _MIX2
    return z ^ (z >> 31)


@triton.jit
def _gumbel(seed, stream, ids):
    """Gumbel noise float64 of ``ids``: ``seed`` and ``stream`` int64 scalars."""
    start = _mix(_mix(seed.to(tl.uint64)) + (stream + 1).to(tl.uint64) * _GAMMA)
    bits = _mix(start + (ids + 1).to(tl.uint64) * _GAMMA)
    uniform = ((bits >> 12).to(tl.int64).to(tl.float64) + 0.5) * 2.220446049250313e-16
    return -tl.log(-tl.log(uniform))


@triton.jit
def _keep(logits, scores, valid, top_k, top_p, BITS: tl.constexpr):
    """What top-k, then top-p keep, ties to the lower id: ``backends.decoder.sampler.keep_mask`` without a sort.

    Float bits, mapped so that they order as unsigned integers, are searched bit by bit for the k-th highest logit, and
    again for the lowest logit whose better ones hold at most ``top_p``. Logits order as scores do: a division by the
    temperature in float64 keeps float32 numbers apart.
    """
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)  # -0 and 0 are a tie
    key = tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)
    key = tl.where(valid, key >> (32 - BITS), 0)  # bfloat16 has nothing in the lower half
    kept = valid
    if top_k > 0:
        bit = tl.full((), 1, tl.uint32) << (BITS - 1)
        limit = tl.full((), 0, tl.uint32)
        for _ in range(BITS):
            candidate = limit | bit
            limit = tl.where(tl.sum((key >= candidate).to(tl.int32), 0) >= top_k, candidate, limit)
            bit = bit >> 1
        above = valid & (key > limit)
        tied = valid & (key == limit)
        place = tl.cumsum(tied.to(tl.int32), 0)
        kept = above | (tied & (place <= top_k - tl.sum(above.to(tl.int32), 0)))
    if top_p < 1.0:
        weight = tl.where(kept, tl.exp(scores - tl.max(scores, 0)), 0.0)
        p = weight / tl.sum(weight, 0)
        bit = tl.full((), 1, tl.uint32) << (BITS - 1)
        limit = tl.full((), 0, tl.uint32)
        for _ in range(BITS):
            candidate = limit | bit
            limit = tl.where(tl.sum(tl.where(key >= candidate, p, 0.0), 0) > top_p, candidate, limit)
            bit = bit >> 1
        above = kept & (key > limit)
        tied = kept & (key == limit)
        before = tl.sum(tl.where(above, p, 0.0), 0) + (tl.cumsum(tied.to(tl.int32), 0) - 1).to(tl.float64) * p
        kept = above | (tied & (before <= top_p))
    return kept


# One kernel for every channel, not one for 1 and one for multiples of 16.
@triton.jit(do_not_specialize=["channel", "offset"])
def _choose_kernel(
    logits,
    ids,
    seeds,
    steps,
    temperatures,
    top_ks,
    top_ps,
    table,
    position,
    weight,
    bias,
    x,
    normed,
    logits_row,
    ids_row,
    channels,
    channel,
    offset,
    eps,
    V: tl.constexpr,
    VP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    BITS: tl.constexpr,
    SAMPLE: tl.constexpr,
    EMBED: tl.constexpr,
    HAS_POSITION: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, VP)
    valid = i < V
    if EMBED:
        columns = tl.arange(0, DP)
        inside = columns < D
        w = tl.load(weight + columns, mask=inside, other=0.0)
        b = tl.load(bias + columns, mask=inside, other=0.0)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    logit = tl.load(logits + row * logits_row + i, mask=valid, other=float("-inf")).to(tl.float32)
    chosen = tl.argmax(logit, 0)
    if SAMPLE:
        temperature = tl.load(temperatures + row)
        if temperature > 0:
            top_k = tl.load(top_ks + row)
            top_p = tl.load(top_ps + row)
            scores = logit.to(tl.float64) / temperature
            kept = valid
            if (top_k > 0) | (top_p < 1.0):
                kept = _keep(logit, scores, valid, top_k, top_p, BITS)
            stream = tl.load(steps + row) * channels + channel
            noisy = scores + _gumbel(tl.load(seeds + row), stream, i)
            chosen = tl.argmax(tl.where(kept, noisy, float("-inf")), 0)
    tl.store(ids + row * ids_row, chosen.to(tl.int64))
    if EMBED:
        dtype = x.dtype.element_ty
        at = (chosen + offset).to(tl.int64) * D
        value = tl.load(table + at + columns, mask=inside, other=0.0).to(tl.float32)
        if HAS_POSITION:
            value += tl.load(position + columns, mask=inside, other=0.0).to(tl.float32)
            value = value.to(dtype).to(tl.float32)
        tl.store(x + row * D + columns, value.to(dtype), mask=inside)
        result = layer_norm_row(value, w, b, eps, D, columns)
        tl.store(normed + row * D + columns, result.to(dtype), mask=inside)


def sample_ids(logits: Tensor, draws: Draws | None, channel: int, out: Tensor | None = None) -> Tensor:
    """See :func:`backends.kernels.sampling.sample_ids`. One launch."""
    return _launch(logits, draws, channel, out, None, 0, None, None, None, 0.0)[0]


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
    """See :func:`backends.kernels.sampling.sample_embed`. One launch."""
    return _launch(logits, draws, channel, out, table, offset, position, weight, bias, eps)


def _launch(
    logits: Tensor,
    draws: Draws | None,
    channel: int,
    out: Tensor | None,
    table: Tensor | None,
    offset: int,
    position: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    count, width = logits.shape
    if logits.stride(1) != 1 or (table is not None and not table.is_contiguous()):
        raise ValueError(f"logits {logits.stride()} or the table is strided")
    ids = torch.empty(count, dtype=torch.int64, device=logits.device) if out is None else out
    dim = 1 if table is None else table.shape[1]
    x = ids if table is None else torch.empty((count, dim), dtype=table.dtype, device=logits.device)
    normed = torch.empty_like(x)
    if count == 0:
        return ids, x, normed
    padded = triton.next_power_of_2(dim)
    columns = (ids,) * 5 if draws is None else (draws.seeds, draws.steps, draws.temperature, draws.top_k, draws.top_p)
    _choose_kernel[(count,)](
        logits,
        ids,
        *columns,
        *(logits if tensor is None else tensor for tensor in (table, position, weight, bias)),
        x,
        normed,
        logits.stride(0),
        ids.stride(0),
        1 if draws is None else draws.channels,
        channel,
        offset,
        eps,
        V=width,
        VP=max(128, triton.next_power_of_2(width)),
        D=dim,
        DP=padded,
        BITS=16 if logits.dtype == torch.bfloat16 else 32,
        SAMPLE=draws is not None,
        EMBED=table is not None,
        HAS_POSITION=position is not None,
        num_warps=max(4, warps_for(padded)),
        **early_launch(logits),
    )
    return ids, x, normed
