"""All keys forced to be equal: the prefix cache must never hand out the pages of other rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.models.moss_tts_local import MossTTSLocal
from backends.models.moss_tts_local_prompt import PromptBuilder
from tests.unit.decoding import make

Codes = np.ndarray[Any, Any]
TEXTS = ("The quick brown fox jumps over the lazy dog.", "A large size in stockings is hard to sell these days.")
FRAMES = 20


def play(engine: DecoderEngine, prompts: PromptBuilder, rows: torch.Tensor, stream: int, frames: int) -> Codes:
    listener, request = make(prompts, "unused", stream, frames)
    request.rows, request.total = rows, len(rows)
    engine.submit(request)
    return listener.codes()


def all_of_them(engine: DecoderEngine, prompts: PromptBuilder, slot_id: int) -> list[Codes]:
    """Two texts, two takes of each, then every take continued: other prompts and other frames at the same places."""
    takes, codes = [], []
    for stream in range(4):
        rows = torch.from_numpy(prompts.build(TEXTS[stream // 2])).long()
        takes.append((rows, play(engine, prompts, rows, 2 * stream + 1, FRAMES)))
    for number, (rows, made) in enumerate(takes):
        slots = torch.full((len(made), 1), slot_id)
        longer = torch.cat([rows, torch.cat([slots, torch.from_numpy(made).long()], dim=1)])
        codes.append(play(engine, prompts, longer, 100 + 2 * number, 6))
    return [made for _, made in takes] + codes


def test_rows_that_share_every_key_share_no_page(
    model: MossTTSLocal, prompts: PromptBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: dict[str, Any] = {"max_running": 2, "max_positions": 256, "num_threads": 1}
    plain = DecoderEngine(model, EngineConfig(**config, prefix_cache=False))
    expected = all_of_them(plain, prompts, model.rows.assistant_slot_id)
    plain.close()
    assert not np.array_equal(expected[0], expected[1]) and not np.array_equal(expected[0], expected[2])

    monkeypatch.setattr("backends.decoder.memory.prompt_row_keys", lambda rows, slot_id, content: [7] * len(rows))
    monkeypatch.setattr(
        "backends.decoder.runner.row_key", lambda rows: rows.new_tensor([0, 7]).expand(len(rows), 2)
    )  # packed: 7
    engine = DecoderEngine(model, EngineConfig(**config, lookahead_min_batch=1))
    found = all_of_them(engine, prompts, model.rows.assistant_slot_id)
    assert [np.array_equal(a, b) for a, b in zip(found, expected, strict=True)] == [True] * len(expected)
    metrics = engine.metrics
    print(f"\n{metrics.prefix_clashes.value:g} clashes, {metrics.prefix_hits.value:g} hits")
    assert metrics.prefix_clashes.value > 0
    assert metrics.prefix_hits.value > 0, "equal rows are still found"
    engine.check_idle()
    engine.close()
