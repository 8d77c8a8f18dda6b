"""Keys of rows against big integers: the folded key of the seed, the unfolded key, and the keys of a prompt."""

from __future__ import annotations

import random
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from backends.rows import BASE, BASE_2, MOD, MOD_2, folded_row_key, pack_row_keys, prompt_row_keys, row_key

ASSISTANT, USER, END = 151656, 151654, 151670
SHAPES = [(0, 13), (4, 0), (1, 1), (3, 7), (16, 13), (129, 33)]
INT32_MIN, INT32_MAX, INT64_MIN, INT64_MAX = -(2**31), 2**31 - 1, -(2**63), 2**63 - 1


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def horner(row: list[int], base: int, mod: int) -> int:
    """Python integers, the definition as it stands."""
    acc = 0
    for value in row:
        acc = (acc * base + value % mod) % mod
    return acc


def unfolded(rows: Tensor) -> list[list[int]]:
    return [[horner(row, BASE, MOD), horner(row, BASE_2, MOD_2)] for row in rows.tolist()]


def folded(rows: Tensor, end: int = END, space: int = 151_643, offset: int = 0) -> list[int]:
    return [
        end if row and row[0] == end else horner(row, BASE, MOD) % (space - offset) + offset for row in rows.tolist()
    ]


def random_rows(shape: tuple[int, int], seed: int = 0, dtype: torch.dtype = torch.int64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, 1025, shape, generator=generator, dtype=dtype)
    rows[:, :1] = ASSISTANT
    return rows


def speech_row(seed: int = 5) -> list[int]:
    return random_rows((1, 13), seed)[0].tolist()


