"""The page pool: one count a page, back with the last owner, nothing lost."""

from __future__ import annotations

import random
from collections import Counter
from itertools import chain

import pytest

from backends.decoder.pages import PagePool


def test_allocates_all_or_nothing_in_ascending_order_at_first() -> None:
    pool = PagePool(5)
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(3) is None and pool.free == 2
    assert pool.allocate(0) == [] and pool.allocate(2) == [3, 4] and pool.free == 0


def test_the_page_that_went_back_last_comes_first() -> None:
    pool = PagePool(8)
    pool.allocate(4)
    pool.release([2])
    pool.release([0])
    assert pool.allocate(3) == [0, 2, 4]


def test_a_page_goes_back_with_its_last_owner() -> None:
    pool = PagePool(2)
    pages = pool.allocate(1)
    assert pages == [0]
    pool.retain(pages)
    assert pool.owners(0) == 2
    pool.release(pages)
    assert pool.owners(0) == 1 and pool.free == 1
    pool.release(pages)
    assert pool.owners(0) == 0 and pool.free == 2
    pool.check([])


def test_refuses_what_would_give_a_page_two_lives() -> None:
    pool = PagePool(2)
    with pytest.raises(RuntimeError, match="page 1 is free and cannot be shared"):
        pool.retain([1])
    with pytest.raises(RuntimeError, match="page 0 is free already"):
        pool.release([0])
    assert pool.allocate(1) == [0]
    with pytest.raises(RuntimeError, match="page 1 is free and cannot be shared"):
        pool.retain([0, 1])
    assert pool.owners(0) == 1
    with pytest.raises(ValueError, match="count: -1"):
        pool.allocate(-1)
    with pytest.raises(ValueError, match="pages: 0"):
        PagePool(0)


def test_check_names_what_is_wrong() -> None:
    pool = PagePool(4)
    first, second = pool.allocate(2), pool.allocate(1)
    assert first == [0, 1] and second == [2]
    pool.check([first, second])
    with pytest.raises(RuntimeError, match="page 2 counts 1 owners, 0 hold it"):
        pool.check([first])
    with pytest.raises(RuntimeError, match="page 1 counts 1 owners, 2 hold it"):
        pool.check([first, second, [1]])
    with pytest.raises(RuntimeError, match="holds a page twice"):
        pool.check([[0, 1, 1], second])
    pool._free.remove(3)
    with pytest.raises(RuntimeError, match="pages lost"):
        pool.check([first, second])


def test_a_thousand_staggered_finishes() -> None:
    rng, pool = random.Random(1), PagePool(64)
    running: list[list[int]] = []
    finished = 0
    while finished < 1000:
        pages = pool.allocate(rng.randint(1, 9))
        if pages is not None:
            running.append(pages)
        if pages is None or rng.random() < 0.4:
            pool.release(running.pop(rng.randrange(len(running))))
            finished += 1
        assert len(set(chain(*running))) == sum(map(len, running)), "a page has two owners"
        pool.check(running)
    for pages in running:
        pool.release(pages)
    pool.check([])
    assert pool.free == 64


def test_counts_agree_with_a_naive_model() -> None:
    rng, pool = random.Random(2), PagePool(20)
    owners: list[list[int]] = []
    for _ in range(4000):
        choice = rng.random()
        if choice < 0.4:
            count = rng.randint(0, 6)
            pages = pool.allocate(count)
            assert (pages is None) == (20 - len(set(chain(*owners))) < count)
            if pages is not None:
                owners.append(pages)
        elif choice < 0.6 and owners:
            shared = list(rng.choice(owners))
            pool.retain(shared)
            owners.append(shared)
        elif owners:
            pool.release(owners.pop(rng.randrange(len(owners))))
        counts = Counter(chain(*owners))
        assert [pool.owners(page) for page in range(20)] == [counts[page] for page in range(20)]
        assert pool.free == 20 - len(counts)
        pool.check(owners)
