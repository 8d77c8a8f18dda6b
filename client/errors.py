"""Typed errors of the client. Every message is a sentence: what happened, with which value, and what to do.

A gRPC stream of Triton carries a message but no status code, so the server begins each message with a code
(``INVALID_ARG``, ``UNAVAILABLE``, ``CANCELLED``, ``INTERNAL``) and this module maps that first word to a class.
"""

from __future__ import annotations

import re


def sentence(text: str) -> str:
    """``text`` with a full stop at its end, unless it already ends like a sentence."""
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else text + "."


#: The first word of a problem whose subject is the field, or begins with it.
PREDICATES = ("and", "begins", "cannot", "has", "holds", "is", "lasts", "makes", "means", "needs")


class SpeechError(Exception):
    """Base of all errors of the client. ``code`` is the word the server uses, ``detail`` what it said after it.

    ``received_at`` is time.monotonic() in seconds when the server's message came, None when the client found the error.
    """

    code = "INTERNAL"
    received_at: float | None = None

    def __init__(self, message: str, *, detail: str = "", code: str | None = None) -> None:
        super().__init__(sentence(message))
        self.detail = detail or message
        if code is not None:
            self.code = code


class InvalidArgument(SpeechError):
    """The request holds a value out of its limits. ``field`` is the name of the input, or None when unknown.

    ``problem`` says something of the field (``is empty``: see PREDICATES) or is a whole clause (``-1 is below 0``).
    """

    code = "INVALID_ARG"

    def __init__(self, problem: str, *, field: str | None = None) -> None:
        if field is None:
            message = f"The request is not valid: {problem}"
        elif problem.partition(" ")[0] in PREDICATES:
            message = f"{field} {problem}"
        else:
            message = f"The value of {field} is not valid: {problem}"
        super().__init__(message, detail=problem)
        self.field = field


class Unavailable(SpeechError):
    """The server has no room for the request now. The same request may succeed later."""

    code = "UNAVAILABLE"


class Cancelled(SpeechError):
    """The stream was ended before its last chunk, by this client or by the server."""

    code = "CANCELLED"


class ServerError(SpeechError):
    """The server failed on this request, or said something that this client does not know."""


class ConnectionFailed(SpeechError):
    """No server answered at the address."""

    code = "CONNECTION_FAILED"


class StreamTimeout(SpeechError):
    """No chunk came within the deadline. The client has cancelled the request."""

    code = "TIMEOUT"


class StreamBroken(SpeechError):
    """The stream began and then failed: an error in its last chunk, a chunk missing, or no last chunk at all.

    ``code`` is the server's code where it gave one, else ``BROKEN``: there was no end at all. The chunks received
    before are good, but not all of it.
    """

    code = "BROKEN"


class ClientClosed(SpeechError):
    """The client object was used after ``close()``."""

    code = "CLOSED"


# Triton puts these in front of what a stage said.
_PREFIX = re.compile(r"^(?:\[request id: [^\]]*\]\s*|in ensemble '[^']*',\s*)+")
_CODED = re.compile(r"^([A-Z][A-Z_]+)\b:?\s*(.*)$", re.DOTALL)
_FIELD = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*):\s+(.*)$", re.DOTALL)
# What Triton itself says about inputs that a stage never gets to see (wording of 2.51, no code in front of it).
_TRITON_INPUT = re.compile(
    r"^(?:unexpected inference input '(?P<unknown>[^']+)'"
    r"|inference input(?: data-type)? '(?P<dtype>[^']+)'"
    r"|unexpected shape for input '(?P<shape>[^']+)'"
    r"|input '(?P<named>[^']+)'"
    r"|expected (?:\d+|number of) inputs)"
)


# A stage's process that has ended: NAME_INSTANCE_DEVICE.
_DEAD_STAGE = re.compile(r"^Stub process '(?P<stage>.+?)(?:_\d+_\d+)?' is not healthy")


def split_message(message: str) -> tuple[str, str]:
    """Split a server message into (code, rest). The code is ``INTERNAL`` when the message has none that we know."""
    text = _PREFIX.sub("", message.strip())
    coded = _CODED.match(text)
    if coded and coded.group(1) in ("INVALID_ARG", "UNAVAILABLE", "CANCELLED", "INTERNAL"):
        return coded.group(1), coded.group(2).strip()
    if _TRITON_INPUT.match(text):
        return "INVALID_ARG", text
    return "INTERNAL", text


def from_message(message: str) -> SpeechError:
    """The typed error for a message that the server sent before the first chunk."""
    code, rest = split_message(message)
    if code == "INVALID_ARG":
        triton = _TRITON_INPUT.match(rest)
        if triton:
            if triton["unknown"]:
                return InvalidArgument(f"is not an input of the model: {rest}", field=triton["unknown"])
            return InvalidArgument(rest, field=next((name for name in triton.groups() if name), None))
        named = _FIELD.match(rest)
        return InvalidArgument(named.group(2), field=named.group(1)) if named else InvalidArgument(rest)
    if code == "UNAVAILABLE":
        advice = "" if rest.endswith("try again later") else " Try again later"
        return Unavailable(f"The server cannot take this request now: {sentence(rest)}{advice}", detail=rest)
    if code == "CANCELLED":
        return Cancelled(f"The server cancelled the request: {rest or 'it gave no reason'}", detail=rest)
    if dead := _DEAD_STAGE.match(rest):
        what = f"The process of the server's stage {dead['stage']} has ended"
        return ServerError(f"{what}. Send the request again once the server has been started again", detail=rest)
    return ServerError(f"The server failed: {sentence(rest)} Its log says more", detail=rest)


def broken_by_server(message: str, chunks: int, cargo: str = "audio") -> StreamBroken:
    """The error for a stream of ``cargo`` that the server ended with ``message`` after ``chunks`` good chunks."""
    code, rest = split_message(message)
    what = sentence(f"The stream broke after {count(chunks, 'chunk')}: {rest or 'the server gave no reason'}")
    return StreamBroken(f"{what} The {cargo} is incomplete; send the request again", detail=rest, code=code)


def count(number: int, noun: str) -> str:
    """``1 chunk``, ``2 chunks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
