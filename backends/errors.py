"""Typed errors. The message begins with its code, because a gRPC stream carries a message but no status code."""

from __future__ import annotations


class VoxstageError(Exception):
    """Base of every error that a user may see. ``str(error)`` is ``CODE message``."""

    code = "INTERNAL"

    def __str__(self) -> str:
        return f"{self.code} {super().__str__()}"


class InvalidArgument(VoxstageError):
    """A request names a field whose value is out of its limits. The message is ``field: what is wrong``."""

    code = "INVALID_ARG"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field, self.problem = field, problem

    def __reduce__(self) -> tuple[type[InvalidArgument], tuple[str, str]]:
        return type(self), (self.field, self.problem)


class Unavailable(VoxstageError):
    """The server has no room for the request now; the same request may succeed later."""

    code = "UNAVAILABLE"


class Cancelled(VoxstageError):
    """The client hung up, or asked for the stream to end."""

    code = "CANCELLED"


class Internal(VoxstageError):
    """A fault of the server. The request is lost, the server goes on."""

    code = "INTERNAL"


class CheckpointError(VoxstageError):
    """A checkpoint that is missing, incomplete or of an architecture this build does not know."""

    code = "INVALID_CHECKPOINT"


def from_message(message: str, model: str) -> VoxstageError:
    """The error behind ``message``, which ``model`` of this server answered: by its code, else Internal."""
    code, _, rest = message.partition(" ")
    field, colon, problem = rest.partition(": ")
    if code == InvalidArgument.code and colon:
        return InvalidArgument(field, problem)
    if code == Unavailable.code:
        return Unavailable(rest)
    return Internal(f"{model} answered: {message}")
