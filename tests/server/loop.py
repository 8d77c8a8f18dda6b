"""Asyncio work in tests, on the loop that the synchronous client uses too: grpc.aio polls for one loop a process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from client.sync import _shared_loop

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T], timeout: float = 300.0) -> T:
    """Run ``work`` to its end. As asyncio.run, but a second loop would make grpc.aio complain when it closes."""
    return asyncio.run_coroutine_threadsafe(work, _shared_loop()).result(timeout)
