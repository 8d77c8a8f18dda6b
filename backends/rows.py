"""Rows: what a multi-codebook speech model reads and writes, one a position.

A row is ``[text id, code 1 ... code C]``. Prompt rows hold text ids and the pad code; a generated row holds the
assistant slot id and one code a codebook, so that one row is one audio frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backends.kernels import row_keys_kernel


@dataclass(frozen=True, slots=True)
class RowSpec:
    """The ids that give a row its meaning. All are ids of one checkpoint."""

    codebooks: int
    codebook_size: int
    text_vocab: int
    pad_code: int
    assistant_slot_id: int
    user_slot_id: int = -1
    audio_start_id: int = -1
    audio_end_id: int = -1

    @property
    def width(self) -> int:
        """Numbers in a row: one text id and one code a codebook."""
        return 1 + self.codebooks


# The key of a row is a polynomial in its ids, once modulo each of two primes below 2**31: the product of two residues
# stays below 2**62, so int64 arithmetic is exact and the same on every device. The first pair is the one the folded key
# is defined with. The second prime is the next one below, so that both residues have the same range and bounds; its
# base is the smallest primitive root above 1.5 * 10**9, so that no two channels share a weight, and far from the first
# base, so that a clash under one modulus says nothing about the other.
MOD, BASE = 2**31 - 1, 1_000_000_007
MOD_2, BASE_2 = 2**31 - 19, 1_500_000_002
_PAIRS = ((BASE, MOD), (BASE_2, MOD_2))
# Domains of the keys that prompt_row_keys makes. Packed residues are below 2**62, digests below 2**128.
_PREFILLED, _DECODED = 1 << 128, 1 << 129


def row_key(rows: Tensor) -> Tensor:
    """The unfolded key of each row: two independent residues of one polynomial in the row's ids.

    ``rows`` int32 or int64 [N, W], any strides, any device, any values (ids are taken modulo the prime, floored, so
    negative ones count too). Returns int64 [N, 2] on the same device: for each (M, B) of ``(MOD, BASE)`` and
    ``(MOD_2, BASE_2)`` what Horner's rule ``acc = (acc * B + id) % M`` leaves after all W channels, text id first. Rows
    that differ in one channel only (by less than the prime) never share a key; any two others do with a chance of about
    2**-62.

    On the CPU it is evaluated as a sum of ids times powers of the base, each product reduced: the same integers as
    Horner's, in 5 operations instead of 2 a channel and modulus. On CUDA it is one kernel. Nothing synchronises and no
    shape depends on data, so a CUDA graph may hold it.
    """
    if rows.is_cuda:
        return row_keys_kernel(rows, (MOD, MOD_2), (BASE, BASE_2))
    weights, moduli = _constants(rows.shape[1], rows.device)
    ids = torch.remainder(rows.to(torch.int64).unsqueeze(-1), moduli)
    return torch.remainder(torch.remainder(ids * weights, moduli).sum(dim=1), moduli)


def folded_row_key(rows: Tensor, end_id: int, hash_space: int = 151_643, hash_offset: int = 0) -> Tensor:
    """The key of the seed (case 4), folded into ordinary token ids: for schedulers that take one for a token.

    ``rows`` as in :func:`row_key`. Returns int64 [N] in ``hash_offset`` ... ``hash_space - 1``; a row whose text id is
    ``end_id`` keeps that id, so that an end check on the key still sees it. Raises ValueError when the space is empty.
    151 643 values expect one clash among some 551 rows, so nothing here finds KV pages by it: see :func:`row_key`.
    """
    if not 0 <= hash_offset < hash_space:
        raise ValueError(f"hash_offset {hash_offset} leaves no keys below hash_space {hash_space}")
    weights, _ = _constants(rows.shape[1], rows.device)
    terms = torch.remainder(torch.remainder(rows.to(torch.int64), MOD) * weights[:, 0], MOD)
    key = torch.remainder(torch.remainder(terms.sum(dim=1), MOD), hash_space - hash_offset) + hash_offset
    return torch.where(rows[:, 0] == end_id, rows[:, 0].to(torch.int64), key) if rows.shape[1] else key


def pack_row_keys(residues: Tensor) -> list[int]:
    """Keys of generated rows as the prefix cache takes them: int64 [N, 2] of :func:`row_key`, already on the host, to
    one int a row, ``first * 2**31 + second``, below 2**62.
    """
    return (residues[:, 0] * 2**31 + residues[:, 1]).tolist()


def prompt_row_keys(
    rows: NDArray[np.int32], assistant_slot_id: int, content: NDArray[np.int32] | None = None
) -> list[int]:
    """Keys of a prompt's rows as the prefix cache takes them, computed on the host, once a request.

    ``rows`` int32 [P, W]; ``content`` int32 [P, C]: what a row holds that its ids do not say, if anything. A key names
    what a row holds **and in which shape its KV is computed**, because two shapes may differ in the last bits and a hit
    must equal a miss. With ``a`` the first row whose text id is the assistant slot id (P if there is none), rows 0 ...
    a-2 are prefilled and rows from a-1 on are decoded. So there are three disjoint domains of one type, int:

    - assistant rows: the packed :func:`row_key`, below 2**62, the same key the row had when it was generated, so that a
      prompt which continues earlier audio finds it;
    - other rows, prefilled: blake2b of the row and its content, 16 bytes, plus 2**128;
    - other rows, decoded (the last row of a prompt, and text after audio): the same digest plus 2**129.
    """
    rows = np.ascontiguousarray(rows, dtype="<i4")
    assistant = np.flatnonzero(rows[:, 0] == assistant_slot_id)
    first_decoded = (int(assistant[0]) if len(assistant) else len(rows)) - 1
    whole = rows if content is None else np.concatenate([rows, content.astype("<i4")], axis=1)
    data, size = whole.tobytes(), whole.itemsize * whole.shape[1]
    keys = [
        int.from_bytes(blake2b(data[at : at + size], digest_size=16).digest(), "little") + _PREFILLED
        for at in range(0, max(first_decoded, 0) * size, size)
    ]
    keys += [
        int.from_bytes(blake2b(data[at : at + size], digest_size=16).digest(), "little") + _DECODED
        for at in range(len(keys) * size, len(data), size)
    ]
    if len(assistant):
        generated = pack_row_keys(row_key(torch.from_numpy(rows[assistant])))
        for at, key in zip(assistant.tolist(), generated, strict=True):
            keys[at] = key
    return keys


@lru_cache(maxsize=64)
def _constants(width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Powers of both bases, int64 [width, 2], the highest first, and the moduli, int64 [2]; they never move."""
    weights = [[pow(base, width - 1 - at, mod) for base, mod in _PAIRS] for at in range(width)]
    return (
        torch.tensor(weights, dtype=torch.int64, device=device).view(width, 2),
        torch.tensor([mod for _, mod in _PAIRS], dtype=torch.int64, device=device),
    )
