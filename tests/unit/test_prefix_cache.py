"""The prefix cache: what a hit promises, what makes room, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from backends.decoder.pages import PagePool
from backends.decoder.prefix_cache import PrefixCache
from backends.rows import pack_row_keys, row_key
from tests.unit.prefix_rows import PAGE, Rows, audio_rows, exact, text_rows, voice_rows


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def filled(pool: PagePool, cache: PrefixCache, rows: Rows, keys: list[int] | None = None) -> list[int]:
    """A request with ``rows`` that came and went; returns the pages it used."""
    pages = pool.allocate(-(-len(rows) // PAGE))
    assert pages is not None
    cache.insert(exact(rows) if keys is None else keys, rows, pages)
    pool.release(pages)
    return pages


def look(pool: PagePool, cache: PrefixCache, rows: Rows, limit: int | None = None) -> list[int]:
    """The pages of a match, let go at once."""
    pages = cache.match(exact(rows), rows, len(rows) if limit is None else limit)
    pool.release(pages)
    return pages


def test_finds_whole_pages_up_to_the_limit() -> None:
    pool, rows = PagePool(20), text_rows(4 * PAGE + 2)
    cache = PrefixCache(pool, PAGE)
    assert look(pool, cache, rows) == []
    pages = filled(pool, cache, rows)
    assert len(cache) == 4 and pool.free == 16 and set(cache.pages) == set(pages[:4])
    assert look(pool, cache, rows) == pages[:4]
    assert look(pool, cache, rows, 4 * PAGE - 1) == pages[:3]
    assert look(pool, cache, rows, PAGE - 1) == look(pool, cache, rows, 0) == []
    assert look(pool, cache, text_rows(40, seed=1)) == []
    metrics = cache.metrics
    assert (metrics.prefix_hits.value, metrics.prefix_misses.value) == (2, 4)
    assert metrics.prefix_hit_rows.value == 7 * PAGE and metrics.prefix_inserted.value == 4
    assert metrics.prefix_clashes.value == metrics.prefix_evicted.value == 0
    cache.check()
    pool.check([cache.pages])


def test_a_hit_is_retained_for_the_caller() -> None:
    pool, rows = PagePool(4), text_rows(2 * PAGE + 1)
    cache = PrefixCache(pool, PAGE)
    filled(pool, cache, rows)
    pages = cache.match(exact(rows), rows, len(rows))
    assert [pool.owners(page) for page in pages] == [2, 2]
    assert cache.evict(4) == 0 and len(cache) == 2
    cache.clear()
    assert len(cache) == 0 and [pool.owners(page) for page in pages] == [1, 1]
    pool.check([pages])
    pool.release(pages)
    pool.check([])


def test_pages_already_there_are_not_added_twice() -> None:
    pool, rows = PagePool(20), text_rows(3 * PAGE + 1)
    cache = PrefixCache(pool, PAGE)
    first = filled(pool, cache, rows)
    longer = np.concatenate([rows[: 3 * PAGE], text_rows(PAGE, seed=2)])
    pages = pool.allocate(4)  # computed beside the cache: its first pages are double
    assert pages is not None and cache.insert(exact(longer), longer, pages) == 1
    pool.check([pages, cache.pages])
    pool.release(pages)
    assert look(pool, cache, longer) == [*first[:3], pages[3]]
    pool.check([cache.pages])
    cache.check()


def test_the_cache_keeps_its_own_copy_of_the_rows() -> None:
    pool, rows = PagePool(8), text_rows(2 * PAGE + 1)
    cache, kept = PrefixCache(pool, PAGE), rows.copy()
    pages = filled(pool, cache, rows)
    rows[:] = 0
    assert look(pool, cache, kept) == pages[:2]
    assert look(pool, cache, np.asfortranarray(kept)) == pages[:2]


def test_two_rows_forced_onto_one_key_never_share_pages() -> None:
    pool = PagePool(40)
    cache = PrefixCache(pool, PAGE)
    one = text_rows(4 * PAGE)
    two = one.copy()
    two[2 * PAGE + 1, 5] = 7  # one code of one row in the third page
    keys = exact(one)
    pages = filled(pool, cache, one, keys)
    hit = cache.match(keys, two, len(two))
    assert hit == pages[:2] and cache.metrics.prefix_clashes.value == 1
    own = pool.allocate(2)
    assert own is not None
    assert cache.insert(keys, two, hit + own) == 0, "nothing may hang below another request's page"
    assert cache.metrics.prefix_clashes.value == 2
    pool.release(hit + own)
    assert look(pool, cache, one) == pages
    cache.check()
    pool.check([cache.pages])


def test_two_voices_with_one_text_share_their_common_rows_only() -> None:
    pool = PagePool(60)
    cache = PrefixCache(pool, PAGE)
    system, text = text_rows(2 * PAGE + 1), text_rows(3 * PAGE, seed=3)
    one = np.concatenate([system, voice_rows(10, seed=1), text, audio_rows(8, seed=1)])
    two = np.concatenate([system, voice_rows(10, seed=2), text, audio_rows(8, seed=1)])
    pages = filled(pool, cache, one)
    assert look(pool, cache, two) == pages[:2]
    other = filled(pool, cache, two)
    whole = len(one) // PAGE
    assert look(pool, cache, two) == pages[:2] + other[2:whole] and not set(other[2:whole]) & set(pages[:whole])
    assert look(pool, cache, one) == pages[:whole]


def test_a_prompt_that_continues_audio_finds_what_the_first_request_left() -> None:
    pool = PagePool(60)
    cache = PrefixCache(pool, PAGE)
    asked, made = text_rows(11), audio_rows(22, seed=4)
    rows = np.concatenate([asked, made])
    keys = exact(asked) + pack_row_keys(row_key(torch.from_numpy(made)))  # as the device made them
    pages = filled(pool, cache, rows, keys)
    follow_up = np.concatenate([rows, audio_rows(2, seed=5)])
    assert look(pool, cache, follow_up) == pages[: 33 // PAGE]
    assert look(pool, cache, np.concatenate([asked, audio_rows(22, seed=6)])) == pages[: 11 // PAGE]


def test_a_row_decoded_in_one_request_and_prefilled_in_another_is_not_shared() -> None:
    """A prompt that ends with a page: its last row was decoded; a longer text prefills the same row."""
    pool = PagePool(60)
    cache = PrefixCache(pool, PAGE)
    rows = text_rows(4 * PAGE)
    first = np.concatenate([rows[: 2 * PAGE], audio_rows(PAGE, seed=1)])
    pages = filled(pool, cache, first)
    assert look(pool, cache, first) == pages
    assert look(pool, cache, rows) == pages[:1]


def test_least_recently_used_leaves_go_first() -> None:
    pool = PagePool(12)
    cache = PrefixCache(pool, PAGE)
    prompts = [text_rows(2 * PAGE, seed=seed) for seed in range(4)]
    pages = [filled(pool, cache, rows) for rows in prompts]
    look(pool, cache, prompts[0])
    look(pool, cache, prompts[2], PAGE)  # the first page only
    assert cache.evict(4) == 0, "four are free already"
    assert cache.evict(5) == 1 and cache.pages[-1] == pages[2][0] and pages[1][1] not in cache.pages
    assert cache.evict(8) == 3 and set(cache.pages) == {*pages[0], *pages[2][:1], pages[3][0]} - {pages[2][1]}
    assert look(pool, cache, prompts[3]) == pages[3][:1]
    assert cache.evict(10) == 2 and set(cache.pages) == {pages[2][0], pages[3][0]}
    assert cache.evict(99) == 2 and pool.free == 12 and cache.metrics.prefix_evicted.value == 8
    pool.check([])


def test_a_page_that_a_request_holds_stays_and_so_does_what_it_continues() -> None:
    pool = PagePool(12)
    cache = PrefixCache(pool, PAGE)
    held, idle = text_rows(3 * PAGE), text_rows(3 * PAGE, seed=1)
    filled(pool, cache, held)
    filled(pool, cache, idle)
    pages = cache.match(exact(held), held, 2 * PAGE)
    assert cache.evict(99) == 4 and sorted(cache.pages) == sorted(pages)
    pool.release(pages)
    assert cache.evict(99) == 2
    pool.check([])


def test_never_more_than_max_pages() -> None:
    pool = PagePool(40)
    cache = PrefixCache(pool, PAGE, max_pages=5)
    long = text_rows(8 * PAGE)
    pages = filled(pool, cache, long)
    assert len(cache) == 5 and look(pool, cache, long) == pages[:5]
    filled(pool, cache, text_rows(2 * PAGE, seed=1))
    assert len(cache) == 5 and look(pool, cache, long) == pages[:3]
    again = pool.allocate(8)
    assert again is not None and cache.insert(exact(long), long, again) == 2  # its own three make no room for its end
    pool.release(again)
    assert look(pool, cache, long) == pages[:3] + again[3:5]
    cache.check()
    pool.check([cache.pages])
    nothing = PrefixCache(pool, PAGE, max_pages=0)
    assert filled(pool, nothing, long) and len(nothing) == 0
    with pytest.raises(ValueError, match="max_pages: -1"):
        PrefixCache(pool, PAGE, max_pages=-1)


def test_refuses_a_page_at_two_places() -> None:
    pool = PagePool(8)
    cache = PrefixCache(pool, PAGE)
    one, two = text_rows(PAGE), text_rows(2 * PAGE, seed=1)
    pages = pool.allocate(2)
    assert pages is not None
    cache.insert(exact(one), one, pages)
    with pytest.raises(RuntimeError, match="at another place"):
        cache.insert(exact(two), two, pages)
    with pytest.raises(RuntimeError, match="twice in one request"):
        cache.insert(exact(two), two, [pages[1], pages[1]])
    with pytest.raises(RuntimeError, match="is free and cannot be shared"):
        cache.insert(exact(two), two, [7])
    cache.check()
    pool.check([pages, cache.pages])
