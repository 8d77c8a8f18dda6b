"""Rows of models that write text: ``[kind, token]``, one codebook as wide as the vocabulary.

A row of an audio model holds a text id and codes; here the one code is the token, and the text id says what the row is.
So a text model runs on the same engine: its frame is one token, and a chunk of codes is a chunk of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from backends.errors import InvalidArgument
from backends.models.sampling_defaults import SamplingDefaults
from backends.rows import RowSpec

PROMPT, MADE = 0, 1  # a token of the prompt; a token that the model has written


def text_row_spec(vocabulary: int) -> RowSpec:
    """Rows of a model with ``vocabulary`` tokens. Padding rows hold token 0; nobody reads what they make."""
    return RowSpec(codebooks=1, codebook_size=vocabulary, text_vocab=2, pad_code=0, assistant_slot_id=MADE)


def text_rows(ids: Sequence[int], made: int = 0) -> NDArray[np.int32]:
    """Prompt rows int32 [P, 2] of ``ids``, of which the last ``made`` are text that the model wrote before."""
    if not 0 <= made < max(len(ids), 1):
        raise InvalidArgument("prompt", f"{made} of {len(ids)} tokens continue text; one at least must stand before")
    rows = np.empty((len(ids), 2), dtype=np.int32)
    rows[:, 0], rows[:, 1] = PROMPT, ids
    rows[len(ids) - made :, 0] = MADE
    return rows


def greedy_defaults(max_tokens: int) -> SamplingDefaults:
    """Speech to text is greedy unless a request asks for something else."""
    return SamplingDefaults(temperature=0.0, top_p=1.0, top_k=0, text_temperature=1.0, max_frames=max_tokens)
