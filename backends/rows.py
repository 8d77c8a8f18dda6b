"""Rows: what a multi-codebook speech model reads and writes, one a position.

A row is ``[text id, code 1 ... code C]``. Prompt rows hold text ids and the pad code; a generated row holds the
assistant slot id and one code a codebook, so that one row is one audio frame.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowSpec:
    """The ids that give a row its meaning. All are ids of one checkpoint."""

    codebooks: int
    codebook_size: int
    text_vocab: int
    pad_code: int
    assistant_slot_id: int
    user_slot_id: int
    audio_start_id: int
    audio_end_id: int

    @property
    def width(self) -> int:
        """Numbers in a row: one text id and one code a codebook."""
        return 1 + self.codebooks
