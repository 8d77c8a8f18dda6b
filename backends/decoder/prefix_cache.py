"""The prefix cache: pages that requests leave behind, found again by the rows that they hold."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from backends.decoder.pages import PagePool
from backends.metrics import Counter, Metrics


class PrefixMetrics(Metrics):
    """What the prefix cache counts. The decoder's metrics extend it, so that one object holds all."""

    def __init__(self) -> None:
        self.prefix_hits = Counter("voxstage_decoder_prefix_hits", "Lookups that found at least one page")
        self.prefix_misses = Counter("voxstage_decoder_prefix_misses", "Lookups that found nothing")
        self.prefix_hit_rows = Counter("voxstage_decoder_prefix_hit_rows", "Rows that were read from the prefix cache")
        self.prefix_clashes = Counter("voxstage_decoder_prefix_clashes", "Pages of equal keys that held other rows")
        self.prefix_inserted = Counter("voxstage_decoder_prefix_inserted", "Pages taken into the prefix cache")
        self.prefix_evicted = Counter("voxstage_decoder_prefix_evicted", "Pages dropped from the prefix cache for room")


class _Node:
    """One page: the keys and rows in it, and the pages that continue it. The root has no page."""

    __slots__ = ("children", "keys", "page", "parent", "rows")

    def __init__(self, parent: _Node | None, keys: tuple[int, ...], rows: bytes, page: int) -> None:
        self.parent, self.keys, self.rows, self.page = parent, keys, rows, page
        self.children: dict[tuple[int, ...], _Node] = {}


