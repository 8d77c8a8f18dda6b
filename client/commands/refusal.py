"""A refusal in the words of the command line: who typed ``--top-p`` knows no field ``top_p``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from client.errors import InvalidArgument


def in_words_of(names: Mapping[str, str], error: InvalidArgument) -> InvalidArgument:
    """``error`` with what was typed, ``names`` by field, in place of fields. In the problem only fields with a ``_``
    are replaced: other words may be words, or the user's."""
    fields = [name for name in names if "_" in name]
    problem = re.sub(rf"\b(?:{'|'.join(fields)})\b", lambda found: names[found.group()], error.detail)
    return InvalidArgument(problem, field=names.get(error.field, error.field) if error.field else None)
