"""The sentences about a GPU that is not there."""

from __future__ import annotations

import pytest
import torch

from backends.device import resolve_device
from backends.errors import InvalidArgument


@pytest.mark.parametrize(
    ("name", "count", "built_for", "problem"),
    [
        (
            "cuda",
            0,
            None,
            f"torch {torch.__version__} is built without CUDA; choose cpu or auto, or install a CUDA build",
        ),
        (
            "cuda",
            0,
            "12.8",
            "torch finds no CUDA device; choose cpu or auto, or look at the driver and at CUDA_VISIBLE",
        ),
        ("cuda:1", 1, "12.8", "this machine has 1 CUDA device, from cuda:0 on"),
        ("cuda:4", 2, "12.8", "this machine has 2 CUDA devices, from cuda:0 on"),
    ],
)
def test_a_device_that_is_not_there_says_why_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, name: str, count: int, built_for: str | None, problem: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    with pytest.raises(InvalidArgument) as caught:
        resolve_device(name)
    assert str(caught.value).startswith(f"INVALID_ARG device: '{name}' is not there: {problem}")
