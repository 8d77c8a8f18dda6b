"""Whether a window's states depend on its place in a pass: seen at load, on this machine."""

from __future__ import annotations

import numpy as np

from backends.asr.encoders import StateEncoder


def same_in_every_place(encoder: StateEncoder, count: int) -> bool:
    """Whether all of ``count`` equal windows of one pass get the same bits, for every shape that a pass can have.

    A library may divide the sums of one part of a product and not those of another. It chooses by shapes and not by
    values, so what holds for one random window holds for all.
    """
    random = np.random.default_rng(0)
    for frames in encoder.lengths:
        mels = random.standard_normal((1, encoder.mels, frames), dtype=np.float32)
        window = (mels, np.array([frames], dtype=np.int32))
        states = encoder.encode([window] * count)
        if not all(np.array_equal(states[0], other) for other in states[1:]):
            return False
    return True
