"""Request parameters: where ``generate_stream`` puts JSON fields that are no inputs, and gRPC clients anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backends.errors import InvalidArgument

# What Triton's own front ends may add; anything else is a field that we do not have.
_TRITON_PARAMETERS = ("triton_", "sequence_", "priority", "timeout", "binary_data", "headers")


def refuse_unknown(parameters: Iterable[str], model: str, inputs: Sequence[str]) -> None:
    """Raise InvalidArgument for a parameter that has the name of one of ``inputs``, or of nothing that Triton adds.

    ``inputs``: those of ``model``.
    """
    for name in parameters:
        if name in inputs:  # over HTTP it would have become an input
            raise InvalidArgument(
                name, f"is sent as a request parameter, and {model} reads none; send it as an input tensor"
            )
        if not name.startswith(_TRITON_PARAMETERS):
            raise InvalidArgument(name, f"is not an input of {model}; it has {', '.join(inputs)}")
