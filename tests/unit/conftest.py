"""The voice, loaded once for all tests of the decoder, and the two versions of a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backends.models.moss_tts_local import MossTTSLocal
from backends.models.moss_tts_local_prompt import PromptBuilder


@pytest.fixture(scope="session")
def model(voice: Path) -> MossTTSLocal:
    """The TTS half of the default voice, float32 on the CPU, one thread."""
    torch.set_num_threads(1)
    return MossTTSLocal.load(voice / "tts", torch.device("cpu"), torch.float32)


@pytest.fixture(scope="session")
def prompts(voice: Path) -> PromptBuilder:
    """Makes prompt rows of the default voice."""
    return PromptBuilder(voice / "tts")


@pytest.fixture(params=["torch", "triton"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which version of a kernel a test is about: the one in torch, or the one in Triton's language, interpreted."""
    torch.set_num_threads(1)
    kind: str = request.param
    return kind
