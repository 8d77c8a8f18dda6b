"""Steps that may not wait for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from backends.decoder.engine import DecoderEngine


def forbid_sync(engine: DecoderEngine, monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Make launches and passes of ``engine`` that wait for the device raise; the list fills with what was raised."""
    faults: list[Exception] = []

    def watch(name: str) -> None:
        plain = getattr(engine._runner, name)

        def watched(work: Any) -> Any:
            torch.cuda.set_sync_debug_mode("error")
            try:
                return plain(work)
            except RuntimeError as error:
                faults.append(error)
                raise
            finally:
                torch.cuda.set_sync_debug_mode("default")

        monkeypatch.setattr(engine._runner, name, watched)

    watch("launch")
    watch("read")
    return faults
