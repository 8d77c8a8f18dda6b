"""Counter-based sampling: the same request gives the same ids, whatever shares the batch.

Noise is a pure function of (seed, step, channel, id). No generator state exists, so nothing can be drawn in another
order by another neighbour, and a step that is computed twice samples twice the same. The id is the arg max of ``log p +
Gumbel noise`` (Gumbel 1954), which samples from p exactly and needs no cumulative sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_INT64 = 1 << 64


def _signed(value: int) -> int:
    return value - _INT64 if value >= 1 << 63 else value


# SplitMix64 (Steele, Lea, Flood 2014): output i of seed s is mix(s + i * gamma); the mixer is Stafford's variant 13.
_GAMMA, _MIX1, _MIX2 = (_signed(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request samples. ``temperature`` 0 is greedy and ignores the rest."""

    seed: int
    temperature: float
    top_p: float
    top_k: int
    text_temperature: float


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


class Sampler:
    """Samples for the rows of a decode step (:class:`backends.models.protocol.CodeSampler`).

    Parameters are kept by slot; :meth:`begin` says which slot stands in which row of the step. Greedy rows cost an arg
    max; noise and filters are computed for the sampled rows alone.
    """

    def __init__(self, slots: int, channels: int, width: int, device: torch.device) -> None:
        """``channels``: 1 + codebooks. ``width``: ids of the widest head."""
        self.channels, self.width, self.device = channels, width, device
        self._params: list[SamplingParams | None] = [None] * slots
        self._layout: tuple[int, ...] | None = None
        self._any = self._filtered = False

    def set_slot(self, slot: int, params: SamplingParams | None) -> None:
        """Let ``slot`` sample by ``params``; None frees it."""
        self._params[slot] = params
        self._layout = None

    def begin(self, slots: tuple[int, ...], steps: Tensor) -> None:
        """Prepare one step: row b belongs to ``slots[b]``; ``steps`` int64 [B]: frames each row has made before."""
        if slots != self._layout:
            self._gather(slots)
        if self._any:
            self._noise = gumbel_noise(self._seeds, steps[self._rows], self.channels, self.width)

    def _gather(self, slots: tuple[int, ...]) -> None:
        """Collect the parameters of the sampled rows; runs when the batch changes, not in every step."""
        params = [(row, self._params[slot]) for row, slot in enumerate(slots)]
        sampled = [(row, p) for row, p in params if p is not None and p.temperature > 0]
        self._layout, self._any = slots, bool(sampled)
        self._filtered = any(p.top_k > 0 or p.top_p < 1.0 for _, p in sampled)

        def column(values: list[float] | list[int], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=self.device)

        self._rows = column([row for row, _ in sampled], torch.int64)
        self._seeds = column([p.seed for _, p in sampled], torch.int64)
        self._temperature = column([p.temperature for _, p in sampled], torch.float64)[:, None]
        self._text_temperature = column([p.text_temperature for _, p in sampled], torch.float64)[:, None]
        self._top_p = column([p.top_p for _, p in sampled], torch.float64)
        self._top_k = column([p.top_k for _, p in sampled], torch.int64)

    def stop(self, logits: Tensor) -> Tensor:
        """``logits`` [B, 2] (go on, end) -> bool [B]."""
        choice = logits.argmax(dim=-1)
        if self._any:
            scores = logits[self._rows].double() / self._text_temperature + self._noise[:, 0, :2]
            choice = choice.index_copy(0, self._rows, scores.argmax(dim=-1))
        return choice == 1

    def code(self, logits: Tensor, codebook: int) -> Tensor:
        """``logits`` [B, codebook size] -> int64 [B]."""
        choice = logits.argmax(dim=-1)
        if self._any:
            scores = logits[self._rows].double() / self._temperature
            if self._filtered:
                scores = scores.masked_fill(~keep_mask(scores, self._top_k, self._top_p), -torch.inf)
            scores = scores + self._noise[:, codebook + 1, : logits.shape[-1]]
            choice = choice.index_copy(0, self._rows, scores.argmax(dim=-1))
        return choice
