"""Steps that may not wait for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from backends.decoder.engine import DecoderEngine


def forbid_sync(engine: DecoderEngine, monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Make every launch of ``engine`` that waits for the device raise; the list fills with what was raised."""
    faults: list[Exception] = []
    launch = engine._runner.launch

    def watched(requests: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return launch(requests)
        except RuntimeError as error:
            faults.append(error)
            raise
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(engine._runner, "launch", watched)
    return faults
