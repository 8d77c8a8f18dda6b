"""The server's command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from backends.launch.options import Options
from backends.launch.triton import Triton


def triton_command(
    triton: Triton,
    backends: Path,
    options: Options,
    ports: Mapping[str, int],
    shm_prefix: str,
    only: Sequence[str] = (),
) -> list[str]:
    """``ports``: service → port. ``shm_prefix``: how the names of the server's /dev/shm regions begin. ``only``: models
    to load; none: all that the repositories hold.
    """
    command = [str(triton.server), "--backend-directory", str(backends)]
    for repository in options.repositories:
        command += ["--model-repository", str(repository)]
    if only:
        command += ["--model-control-mode", "explicit", *(f"--load-model={name}" for name in only)]
    for service, port in ports.items():
        command += [f"--{service}-address", options.host, f"--{service}-port", str(port)]
    # Our configs are complete. Completing them would start every Python stage, and import torch, a second time.
    command += ["--disable-auto-complete-config"]
    command += ["--exit-timeout-secs", str(options.exit_timeout)]
    command += ["--backend-config", f"python,shm-region-prefix-name={shm_prefix}"]
    if not _has_gpu():
        # Otherwise Triton warns about NVML and pinned memory at every start.
        command += ["--allow-gpu-metrics", "false", "--pinned-memory-pool-byte-size", "0"]
    if options.config_name is not None:
        command += ["--model-config-name", options.config_name]
    if options.log_verbose > 1:
        command += ["--log-verbose", str(options.log_verbose - 1)]
    return command


def _has_gpu() -> bool:
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg"))
