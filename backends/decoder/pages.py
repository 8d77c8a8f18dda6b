"""Pages of the KV cache: who owns which. Pure bookkeeping: no tensors, no locks; the engine's thread uses it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class PagePool:
    """``pages`` pages, numbered from 0, each with a count of its owners: requests and the prefix cache.

    A page goes back when its last owner lets go. Every operation costs O(1) a page. The page that went back last is
    handed out first: that needs no heap, and pages that no load ever reached stay untouched, so on the CPU they never
    take memory. On a fresh pool pages come in ascending order.
    """

    def __init__(self, pages: int) -> None:
        if pages < 1:
            raise ValueError(f"pages: {pages} is below 1, the smallest pool")
        self.pages = pages
        self._owners = [0] * pages
        self._free = list(range(pages - 1, -1, -1))

    @property
    def free(self) -> int:
        """Pages without an owner."""
        return len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """``count`` free pages, owned once each by the caller from now on; None, and nothing changes, when there are
        not as many. Raises ValueError when ``count`` is negative.
        """
        if count < 0:
            raise ValueError(f"count: {count} is below 0, the smallest allocation")
        if count > len(self._free):
            return None
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._owners[page] = 1
        return pages

    def retain(self, pages: Iterable[int]) -> None:
        """One more owner for each of ``pages``. Raises RuntimeError, and changes nothing, where one of them is free:
        its rows may be gone.
        """
        pages = list(pages)
        for page in pages:
            if self._owners[page] < 1:
                raise RuntimeError(f"page {page} is free and cannot be shared")
        for page in pages:
            self._owners[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One owner less for each of ``pages``. Raises RuntimeError for a page that is free already."""
        for page in pages:
            if self._owners[page] < 1:
                raise RuntimeError(f"page {page} is free already: released twice")
            self._owners[page] -= 1
            if self._owners[page] == 0:
                self._free.append(page)

    def owners(self, page: int) -> int:
        """How many own ``page``; 0 when it is free."""
        return self._owners[page]

    def check(self, owned: Iterable[Sequence[int]]) -> None:
        """Raise RuntimeError unless ``owned``, the pages of each owner, explain every count, no owner holds a page
        twice, and every page is either owned or free, once. Pass nothing to ask for an empty pool. O(pages).
        """
        counts = [0] * self.pages
        for pages in owned:
            if len(set(pages)) != len(pages):
                raise RuntimeError(f"one owner holds a page twice: {sorted(pages)}")
            for page in pages:
                counts[page] += 1
        for page, (counted, found) in enumerate(zip(self._owners, counts, strict=True)):
            if counted != found:
                raise RuntimeError(f"page {page} counts {counted} owners, {found} hold it")
        if sorted(self._free) != [page for page, count in enumerate(self._owners) if count == 0]:
            raise RuntimeError(f"pages lost or free twice: free are {sorted(self._free)} of {self.pages}")
