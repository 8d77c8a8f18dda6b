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

    Parameters lie on the device by slot (:meth:`set_slot`); a step gathers them by slot id, so nothing crosses to the
    host and a captured step serves whatever requests hold the slots. A greedy row has temperature 0.
    """

    def __init__(self, slots: int, channels: int, width: int, device: torch.device) -> None:
        """``slots``: the scratch slot included. ``channels``: 1 + codebooks. ``width``: ids of the widest head."""
        self.channels, self.width, self.device = channels, width, device
        self._seed = torch.zeros(slots, dtype=torch.int64, device=device)
        self._temperature = torch.zeros(slots, dtype=torch.float64, device=device)
        self._text_temperature = torch.ones(slots, dtype=torch.float64, device=device)
        self._top_p = torch.ones(slots, dtype=torch.float64, device=device)
        self._top_k = torch.zeros(slots, dtype=torch.int64, device=device)
        self._sampling = False

    def set_slot(self, slot: int, params: SamplingParams | None) -> None:
        """Let ``slot`` sample by ``params``; None makes it greedy."""
        params = params or SamplingParams(0, 0.0, 1.0, 0, 1.0)
        self._seed[slot] = params.seed
        self._temperature[slot] = params.temperature
        self._text_temperature[slot] = params.text_temperature
        self._top_p[slot] = params.top_p
        self._top_k[slot] = params.top_k

    def begin(self, slot_ids: Tensor, steps: Tensor, sampled: Tensor | bool) -> None:
        """Prepare one step: row b belongs to ``slot_ids[b]`` and has made ``steps[b]`` frames before (int64 [B] both).

        ``sampled``: which rows may sample. False: none, the step is an arg max. True: decided on the device by each
        row's temperature, at the cost of computing noise for all. Int64 [n]: these rows, so that the others cost
        nothing (a CPU step, where the host knows). All three give the same ids.
        """
        self._sampling = sampled is not False
        if not self._sampling:
            return
        self._rows = sampled if isinstance(sampled, Tensor) else None
        ids = slot_ids if self._rows is None else slot_ids[self._rows]
        steps = steps if self._rows is None else steps[self._rows]
        self._noise = gumbel_noise(self._seed[ids], steps, self.channels, self.width)
        temperature = self._temperature[ids]
        self._greedy = temperature == 0
        # A greedy row's scores are computed and not used: any divisor but 0 will do.
        self._divisor = torch.where(self._greedy, 1.0, temperature)[:, None]
        self._text_divisor = self._text_temperature[ids][:, None]
        self._row_top_p, self._row_top_k = self._top_p[ids], self._top_k[ids]

    def stop(self, logits: Tensor) -> Tensor:
        """``logits`` [B, 2] (go on, end) -> bool [B]."""
        choice = logits.argmax(dim=-1)
        if self._sampling:
            scores = self._of_sampled(logits).double() / self._text_divisor + self._noise[:, 0, :2]
            choice = self._merge(choice, scores.argmax(dim=-1))
        return choice == 1

    def code(self, logits: Tensor, codebook: int) -> Tensor:
        """``logits`` [B, codebook size] -> int64 [B]."""
        choice = logits.argmax(dim=-1)
        if self._sampling:
            scores = self._of_sampled(logits).double() / self._divisor
            scores = scores.masked_fill(~keep_mask(scores, self._row_top_k, self._row_top_p), -torch.inf)
            scores = scores + self._noise[:, codebook + 1, : logits.shape[-1]]
            choice = self._merge(choice, scores.argmax(dim=-1))
        return choice

    def _of_sampled(self, logits: Tensor) -> Tensor:
        return logits if self._rows is None else logits[self._rows]

    def _merge(self, greedy: Tensor, sampled: Tensor) -> Tensor:
        """The arg max for greedy rows, the draw for the others."""
        if self._rows is None:
            return torch.where(self._greedy, greedy, sampled)
        return greedy.index_copy(0, self._rows, torch.where(self._greedy, greedy[self._rows], sampled))
