"""Reading the JSON files of a checkpoint, apart from the weights: a stage without tensors need not load torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from backends.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; CheckpointError where it is missing or broken."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return content
