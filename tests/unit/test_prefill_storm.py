"""Many long prompts at once: a stream that runs is never held up by more pieces than ``prefill_pieces``.

Counted, not timed: what stands between two launches of the running stream is known exactly on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.decoder.request import DecodeRequest
from backends.decoder.runner import Flight
from backends.models.moss_tts_local import MossTTSLocal
from backends.models.moss_tts_local_prompt import PromptBuilder
from tests.server.texts import LONG
from tests.unit.decoding import make

NEWCOMERS, PIECE = 12, 32


class Steps:
    """Notes, around a runner, how many pieces were read before each launch that the stream ``watched`` is part of."""

    def __init__(self, engine: DecoderEngine, watched: DecodeRequest) -> None:
        self.between: list[int] = []
        self._watched, self._pieces = watched, 0
        self._prefill, self._launch = engine._runner.prefill, engine._runner.launch
        engine._runner.prefill = self.prefill  # type: ignore[method-assign]
        engine._runner.launch = self.launch  # type: ignore[method-assign]

    def prefill(self, request: DecodeRequest) -> int:
        if request is not self._watched:
            self._pieces += 1
        return self._prefill(request)

    def launch(self, requests: Sequence[DecodeRequest]) -> Flight:
        if self._watched in requests:
            self.between.append(self._pieces)
        self._pieces = 0  # a launch without it, once it has ended, ends no gap of its own
        return self._launch(requests)


@pytest.mark.parametrize(("pieces", "lookahead_min_batch"), [(1, 1), (3, 0)])
def test_a_running_stream_waits_for_few_pieces(
    model: MossTTSLocal, prompts: PromptBuilder, sentences: list[str], pieces: int, lookahead_min_batch: int
) -> None:
    config: dict[str, Any] = {"max_running": 16, "max_positions": 1024, "prefill_rows": PIECE, "num_threads": 1}
    config |= {"prefill_pieces": pieces, "lookahead_min_batch": lookahead_min_batch}
    engine = DecoderEngine(model, EngineConfig(**config))
    # Other first words each: the prefix cache has nothing to save, every piece is read.
    long = [f"{sentences[number]} {sentences[40 + number]}" for number in range(NEWCOMERS)]
    frames = 20 + 60 // pieces
    alone, request = make(prompts, LONG, 2, frames)
    engine.submit(request)
    expected = alone.codes()
    assert len(expected) == frames, "the stream has to outlive the storm"
    engine.metrics.step_gap.drain()

    listener, request = make(prompts, LONG, 2, frames)
    steps = Steps(engine, request)
    engine.submit(request)
    assert listener.started.wait(60)
    storm, wanted = [], 0
    for number, text in enumerate(long):
        newcomer, other = make(prompts, text, 1000 + 2 * number, 2)
        engine.submit(other)
        storm.append(newcomer)
        wanted += -(-other.prefill_rows // PIECE)
    assert np.array_equal(listener.codes(), expected), "the storm changed a running stream"
    for newcomer in storm:
        newcomer.codes()
    engine.check_idle()
    engine.close()

    print(
        f"\n{wanted} pieces of {NEWCOMERS} prompts over {len(steps.between)} steps, most {max(steps.between)} at once"
    )
    assert max(steps.between) == pieces, "a stream that runs waits for no more than prefill_pieces"
    assert len(steps.between) >= frames
    # The storm came while the stream ran, and was over before it ended: every piece lies between two of its launches.
    assert wanted // 2 <= sum(steps.between) <= wanted
    assert steps.between[-1] == 0
    # The histogram that is exported has one gap a step.
    assert len(engine.metrics.step_gap.drain()) >= len(steps.between) - 1
