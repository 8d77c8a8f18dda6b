"""The prefix cache under load: thousands of random requests against a naive model, staggered finishes, speed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
import torch

from backends.decoder.pages import PagePool
from backends.decoder.prefix_cache import PrefixCache
from tests.unit.prefix_rows import PAGE, Rows, audio_rows, exact, text_rows


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def weak(rows: Rows) -> list[int]:
    """Clashes all the time."""
    return [int(row.sum()) % 2 for row in rows]


@dataclass
class Model:
    """What the cache should hold, the slow way: every cached prefix in one dict."""

    max_pages: int
    held: dict[tuple[int, ...], tuple[bytes, int]] = field(default_factory=dict)  # keys of a prefix -> rows, page
    stamp: dict[tuple[int, ...], int] = field(default_factory=dict)
    clock: int = 0
    clashes: int = 0

    def path(self, keys: list[int], rows: Rows, count: int) -> list[tuple[int, ...]]:
        path = []
        for at in range(count):
            prefix = tuple(keys[: (at + 1) * PAGE])
            if prefix not in self.held:
                break
            if self.held[prefix][0] != rows[at * PAGE : (at + 1) * PAGE].tobytes():
                self.clashes += 1
                break
            path.append(prefix)
        return path

    def touch(self, path: list[tuple[int, ...]]) -> None:
        for prefix in reversed(path):
            self.clock += 1
            self.stamp[prefix] = self.clock

    def evict(self, count: int, owners: Callable[[int], int], keep: list[tuple[int, ...]]) -> list[int]:
        gone: list[int] = []
        while len(gone) < count:
            inner = {prefix[:-PAGE] for prefix in self.held}
            leaves = [
                prefix
                for prefix, (_, page) in self.held.items()
                if prefix not in inner and prefix not in keep and owners(page) == 1
            ]
            if not leaves:
                break
            oldest = min(leaves, key=lambda prefix: self.stamp[prefix])
            gone.append(self.held.pop(oldest)[1])
        return gone

    def insert(self, keys: list[int], rows: Rows, pages: list[int], owners: Callable[[int], int]) -> int:
        count = min(len(pages), len(rows) // PAGE)
        path = self.path(keys, rows, count)
        known = len(path)
        if tuple(keys[: (known + 1) * PAGE]) in self.held:
            count = known
        self.evict(len(self.held) + count - known - self.max_pages, owners, path)
        for at in range(known, min(count, known + self.max_pages - len(self.held))):
            prefix = tuple(keys[: (at + 1) * PAGE])
            self.held[prefix] = rows[at * PAGE : (at + 1) * PAGE].tobytes(), pages[at]
            path.append(prefix)
        self.touch(path)
        return len(path) - known


@dataclass(eq=False)
class Request:
    rows: Rows
    keys: list[int]
    pages: list[int]
    done: int  # rows whose KV is written


@pytest.mark.parametrize("keys_of", [exact, weak], ids=["exact keys", "clashing keys"])
@pytest.mark.parametrize("max_pages", [None, 12])
def test_agrees_with_a_naive_model(keys_of: Callable[[Rows], list[int]], max_pages: int | None) -> None:
    """Thousands of requests come, hit, grow, finish, abort and press on the pages; ``written`` remembers what every
    page holds, so a page of another prefix would show at once."""
    rng, pool = random.Random(max_pages or 0), PagePool(40)
    cache = PrefixCache(pool, PAGE, max_pages)
    model = Model(40 if max_pages is None else max_pages)
    alphabet = [text_rows(PAGE, seed=seed, width=3) for seed in range(3)] + [audio_rows(PAGE, seed=1)[:, :3]]
    running: list[Request] = []
    written: dict[int, bytes] = {}
    for turn in range(3000):
        choice = rng.random()
        if choice < 0.45:
            rows = np.concatenate(rng.choices(alphabet, k=rng.randint(1, 6)))[: rng.randint(1, 24)]
            keys = keys_of(rows)
            hit = cache.match(keys, rows, len(rows) - 1)
            path = model.path(keys, rows, (len(rows) - 1) // PAGE)
            model.touch(path)
            assert hit == [model.held[prefix][1] for prefix in path]
            for at, page in enumerate(hit):
                assert written[page] == rows[: (at + 1) * PAGE].tobytes(), "a page of another prefix"
            wanted = -(-len(rows) // PAGE) - len(hit)
            expected = model.evict(wanted - pool.free, pool.owners, [])
            assert cache.evict(wanted) == len(expected)
            own = pool.allocate(wanted)
            if own is None:
                pool.release(hit)
            else:
                request = Request(rows, keys, hit + own, len(hit) * PAGE)
                assert len(set(request.pages)) == len(request.pages)
                running.append(request)
        elif choice < 0.7 and running:
            request = rng.choice(running)
            shared = request.done // PAGE
            request.done = rng.randint(request.done, len(request.rows))
            for at in range(shared, request.done // PAGE):
                written[request.pages[at]] = request.rows[: (at + 1) * PAGE].tobytes()
            if rng.random() < 0.3:
                rows = request.rows[: request.done]
                added = model.insert(request.keys, rows, request.pages, pool.owners)
                assert cache.insert(request.keys, rows, request.pages) == added
        elif choice < 0.98 and running:
            request = running.pop(rng.randrange(len(running)))
            if rng.random() < 0.7:
                rows = request.rows[: request.done]
                added = model.insert(request.keys, rows, request.pages, pool.owners)
                assert cache.insert(request.keys, rows, request.pages) == added
            pool.release(request.pages)
        elif choice < 0.99:
            count = rng.randint(0, 45)
            expected = model.evict(count - pool.free, pool.owners, [])
            assert cache.evict(count) == len(expected)
        elif turn % 10 == 0:
            cache.clear()
            model.held.clear()
        assert sorted(cache.pages) == sorted(page for _, page in model.held.values())
        assert cache.metrics.prefix_clashes.value == model.clashes
        cache.check()
        pool.check([cache.pages, *(request.pages for request in running)])
    assert cache.metrics.prefix_hits.value > 100 and cache.metrics.prefix_evicted.value > 20
    assert (model.clashes > 0) == (keys_of is weak)
    for request in running:
        pool.release(request.pages)
    cache.clear()
    pool.check([])


def test_a_thousand_staggered_finishes() -> None:
    rng, pool = random.Random(5), PagePool(200)
    cache = PrefixCache(pool, PAGE)
    prompts = [text_rows(rng.randint(4, 30), seed=seed) for seed in range(6)]
    running: list[tuple[Rows, list[int]]] = []
    finished = 0
    while finished < 1000:
        asked = rng.choice(prompts)
        rows = np.concatenate([asked, audio_rows(rng.randint(0, 40), seed=rng.randrange(10))])
        hit = cache.match(exact(rows), rows, len(asked) - 1)
        wanted = -(-len(rows) // PAGE) - len(hit)
        cache.evict(wanted)
        own = pool.allocate(wanted)
        if own is None:
            pool.release(hit)
        else:
            taken = {page for _, pages in running for page in pages}
            assert not taken & set(own) and not set(cache.pages) & set(own), "a page to write to has another owner"
            running.append((rows, hit + own))
        if own is None or rng.random() < 0.45:
            rows, pages = running.pop(rng.randrange(len(running)))
            cache.insert(exact(rows), rows, pages)
            pool.release(pages)
            finished += 1
        if finished % 20 == 0:
            cache.check()
            pool.check([cache.pages, *(pages for _, pages in running)])
    for _, pages in running:
        pool.release(pages)
    pool.check([cache.pages])
    assert cache.evict(200) > 0
    pool.check([])
    assert pool.free == 200 and len(cache) == 0 and cache.metrics.prefix_hits.value > 500
    assert cache.metrics.prefix_inserted.value == cache.metrics.prefix_evicted.value


def test_speed_of_a_long_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    """Printed, not asserted: two shared cores are no clock."""
    pool, rows = PagePool(1000), np.concatenate([text_rows(500), audio_rows(500, seed=1)])
    cache, times = PrefixCache(pool, 16), []
    for _ in range(20):
        pages = pool.allocate(63)
        assert pages is not None
        clock = [time.perf_counter()]
        keys = exact(rows)
        clock.append(time.perf_counter())
        assert cache.insert(keys, rows, pages) == 62
        clock.append(time.perf_counter())
        assert cache.match(keys, rows, 999) == pages[:62]
        clock.append(time.perf_counter())
        pool.release(pages + pages[:62])
        clock.append(time.perf_counter())
        assert cache.evict(1000) == 62
        clock.append(time.perf_counter())
        times.append([1e6 * (end - start) for start, end in pairwise(clock)])
    keys_us, insert_us, match_us, release_us, evict_us = np.min(times, axis=0)
    with capsys.disabled():
        print(
            f"\n1,000 rows in pages of 16, best of 20: keys {keys_us:.0f} us, insert {insert_us:.0f} us, "
            f"match {match_us:.0f} us, release {release_us:.0f} us, evict {evict_us:.0f} us"
        )
