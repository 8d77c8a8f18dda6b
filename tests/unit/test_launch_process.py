"""What serve.py sets for Triton's process before it runs."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from backends.launch.process import STACK_BYTES, stack_limit
from tests.conftest import ROOT

MIB = 2**20
UNLIMITED = resource.RLIM_INFINITY
_, HARD = resource.getrlimit(resource.RLIMIT_STACK)


@pytest.mark.parametrize(
    ("soft", "hard", "wanted"),
    [
        (8 * MIB, UNLIMITED, STACK_BYTES),
        (8 * MIB, 16 * MIB, 16 * MIB),
        (STACK_BYTES, STACK_BYTES, STACK_BYTES),
        (256 * MIB, UNLIMITED, 256 * MIB),
        (256 * MIB, 256 * MIB, 256 * MIB),
        # glibc gives a thread 2 MiB of an unlimited stack.
        (UNLIMITED, UNLIMITED, STACK_BYTES),
    ],
)
def test_the_stack_is_the_larger_one_that_is_allowed(soft: int, hard: int, wanted: int) -> None:
    assert stack_limit(soft, hard) == wanted


@pytest.mark.skipif(HARD != UNLIMITED and HARD < 128 * MIB, reason="the hard limit of the stack is below 128 MiB")
@pytest.mark.parametrize(("own", "wanted"), [(8 * MIB, STACK_BYTES), (128 * MIB, 128 * MIB)])
def test_the_server_is_started_with_it(own: int, wanted: int) -> None:
    code = (
        "import os, resource, subprocess, sys; from backends.launch.process import _prepare_child; "
        f"resource.setrlimit(resource.RLIMIT_STACK, ({own}, {HARD})); "
        "show = 'import resource; print(*resource.getrlimit(resource.RLIMIT_STACK))'; "
        "subprocess.run([sys.executable, '-c', show], preexec_fn=_prepare_child(os.getpid()), check=True)"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert shown.split() == [str(wanted), str(HARD)]
