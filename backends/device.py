"""Where a stage computes."""

from __future__ import annotations

import os

import torch

from backends.errors import InvalidArgument

_CPU = torch.device("cpu")


def resolve_device(name: str) -> torch.device:
    """``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``. InvalidArgument for what is not there."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InvalidArgument("device", f"{name!r} is not auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise InvalidArgument("device", f"{name!r} is not auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise InvalidArgument("device", f"{name!r} is not there: {_why_no_gpu(count)}")
        return torch.device("cuda", device.index or 0)
    return device


def _why_no_gpu(count: int) -> str:
    if count:
        return f"this machine has {count} CUDA device{'s' if count > 1 else ''}, from cuda:0 on"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA; choose cpu or auto, or install a CUDA build of torch"
    return "torch finds no CUDA device; choose cpu or auto, or look at the driver and at CUDA_VISIBLE_DEVICES"


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``tensor``, of the CPU, on ``device`` without waiting for it: a copy from pageable memory would."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def default_threads() -> int:
    """CPU threads of one stage when its setting is 0.

    Half of the cores: decoder and vocoder work at the same time, and two thread teams that share cores wait for each
    other at every product (measured on 2 cores: a decode step went from 19 ms to over 150 ms while another process was
    busy).
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // 2)


def give_way(steps: int) -> None:
    """Lower the priority of the calling thread, and of threads that it starts, by ``steps`` (0 to 19, see nice(2)).

    For threads that compute without a pause on a CPU. What answers requests (Triton's threads, our own that queue and
    send) runs for a fraction of a millisecond and should not wait for a core: a refusal passes four processes.
    """
    if steps:  # on Linux this is the thread's own, and 0 is the calling one
        os.setpriority(os.PRIO_PROCESS, 0, min(19, os.getpriority(os.PRIO_PROCESS, 0) + steps))


def use_threads(count: int, device: torch.device = _CPU) -> None:
    """Compute with ``count`` CPU threads in the calling thread; every computing thread calls it.

    0: :func:`default_threads` where ``device`` is a CPU, one where it is a GPU. What the host computes for a GPU is
    small, and a team that waits for its next piece spins (H200, 16 cores: half of them were busy with nothing).
    """
    torch.set_num_threads(count or (default_threads() if device.type == "cpu" else 1))
