"""How many streams a step computes, chosen so that the choice cannot be heard.

A matrix product may use another kernel, and so another order of sums, at another number of rows: a step that is padded
to the streams at hand would let the load change the audio. So a step is always padded to the largest bucket, unless a
smaller one was seen, at load and for every number of frames, to give the same bits (as in
:mod:`backends.decoder.buckets`: a kernel is chosen by shapes and not by values). The same look tells whether a stream's
place in the bucket matters, which no padding could mend.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

log = logging.getLogger(__name__)


def stream_buckets(
    decode: Callable[[Tensor], Tensor], largest: int, frames: int, codes: Callable[[int], Tensor], deterministic: bool
) -> tuple[int, ...]:
    """Ascending numbers of streams; the last one is ``largest``.

    ``decode(codes [B, T, codebooks]) -> audio [B, samples]`` of fresh streams; ``codes(T)`` random codes [T,
    codebooks]; every T up to ``frames`` is tried, which also compiles what is compiled at a first call.
    ``deterministic`` False takes every power of two.
    """
    ladder = [size for size in (2**power for power in range(largest.bit_length())) if size < largest]
    kept, placed = list(ladder), True
    for length in range(1, frames + 1):
        one = codes(length)[None]
        reference = decode(one.expand(largest, -1, -1))
        placed = placed and bool((reference == reference[:1]).all())
        for size in list(kept) if deterministic else ladder:
            audio = decode(one.expand(size, -1, -1))
            if deterministic and not torch.equal(audio, reference[:size]):
                kept.remove(size)
    if not placed:
        log.warning("a stream's audio depends on its place among %d: load may change the last bits here", largest)
    log.info("vocoder steps of %s streams, of %s tried", [*kept, largest], [*ladder, largest])
    return (*kept, largest)
