"""A small HTTP client of ``generate_stream``, as far from our own client as it gets: the standard library alone."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from typing import Any

import numpy as np


class EventStream:
    """One POST to ``generate_stream``. Iterating gives the JSON of each server-sent event as it arrives."""

    def __init__(self, port: int, body: Any, timeout: float = 60.0) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", "/v2/models/tts/generate_stream", text, headers)
        self._answer: http.client.HTTPResponse | None = None

    @property
    def answer(self) -> http.client.HTTPResponse:
        """The response. Triton sends its header with the first event."""
        if self._answer is None:
            self._answer = self._connection.getresponse()
        return self._answer

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self.answer:
            if line.startswith(b"data:"):
                yield json.loads(line[len(b"data:") :])

    def drop(self) -> None:
        """Close the connection, whatever is still to come."""
        if self._answer is not None:
            self._answer.close()
        self._connection.close()


def generate(port: int, body: Any) -> tuple[int, list[dict[str, Any]]]:
    """The status and all events of one request."""
    stream = EventStream(port, body)
    try:
        events = list(stream) if "event-stream" in stream.answer.getheader("Content-Type", "") else _plain(stream)
        return stream.answer.status, events
    finally:
        stream.drop()


def decode_b64(event: dict[str, Any]) -> np.ndarray:
    """The samples of an event of format ``b64``: int16 [n]."""
    return np.frombuffer(base64.b64decode(event["audio"], validate=True), "<i2")


def _plain(stream: EventStream) -> list[dict[str, Any]]:
    body = stream.answer.read().decode()
    return [json.loads(line.removeprefix("data:")) for line in body.splitlines() if line.strip()]
