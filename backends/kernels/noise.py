"""Counter-based noise, and the filters of a draw: the torch definitions that the sampling kernel follows.

Noise is a pure function of (seed, step, channel, id). No generator state exists, so nothing can be drawn in another
order by another neighbour, and a step that is computed twice samples twice the same. The id is the arg max of ``log p +
Gumbel noise`` (Gumbel 1954), which samples from p exactly and needs no cumulative sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

_INT64 = 1 << 64


def _signed(value: int) -> int:
    return value - _INT64 if value >= 1 << 63 else value


# SplitMix64 (Steele, Lea, Flood 2014): output i of seed s is mix(s + i * gamma); the mixer is Stafford's variant 13.
_GAMMA, _MIX1, _MIX2 = (_signed(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Logical shift of int64; torch's own shift keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30)) * _MIX1
    z = (z ^ _shift_right(z, 27)) * _MIX2
    return z ^ _shift_right(z, 31)


def uniform_noise(seeds: Tensor, steps: Tensor, channels: int, width: int) -> Tensor:
    """Uniform numbers in (0, 1), float64 [N, channels, width], for int64 ``seeds`` [N] and ``steps`` [N].

    Two rounds of SplitMix64: one gives every (seed, step, channel) its own stream, the second walks the ids of that
    stream.
    """
    device = seeds.device
    streams = steps[:, None] * channels + torch.arange(channels, device=device)
    streams = _mix(_mix(seeds)[:, None] + (streams + 1) * _GAMMA)
    bits = _mix(streams[:, :, None] + torch.arange(1, width + 1, device=device) * _GAMMA)
    # 52 bits and a half step: exact in float64, never 0 and never 1.
    return (_shift_right(bits, 12).double() + 0.5) * 2.0**-52


def gumbel_noise(seeds: Tensor, steps: Tensor, channels: int, width: int) -> Tensor:
    """Standard Gumbel noise, float64 [N, channels, width]; arguments as in :func:`uniform_noise`."""
    return -torch.log(-torch.log(uniform_noise(seeds, steps, channels, width)))


def keep_mask(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Which ids may be drawn: bool like ``scores`` [N, V].

    First the ``top_k`` [N] highest (0: all), then of those the smallest head whose probability reaches ``top_p`` [N];
    an id stays while the probability *before* it is at most ``top_p``. The best id always stays. Ties go to the lower
    id.
    """
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scores.shape[-1], device=scores.device)
    in_k = (rank < top_k[:, None]) | (top_k[:, None] == 0)
    probabilities = torch.softmax(ordered.masked_fill(~in_k, -torch.inf), dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    keep = in_k & (before <= top_p[:, None])
    keep[:, 0] = True
    return torch.zeros_like(keep).scatter(-1, order, keep)
