"""How requests sample: their parameters by slot, gathered for the rows of each step.

The draw itself is counter-based (:mod:`backends.kernels.noise`, :mod:`backends.kernels.sampling`): the same request
gives the same ids, whatever shares the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backends.kernels import Draws, sample_embed, sample_ids
from backends.models.protocol import CodeReader, CodeSampler


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request samples. ``temperature`` 0 is greedy and ignores the rest."""

    seed: int
    temperature: float
    top_p: float
    top_k: int
    text_temperature: float


class Sampler(CodeSampler):
    """Samples for the rows of a decode step.

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
        self._rows: Tensor | None = None
        self._code_draws: Draws | None = None
        self._stop_draws: Draws | None = None

    def set_slot(self, slot: int, params: SamplingParams | None) -> None:
        """Let ``slot`` sample by ``params``; None makes it greedy."""
        params = params or SamplingParams(0, 0.0, 1.0, 0, 1.0)
        # fill_, because `tensor[i] = number` waits for the device (torch 2.11).
        self._seed[slot].fill_(params.seed)
        self._temperature[slot].fill_(params.temperature)
        self._text_temperature[slot].fill_(params.text_temperature)
        self._top_p[slot].fill_(params.top_p)
        self._top_k[slot].fill_(params.top_k)

    def begin(self, slot_ids: Tensor, steps: Tensor, sampled: Tensor | bool) -> None:
        """Prepare one step: row b belongs to ``slot_ids[b]`` and has made ``steps[b]`` frames before (int64 [B] both).

        ``sampled``: which rows may sample. False: none, the step is an arg max. True: decided on the device by each
        row's temperature (a GPU step, which a graph may hold). Int64 [n]: these rows (a CPU step, where the host
        knows), so that the others cost nothing. All give the same ids.
        """
        self.steps = steps
        self._code_draws = self._stop_draws = None
        self._rows = None
        if sampled is False:
            return
        if isinstance(sampled, Tensor):
            self._rows, slot_ids, steps = sampled, slot_ids[sampled], steps[sampled]
        seeds, temperature = self._seed[slot_ids], self._temperature[slot_ids]
        none = torch.zeros_like(seeds)
        self._code_draws = Draws(seeds, steps, temperature, self._top_k[slot_ids], self._top_p[slot_ids], self.channels)
        # The stop head has its own temperature, where the row samples at all, and no filters.
        text = torch.where(temperature > 0, self._text_temperature[slot_ids], 0.0)
        self._stop_draws = Draws(seeds, steps, text, none, torch.ones_like(temperature), self.channels)

    def stop(self, logits: Tensor) -> Tensor:
        """``logits`` [B, 2] (go on, end) -> bool [B]."""
        return self._choose(logits, self._stop_draws, 0) == 1

    def code(self, logits: Tensor, codebook: int) -> Tensor:
        """``logits`` [B, codebook size] -> int64 [B]."""
        return self._choose(logits, self._code_draws, codebook + 1)

    def code_embed(self, logits: Tensor, codebook: int, reader: CodeReader) -> tuple[Tensor, Tensor, Tensor]:
        """As in the base class; one kernel on a GPU."""
        if not logits.is_cuda:
            return super().code_embed(logits, codebook, reader)
        return sample_embed(
            logits, self._code_draws, codebook + 1, reader.table, reader.offset, reader.position,
            reader.weight, reader.bias, reader.eps,
        )  # fmt: skip

    def _choose(self, logits: Tensor, draws: Draws | None, channel: int) -> Tensor:
        if draws is None or self._rows is None:
            return sample_ids(logits, draws, channel)
        greedy = logits.argmax(dim=-1)
        return greedy.index_copy(0, self._rows, sample_ids(logits[self._rows], draws, channel))