class PrefixCache:
    """A radix tree over row keys with one page a node, shared by all requests, evicted by least recent use.

    A page is found by the keys of all rows up to its end (see :func:`backends.rows.prompt_row_keys`, which also says
    why a key depends on the shape its row was computed in). Keys may clash, so the rows themselves decide: a page whose
    rows differ from the request's is never handed out.

    The cache owns each page it holds once, in ``pool``; it holds at most ``max_pages`` (None: as many as the pool has).
    No locks: the engine's thread owns it. With pages of 16 rows a prompt of 1,000 rows is 62 dictionary lookups, so
    compressed runs of pages would buy nothing.
    """

    def __init__(
        self, pool: PagePool, page_rows: int, max_pages: int | None = None, metrics: PrefixMetrics | None = None
    ) -> None:
        if page_rows < 1:
            raise ValueError(f"page_rows: {page_rows} is below 1, the smallest page")
        self.pool, self.page_rows = pool, page_rows
        if max_pages is not None and max_pages < 0:
            raise ValueError(f"max_pages: {max_pages} is below 0, which holds nothing")
        self.max_pages = pool.pages if max_pages is None else max_pages
        self.metrics = metrics or PrefixMetrics()
        self._root = _Node(None, (), b"", -1)
        # Every node by its page, least recently used first. A path is always touched from its end to the root, so a
        # page stands before the one it continues, and one pass from the front meets leaves before what they uncover.
        self._used: OrderedDict[int, _Node] = OrderedDict()

    def __len__(self) -> int:
        """Pages held."""
        return len(self._used)

    @property
    def pages(self) -> list[int]:
        """The pages held, least recently used first: what :meth:`PagePool.check` wants of an owner."""
        return list(self._used)

    def match(self, keys: Sequence[int], rows: NDArray[np.int32], limit: int) -> list[int]:
        """The longest run of cached whole pages that is a prefix of the first ``limit`` rows of a request.

        ``keys`` has one key a row, ``rows`` int32 [n, W] the rows. The pages, in order, are retained for the caller,
        who releases them; they count as used now. A page of equal keys and other rows counts as a clash and ends the
        run.
        """
        path = self._walk(keys, self._split(rows), min(limit, len(keys), len(rows)) // self.page_rows)
        pages = [node.page for node in path]
        self.pool.retain(pages)
        self._touch(path)
        if pages:
            self.metrics.prefix_hits.inc()
            self.metrics.prefix_hit_rows.inc(len(pages) * self.page_rows)
        else:
            self.metrics.prefix_misses.inc()
        return pages

    def insert(self, keys: Sequence[int], rows: NDArray[np.int32], pages: Sequence[int]) -> int:
        """Take in the whole pages of a request whose ``rows`` int32 [n, W] are all computed, and return how many were
        new.

        ``pages[i]`` holds rows ``i * page_rows`` ...; a last page that is not full is left alone, so pass only rows
        whose keys and values are written. What the tree has already is not added again. The cache retains what it
        takes; the caller keeps its own references and releases them itself. Where ``max_pages`` is reached, older
        leaves that nobody else holds make room, and what finds none is not taken. Raises RuntimeError for a page that
        the tree holds at another place, or that is free.
        """
        contents, count = self._split(rows), min(len(pages), len(keys) // self.page_rows, len(rows) // self.page_rows)
        path = self._walk(keys, contents, count)
        known, node = len(path), path[-1] if path else self._root
        if known < count and self._page_keys(keys, known) in node.children:
            count = known  # a clash: what follows it must not hang below another request's page
        fresh = list(pages[known:count])
        if not self._used.keys().isdisjoint(fresh) or len(set(fresh)) != len(fresh):
            raise RuntimeError(f"pages {fresh} are in the prefix cache at another place, or twice in one request")
        room = self._make_room(len(fresh), path)
        self.pool.retain(fresh[:room])
        for at, page in enumerate(fresh[:room], start=known):
            child = _Node(node, self._page_keys(keys, at), contents[at], page)
            node.children[child.keys] = self._used[page] = node = child
            path.append(node)
        self._touch(path)
        self.metrics.prefix_inserted.inc(room)
        return room

    def evict(self, count: int) -> int:
        """Drop least recently used leaves that nobody else holds until the pool has ``count`` free pages or none is
        left to drop. Returns how many pages went back.
        """
        return self._drop(count - self.pool.free)

    def clear(self) -> None:
        """Let go of every page; those that a request holds stay that request's."""
        self.pool.release(self._used)
        self._used.clear()
        self._root.children.clear()

    def check(self) -> None:
        """Raise RuntimeError unless tree, order of use and pool agree. O(pages held)."""
        order = {page: at for at, page in enumerate(self._used)}
        stack, seen = list(self._root.children.values()), 0
        while stack:
            node = stack.pop()
            parent, seen = node.parent, seen + 1
            if parent is None or parent.children.get(node.keys) is not node:
                raise RuntimeError(f"page {node.page} is not where its keys are")
            if self._used.get(node.page) is not node:
                raise RuntimeError(f"page {node.page} is in the tree twice, or not in the order of use")
            if parent is not self._root and order[parent.page] < order[node.page]:
                raise RuntimeError(f"page {parent.page} would go before page {node.page}, which continues it")
            if self.pool.owners(node.page) < 1:
                raise RuntimeError(f"page {node.page} is in the tree and free")
            stack.extend(node.children.values())
        if seen != len(self._used) or seen > self.max_pages:
            raise RuntimeError(f"{seen} pages in the tree, {len(self._used)} in use, {self.max_pages} allowed")

    def _walk(self, keys: Sequence[int], contents: list[bytes], count: int) -> list[_Node]:
        """The nodes that hold the first ``count`` pages, as far as keys and rows agree."""
        node, path = self._root, []
        for at in range(count):
            child = node.children.get(self._page_keys(keys, at))
            if child is None:
                break
            if child.rows != contents[at]:
                self.metrics.prefix_clashes.inc()
                break
            path.append(child)
            node = child
        return path

    def _touch(self, path: list[_Node]) -> None:
        for node in reversed(path):
            self._used.move_to_end(node.page)

    def _make_room(self, count: int, path: list[_Node]) -> int:
        """Drop older pages, none of ``path``, until ``count`` more fit. Returns how many of them do."""
        short = len(self._used) + count - self.max_pages
        if short > 0:
            held = [node.page for node in path]
            self.pool.retain(held)
            short -= self._drop(short)
            self.pool.release(held)
        return count - max(short, 0)

    def _drop(self, count: int) -> int:
        """Drop up to ``count`` leaves that only the cache owns, the least recently used first; those that this
        uncovers count as leaves.
        """
        victims: list[_Node] = []
        gone: dict[int, int] = {}  # page -> how many of its children are victims
        if count > 0:
            for page, node in self._used.items():
                if len(node.children) == gone.get(page, 0) and self.pool.owners(page) == 1:
                    victims.append(node)
                    if len(victims) == count:
                        break
                    assert node.parent is not None
                    gone[node.parent.page] = gone.get(node.parent.page, 0) + 1
        for node in victims:
            assert node.parent is not None
            del node.parent.children[node.keys], self._used[node.page]
        self.pool.release(node.page for node in victims)
        self.metrics.prefix_evicted.inc(len(victims))
        return len(victims)

    def _page_keys(self, keys: Sequence[int], at: int) -> tuple[int, ...]:
        return tuple(keys[at * self.page_rows : (at + 1) * self.page_rows])

    def _split(self, rows: NDArray[np.int32]) -> list[bytes]:
        """The rows of each whole page."""
        data = np.ascontiguousarray(rows, dtype=np.int32).tobytes()
        size = self.page_rows * rows.shape[1] * 4
        return [data[at : at + size] for at in range(0, len(data) - size + 1, size)]
