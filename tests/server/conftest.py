"""The session's server, servers of a test's own, and the check that every test leaves the session's server idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client import SpeechClient
from tests.server.live import LiveServer, live_server

StartServer = Callable[..., LiveServer]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """The default voice on its default settings; started once. Its end is a test too: clean, and in under 5 s."""
    with live_server(tmp_path_factory.mktemp("server")) as live:
        yield live


@pytest.fixture
def client(server: LiveServer) -> Iterator[SpeechClient]:
    """A client of the session's server."""
    with SpeechClient(server.url) as speech:
        yield speech


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts a server with more arguments of serve.py, for one test alone; a test that passes should ``end`` it."""
    started: list[LiveServer] = []

    def start(*arguments: str) -> LiveServer:
        started.append(LiveServer(tmp_path / f"server{len(started)}", *arguments))
        return started[-1]

    try:
        yield start
    finally:
        for live in started:
            live.kill()


@pytest.fixture(autouse=True)
def _leaves_the_server_idle(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test may hand requests that are still inside to the next one."""
    if "server" not in request.fixturenames:
        yield
        return
    live: LiveServer = request.getfixturevalue("server")
    yield
    assert not live.ended, f"the server has ended\n{live.serve.err}"
    live.wait_idle()
