"""Who holds which pages of the KV cache: requests, and the prefix cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from backends.decoder.metrics import DecoderMetrics
from backends.decoder.pages import PagePool
from backends.decoder.prefix_cache import PrefixCache
from backends.decoder.request import DecodeRequest
from backends.rows import prompt_row_keys


class PageMemory:
    """Pages by request. A page that a request got from the prefix cache is shared and never written again."""

    def __init__(self, pages: int, page_rows: int, prefix_cache: bool, metrics: DecoderMetrics) -> None:
        self._pool, self._page_rows = PagePool(pages), page_rows
        self._cache = PrefixCache(self._pool, page_rows, None, metrics) if prefix_cache else None
        self._pages = pages

    @property
    def in_use(self) -> int:
        """Pages that somebody holds, the prefix cache included."""
        return self._pages - self._pool.free

    @property
    def cached(self) -> int:
        """Pages that the prefix cache holds."""
        return len(self._cache) if self._cache is not None else 0

    def name(self, request: DecodeRequest) -> None:
        """Compute the keys of a request's prompt, once. From any thread: an hour of audio has many rows."""
        if self._cache is not None and not request.keys:
            rows = request.rows.numpy().astype(np.int32)
            content = request.audio.content(len(rows)) if request.audio is not None else None
            request.keys = prompt_row_keys(rows, request.slot_token, content)
            request.prompt = rows if content is None else np.concatenate([rows, content], axis=1)

    def match(self, request: DecodeRequest) -> None:
        """Give ``request`` the longest run of cached pages that its rows start with."""
        if self._cache is None:
            return
        self.name(request)
        # The last known row must be computed: it makes the next frame.
        rows = self._known_rows(request)
        request.pages = self._cache.match(request.keys, rows, len(rows) - 1)
        request.hit = request.stored = len(request.pages) * self._page_rows

    def reserve(self, request: DecodeRequest, rows: int) -> bool:
        """Pages for the first ``rows`` rows of ``request``; False, and nothing changed, when there are not enough."""
        missing = -(-rows // self._page_rows) - len(request.pages)
        if missing <= 0:
            return True
        if self._pool.free < missing and self._cache is not None:
            self._cache.evict(missing)
        pages = self._pool.allocate(missing)
        if pages is None:
            return False
        request.pages.extend(pages)
        return True

    def remember(self, request: DecodeRequest, rows: int) -> None:
        """Leave the whole pages of the first ``rows`` rows of ``request``, those stored, to the prefix cache."""
        whole = min(rows, request.stored) // self._page_rows
        if self._cache is not None and whole:
            count = whole * self._page_rows
            self._cache.insert(request.keys[:count], self._known_rows(request)[:count], request.pages[:whole])

    def release(self, request: DecodeRequest) -> None:
        """Take every page from ``request``."""
        self._pool.release(request.pages)
        request.pages = []

    def check(self, requests: Iterable[DecodeRequest]) -> None:
        """Raise RuntimeError unless pages and owners agree; the owners are ``requests`` and the prefix cache."""
        owned: list[Sequence[int]] = [request.pages for request in requests]
        if self._cache is not None:
            self._cache.check()
            owned.append(self._cache.pages)
        self._pool.check(owned)

    def _known_rows(self, request: DecodeRequest) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
        """Rows as the prefix cache compares them: where there is audio, with what a row holds of it."""
        prompt = request.prompt
        assert prompt is not None, "keys and rows are made together"
        if not request.generated:
            return prompt
        made = np.zeros((request.frames, prompt.shape[1]), dtype=np.int32)
        made[:, 0] = request.slot_token
        made[:, 1 : request.rows.shape[1]] = np.stack([codes.numpy() for codes in request.generated])
        return np.concatenate([prompt, made])
