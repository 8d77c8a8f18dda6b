"""The server process and the stage processes below it, seen through /proc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from backends.launch.log import TritonLog

_PR_SET_PDEATHSIG = 1
#: Least stack of a thread of Triton. 2.51 puts some two bytes of it under each byte of an HTTP body, and with the usual
#: 8 MiB it died of 4.2 MB. Address space only, until it is used.
STACK_BYTES = 64 * 2**20
_SHARED_MEMORY = Path("/dev/shm")
#: Place of ``exit_code`` in what ``_fields`` returns: a status as wait(2) has it.
_EXIT_STATUS = 49

#: State letter, parent and session of a process.
Status = tuple[str, int, int]


class ServerProcess:
    """A running Triton in a session of its own, with its log. ``end`` leaves no process and no shared memory."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        shm_prefix: str,
        show_all: bool,
        inherit: Sequence[int] = (),
    ) -> None:
        """``inherit``: file descriptors that it and its stages keep open for as long as they live."""
        self._shm_prefix = shm_prefix
        # A session of its own: Ctrl-C in a terminal reaches serve.py alone, which passes it on once.
        self._process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=tuple(inherit),
            preexec_fn=_prepare_child(os.getpid()),
        )
        assert self._process.stdout is not None
        self.log = TritonLog(self._process.stdout, show_all)
        self._stages: dict[int, str] = {}
        #: Of every stub that was seen: its stage by its process id, and how that ended.
        self._seen: dict[int, str] = {}
        self._endings: dict[str, int] = {}
        self._defunct_since: dict[int, float] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def learn_stages(self) -> dict[int, str]:
        """Process id → name of the stage, of every stub alive now; they are watched from here on."""
        self._stages = stage_processes(self.pid)
        self._seen |= self._stages
        return self._stages

    def dead_stage(self) -> str | None:
        """The name of a stage whose process has gone since ``learn_stages``; None while all live."""
        for pid, name in self._stages.items():
            if not _alive_below(self.pid, pid):
                return name
        return None

    def ending(self, stage: str) -> int | None:
        """The exit code of the process of ``stage``, negative for a signal; None if it was not seen to end."""
        self._note_endings()
        return self._endings.get(stage)

    def _note_endings(self) -> None:
        """Nobody else will: Triton does not wait for a stub, and its own end takes the zombies away."""
        for pid, stage in self._seen.items():
            fields = _fields(pid)
            if fields is not None and fields[0] == "Z" and int(fields[1]) == self.pid:
                self._endings[stage] = os.waitstatus_to_exitcode(int(fields[_EXIT_STATUS]))

    def defunct_stage(self, patience: float) -> bool:
        """True if a child of the server has been dead for ``patience`` seconds without the server taking notice.

        Triton 2.51 waits for ever for a stage whose process ended before it said a first word.
        """
        self._seen |= stage_processes(self.pid)
        self._note_endings()
        now = time.monotonic()
        defunct = {pid for pid, status in _processes().items() if status[0] == "Z" and status[1] == self.pid}
        self._defunct_since = {pid: self._defunct_since.get(pid, now) for pid in defunct}
        return any(now - since > patience for since in self._defunct_since.values())

    def end(self) -> None:
        """Kill what is left of the server, wait for it, remove its shared memory. Safe to call at any time."""
        # Stubs share the session of the server unless it died first and they were adopted: ask /proc for both.
        stubs = set(stage_processes(self.pid)) | set(self._stages)
        for kill in (lambda: os.killpg(self.pid, signal.SIGKILL), self._process.kill):
            with contextlib.suppress(ProcessLookupError):
                kill()
        self._process.wait()
        deadline = time.monotonic() + 5
        while any(_in_session(pid, self.pid) for pid in stubs) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.log.wait(2)
        for region in _SHARED_MEMORY.glob(f"{self._shm_prefix}*"):
            region.unlink(missing_ok=True)


def stage_processes(server: int) -> dict[int, str]:
    """Process id → stage, for every Python stub that is a child of ``server``."""
    found: dict[int, str] = {}
    for pid in _processes():
        if not _alive_below(server, pid):
            continue
        try:
            arguments = Path("/proc", str(pid), "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        script = next((argument for argument in arguments if argument.endswith(".py")), None)
        if "triton_python_backend_stub" in arguments[0] and script is not None:
            found[pid] = Path(script).parent.parent.name  # <repository>/<stage>/<version>/model.py
    return found


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine did; None where there is no such process, or a dead one.

    With the id it names a process for good: ids alone are used again.
    """
    status = _fields(pid)
    return int(status[19]) if status is not None and status[0] not in "ZX" else None


def _processes() -> dict[int, Status]:
    """Every process of this machine that we may see."""
    found = {int(entry): _status(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()}
    return {pid: status for pid, status in found.items() if status is not None}


def _alive_below(server: int, pid: int) -> bool:
    status = _status(pid)
    # A killed stub stays a zombie: Triton does not wait for it.
    return status is not None and status[0] not in "ZX" and status[1] == server


def _in_session(pid: int, session: int) -> bool:
    status = _status(pid)
    return status is not None and status[0] not in "ZX" and status[2] == session


def _status(pid: int) -> Status | None:
    fields = _fields(pid)
    return None if fields is None else (fields[0], int(fields[1]), int(fields[3]))


def _fields(pid: int) -> list[str] | None:
    """The fields of proc(5), stat, from the state on. None if there is no such process."""
    try:
        text = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # the name in parentheses may hold blanks


def stack_limit(soft: int, hard: int) -> int:
    """The soft limit of the stack for Triton, where this process has ``soft`` and ``hard``: ``STACK_BYTES``, more where
    the operator gives more, less where ``hard`` is less.
    """
    unlimited = resource.RLIM_INFINITY
    # An unlimited soft limit is no more but less: glibc then gives a thread 2 MiB, see pthread_create(3).
    stack = STACK_BYTES if soft == unlimited else max(STACK_BYTES, soft)
    return stack if hard == unlimited else min(stack, hard)


def _prepare_child(parent: int) -> Callable[[], None]:
    """Code for the child: have room for large bodies, and be sent SIGTERM when ``parent`` dies, however it dies. See
    setrlimit(2) and prctl(2)."""
    libc = ctypes.CDLL(None, use_errno=True)  # loaded before the fork: the child must not allocate more than it has to
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    stack = stack_limit(soft, hard)

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (stack, hard))
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died between fork and prctl
            os._exit(1)

    return prepare