def test_both_moduli_are_primes_and_the_second_base_generates_all_residues() -> None:
    for prime in (MOD, MOD_2):
        assert all(prime % divisor for divisor in range(2, int(prime**0.5) + 1))
    assert MOD_2 - 1 == 2 * 2 * 3 * 3 * 59652323
    assert all(pow(BASE_2, (MOD_2 - 1) // factor, MOD_2) != 1 for factor in (2, 3, 59652323))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_big_integers_at_every_shape(shape: tuple[int, int], dtype: torch.dtype) -> None:
    rows = random_rows(shape, dtype=dtype)
    key, short = row_key(rows), folded_row_key(rows, END)
    assert key.dtype == short.dtype == torch.int64 and key.shape == (shape[0], 2) and short.shape == shape[:1]
    assert key.device == short.device == rows.device
    assert key.tolist() == unfolded(rows) and short.tolist() == folded(rows)


@pytest.mark.parametrize(("low", "high"), [(INT32_MIN, INT32_MAX), (INT64_MIN, INT64_MAX)])
def test_equals_big_integers_for_any_id(low: int, high: int) -> None:
    rng = random.Random(3)
    edges = [low, low + 1, high, high - 1, 0, 1, -1, -MOD, -MOD_2, MOD_2, min(high, MOD + 1), min(high, MOD_2 + 1)]
    rows = torch.tensor([[rng.choice([*edges, rng.randint(low, high)]) for _ in range(13)] for _ in range(300)])
    rows = torch.cat([rows, torch.full((1, 13), low), torch.full((1, 13), high), torch.full((1, 13), -1)])
    if high == INT32_MAX:
        assert torch.equal(row_key(rows.to(torch.int32)), row_key(rows))
        assert torch.equal(folded_row_key(rows.to(torch.int32), END), folded_row_key(rows, END))
    assert row_key(rows).tolist() == unfolded(rows) and folded_row_key(rows, END).tolist() == folded(rows)


def test_strided_rows() -> None:
    wide = random_rows((64, 40), seed=1)
    for rows in (wide[::3, 2:28:2], wide.T[:20, ::5], wide[:, :1].expand(64, 13), wide.flip(0)[:, 5:18]):
        assert not rows.is_contiguous() or rows.stride(0) != rows.shape[1]
        assert row_key(rows).tolist() == unfolded(rows) and folded_row_key(rows, END).tolist() == folded(rows)


def test_same_rows_same_keys_wherever_they_stand() -> None:
    rows = random_rows((16, 13), seed=2)
    first, order = row_key(rows), torch.randperm(16)
    for _ in range(8):
        assert torch.equal(row_key(rows), first)
    assert torch.equal(row_key(rows[order]), first[order])
    assert torch.equal(torch.cat([row_key(row[None]) for row in rows]), first)


def test_near_rows_have_far_keys() -> None:
    row = speech_row()
    near = [row]
    for channel in range(1, 13):
        for step in (-1, 1):  # 24 neighbours
            near.append([value + step * (at == channel) for at, value in enumerate(row)])
    for at in range(1, 9):  # 8 permutations of the channels
        near.append(row[:1] + row[at + 1 :] + row[1 : at + 1])
    near += random_rows((40, 13), seed=7).tolist()
    rows = torch.tensor(near)
    assert len({tuple(key) for key in row_key(rows).tolist()}) == len(near)
    for residue in row_key(rows).T:
        assert len(set(residue.tolist())) == len(near)
    assert len(set(folded_row_key(rows, END).tolist())) == len(near)


def test_every_channel_counts() -> None:
    """The text id of all generated rows is one and the same: keys of it alone would join any two streams."""
    row = speech_row()
    for channel in range(13):
        other = [value + 1 * (at == channel) for at, value in enumerate(row)]
        one, two = row_key(torch.tensor([row, other]))
        assert (one != two).all()


@pytest.mark.parametrize(("space", "offset"), [(151_643, 0), (16_384, 10), (2, 1)])
def test_folded_keys_stay_in_their_domain_and_end_rows_keep_their_id(space: int, offset: int) -> None:
    rows = random_rows((500, 13), seed=9)
    rows[::7, 0] = END
    key = folded_row_key(rows, END, space, offset)
    assert key.tolist() == folded(rows, END, space, offset)
    assert (key[::7] == END).all()
    others = key[(rows[:, 0] != END)]
    assert others.min() >= offset and others.max() < space


def test_folded_key_refuses_an_empty_space() -> None:
    with pytest.raises(ValueError, match="hash_offset 10 leaves no keys below hash_space 10"):
        folded_row_key(random_rows((1, 13)), END, hash_space=10, hash_offset=10)


def test_the_folded_key_clashes_where_the_unfolded_does_not() -> None:
    rows = random_rows((4000, 13), seed=11)
    assert len(set(folded_row_key(rows, END).tolist())) < 4000
    assert len({tuple(key) for key in row_key(rows).tolist()}) == 4000


def test_packed_keys_keep_both_residues() -> None:
    rows = random_rows((50, 13), seed=4)
    keys = pack_row_keys(row_key(rows))
    assert [[key >> 31, key & (2**31 - 1)] for key in keys] == unfolded(rows)
    assert max(keys) < 2**62


def prompt(audio: int = 0, tail: int = 0) -> np.ndarray:
    """12 text rows, ``audio`` assistant rows, ``tail`` text rows."""
    rows = random_rows((12 + audio + tail, 13), seed=6, dtype=torch.int32)
    rows[:12, 0] = torch.arange(100, 112)
    rows[12 + audio :, 0] = END
    return rows.numpy()


def digest(row: np.ndarray) -> int:
    return int.from_bytes(blake2b(row.astype("<i4").tobytes(), digest_size=16).digest(), "little")


def test_prompt_keys_are_digests_in_a_domain_of_their_own() -> None:
    rows = prompt()
    keys = prompt_row_keys(rows, ASSISTANT)
    assert all(type(key) is int and key >= 2**128 for key in keys)
    assert keys[:-1] == [digest(row) + 2**128 for row in rows[:-1]]
    assert keys[-1] == digest(rows[-1]) + 2**129  # the last row goes through a decode step


def test_a_prompt_that_continues_audio_has_the_keys_of_the_rows_when_they_were_made() -> None:
    before = prompt_row_keys(prompt(), ASSISTANT)
    rows = prompt(audio=5)
    made = pack_row_keys(row_key(torch.from_numpy(rows[12:])))
    assert prompt_row_keys(rows, ASSISTANT) == before + made


def test_a_row_has_another_key_where_it_is_computed_in_another_shape() -> None:
    """The last prompt row is decoded; with more text behind it that row is prefilled: its KV may differ by a bit."""
    rows = prompt()
    short, long = prompt_row_keys(rows[:11], ASSISTANT), prompt_row_keys(rows, ASSISTANT)
    assert short[:10] == long[:10] and short[10] != long[10]
    after = prompt_row_keys(prompt(audio=3, tail=2), ASSISTANT)
    assert all(2**129 <= key < 2**129 + 2**128 for key in [after[11], *after[15:]])
    first = prompt(audio=4)[12:]
    assert prompt_row_keys(first, ASSISTANT) == pack_row_keys(row_key(torch.from_numpy(first)))


def test_prompt_keys_of_odd_inputs() -> None:
    rows = prompt(audio=2)
    expected = prompt_row_keys(rows, ASSISTANT)
    assert prompt_row_keys(np.asfortranarray(rows), ASSISTANT) == expected
    assert prompt_row_keys(rows.astype(np.int64), ASSISTANT) == expected
    assert prompt_row_keys(np.zeros((0, 13), dtype=np.int32), ASSISTANT) == []
    assert len(set(expected)) == len(expected) and all(one != two for one, two in pairwise(expected))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_a_gpu_in_a_graph_without_a_synchronisation() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    for shape in SHAPES:
        rows = random_rows(shape).to(device)
        assert row_key(rows).device == device
        assert row_key(rows).tolist() == unfolded(rows) and folded_row_key(rows, END).tolist() == folded(rows)
    static = random_rows((129, 13)).to(device)
    row_key(static)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        row_key(static), folded_row_key(static, END)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        key, short = row_key(static), folded_row_key(static, END)
    for step in range(3):
        rows = random_rows((129, 13), seed=step + 20)
        rows[step :: step + 2, 0] = END
        static.copy_(rows)
        graph.replay()
        assert key.tolist() == unfolded(rows) and short.tolist() == folded(rows)
