"""Fixtures that both halves of the suite share."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

# A suite run in the background of a shell inherits an ignored SIGINT, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def voice() -> Path:
    """The checkpoint folder of the default voice."""
    return ROOT / "checkpoints" / "voice"


@pytest.fixture(scope="session")
def golden() -> Path:
    """Golden outputs of the public implementations."""
    return ROOT / "tests" / "golden"


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """A hundred sentences that the voice was not trained on."""
    return (ROOT / "tests" / "eval_sentences.txt").read_text(encoding="utf-8").splitlines()
