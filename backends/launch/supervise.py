"""One server from its start to its end: wait until it speaks, watch over it, end it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from backends.launch.canary import CANARY_MODELS
from backends.launch.command import triton_command
from backends.launch.engines import check_engines
from backends.launch.failure import LaunchError
from backends.launch.health import Health
from backends.launch.options import Options, find_overrides
from backends.launch.parameters import check_checkpoints, check_parameters, make_default_checkpoint
from backends.launch.pipelines import choose_models
from backends.launch.ports import pick_ports
from backends.launch.process import ServerProcess
from backends.launch.ready_file import ReadyFile
from backends.launch.reasons import how_stage_ended, why_ended, why_not_started
from backends.launch.repository import Model, find_models
from backends.launch.run_folder import remove_stale, run_folder
from backends.launch.triton import find_triton, lay_out, triton_version
from backends.launch.watch import CanaryWatch

#: How long Triton may take to unload its stages once no request is in flight. Triton 2.51 keeps counting a request that
#: it refused itself on a gRPC stream (wrong dtype, unknown input), and would wait for it until --exit-timeout-secs.
_UNLOAD_SECONDS = 6.0
#: How long a stage's process may lie dead before it is our business: Triton reports most of these itself.
_DEFUNCT_SECONDS = 2.0
_POLL_SECONDS = 0.1
#: How long no request may be seen before the server counts as idle: metrics lag by 0.1 s, and a request on its way from
#: one stage to the next holds no place for some milliseconds.
_IDLE_SECONDS = 0.3
_SCAN_SECONDS = 1.0
#: How long after the first signal another one counts as the same: `timeout` sends it to the process and to its group.
_ONE_SIGNAL_SECONDS = 0.5


class Supervisor:
    """Runs one server. ``run`` returns when it was ended by a signal; everything else raises LaunchError.

    It returns the exit code: 0, or that of a process which a signal killed when a second one cut off what still ran.
    """

    def __init__(self, options: Options, root: Path) -> None:
        self._options = options
        self._root = root
        self._signals, self._last_signal, self._signalled_at, self._exit_code = 0, 0, 0.0, 0
        self._wake = threading.Event()
        self._ready_file = ReadyFile(options.ready_file)

    def run(self) -> int:
        options = self._options
        stale = self._ready_file.claim()  # first, so that nobody waits for this server and reads of the last one
        found = find_models(options.repositories, options.config_name)
        models = choose_models(found, options.pipelines)
        overrides = find_overrides(options, models, [model for model in found if model not in models])
        check_parameters(models, overrides)
        make_default_checkpoint(models, overrides, self._root)
        check_checkpoints(models, overrides, self._root)
        triton = find_triton()
        check_engines(models, self._root, options.checkpoint, triton)
        _say_removed([] if stale is None else [stale])
        _say_removed(remove_stale())
        ports = pick_ports(options.host, options.ports)
        inputs = {model.name: model.inputs for model in models}
        health = Health(options.host, ports, {name: inputs[name] for name in CANARY_MODELS if name in inputs})
        shm_prefix = f"voxstage-{os.getpid()}-"
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        with run_folder(shm_prefix) as folder:
            layout = lay_out(triton, self._root, folder.path)
            environment = {**layout.environment, "VOXSTAGE_OVERRIDES": json.dumps(overrides)}
            # Where nothing is left out Triton loads what it finds.
            only = [model.name for model in models] if len(models) < len(found) else []
            command = triton_command(triton, layout.backends, options, ports, shm_prefix, only)
            say(f"starting Triton ({triton_version(triton)}) with {', '.join(model.name for model in models)}")
            if options.log_verbose:
                print(shlex.join(command), file=sys.stderr, flush=True)
            server = ServerProcess(command, environment, shm_prefix, options.log_verbose > 0, [folder.lock])
            try:
                # A signal before it serves ends it at once: there is no request to wait for.
                if self._wait_ready(server, health, models) and self._first_canary(server, health):
                    _say_removed(remove_stale())  # a killed server's Triton may live on for seconds, and now be gone
                    self._announce(server, ports, models)
                    self._watch(
                        server, CanaryWatch(health, _passed(models), options.canary_interval, options.canary_timeout)
                    )
                    self._end(server, health)
            finally:
                server.end()
                self._ready_file.remove()
        return self._exit_code

    def _on_signal(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if not self._signals:
            self._signalled_at = now
        elif now - self._signalled_at < _ONE_SIGNAL_SECONDS:
            return
        self._signals += 1
        self._last_signal = number
        self._wake.set()

    def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until a signal comes."""
        self._wake.wait(seconds)
        self._wake.clear()

    def _wait_ready(self, server: ServerProcess, health: Health, models: Sequence[Model]) -> bool:
        """True once every model is ready, with a line for each; False when a signal came first."""
        began = time.monotonic()
        shown: set[str] = set()
        waiting = [model.name for model in models]
        while not self._signals:
            # Triton opens its ports only after the last model is loaded; until then its log tells which are.
            for name in sorted(server.log.loaded - shown):
                shown.add(name)
                say(f"{name} loaded {time.monotonic() - began:.1f} s")
            if server.poll() is not None:
                server.log.wait(2)
                raise LaunchError(why_not_started(server, models))
            if server.defunct_stage(_DEFUNCT_SECONDS):
                because = f": {server.log.stub_error}" if server.log.stub_error else ""
                missing = ", ".join(model.name for model in models if model.is_stage and model.name not in shown)
                raise LaunchError(f"a stage's process died while loading (not loaded yet: {missing}){because}")
            waiting = [name for name in waiting if not health.ready(name)] if shown else waiting
            if not waiting:
                say(f"{len(models)} models ready {time.monotonic() - began:.1f} s")
                alive = set(server.learn_stages().values())
                for model in models:
                    if model.is_stage and model.name not in alive:
                        raise LaunchError(f"the process of the stage {model.name} died while starting")
                return True
            if time.monotonic() - began > self._options.load_timeout:
                raise LaunchError(f"not ready within {self._options.load_timeout:g} s: {', '.join(waiting)}")
            self._pause(_POLL_SECONDS)
        return False

    def _first_canary(self, server: ServerProcess, health: Health) -> bool:
        """True once a request has passed every stage; False when a signal came first."""
        if not health.has_canary:
            return True
        began = time.monotonic()
        problem: list[str | None] = []
        # On a thread, so that a signal or a dying stage is noticed meanwhile.
        thread = threading.Thread(
            target=lambda: problem.append(health.canary(self._options.canary_timeout)), daemon=True
        )
        thread.start()
        while thread.is_alive() and not self._signals:
            self._check_alive(server)
            self._pause(_POLL_SECONDS)
        if self._signals:
            return False
        if problem[0] is not None:
            self._check_alive(server)
            raise LaunchError(f"{health.canary_names} is loaded but the test request failed: {problem[0]}")
        say(f"{health.canary_names} answered a test request {time.monotonic() - began:.1f} s")
        return True

    def _announce(self, server: ServerProcess, ports: Mapping[str, int], models: Sequence[Model]) -> None:
        host = self._options.host
        self._ready_file.write(
            {
                "triton_pid": server.pid,
                "host": host,
                **ports,
                "stages": {name: pid for pid, name in server.learn_stages().items()},
                "models": [model.name for model in models],
            }
        )
        say("serving on " + ", ".join(f"{service} {host}:{port}" for service, port in ports.items()))

    def _watch(self, server: ServerProcess, watch: CanaryWatch) -> None:
        try:
            while not self._signals:
                self._check_alive(server)
                if watch.finding is not None:
                    raise LaunchError(f"{watch.names} no longer answers: {watch.finding}")
                self._pause(_SCAN_SECONDS)
        finally:
            watch.stop()

    def _check_alive(self, server: ServerProcess) -> None:
        if server.poll() is not None:
            server.log.wait(2)
            raise LaunchError(why_ended(server, "serving"))
        stage = server.dead_stage()
        if stage is not None:
            ended = how_stage_ended(server, stage)
            raise LaunchError(f"the process of the stage {stage} {ended}; the server was stopped, start it again")

    def _drain(self, server: ServerProcess, health: Health) -> None:
        """Wait until what runs has ended, for ``exit_timeout`` at most, or for a second signal.

        Triton's own wait is not enough: from its signal on it refuses the next step of every ensemble request, which
        breaks the streams that it waits for.
        """
        began = idle_since = time.monotonic()
        while server.poll() is None and self._signals < 2:
            now, count = time.monotonic(), health.running()
            if count:
                idle_since = now
            if count is None or now - idle_since >= _IDLE_SECONDS:
                return
            if now - began > self._options.exit_timeout:
                say(f"requests still running after {self._options.exit_timeout} s: {count}; they are cut off")
                return
            self._pause(_POLL_SECONDS)

    def _end(self, server: ServerProcess, health: Health) -> None:
        """Let what runs end, pass the signal on and wait; a second signal, or Triton's failure to end, kills."""
        say("stopping")
        _say_removed(remove_stale())
        began = time.monotonic()
        self._drain(server, health)
        drained_at: float | None = None
        server.signal(signal.SIGTERM)
        while server.poll() is None:
            now = time.monotonic()
            if self._signals > 1:
                say("killed by a second signal")
                self._exit_code = 128 + self._last_signal
                return
            if drained_at is None and server.log.drained:
                drained_at = now
            if drained_at is not None and now - drained_at > _UNLOAD_SECONDS:
                say("stopped; Triton still counted a request that had ended")
                return
            if now - began > self._options.exit_timeout + _UNLOAD_SECONDS:
                say("stopped with requests still running")
                return
            self._pause(_POLL_SECONDS)
        say(f"stopped {time.monotonic() - began:.1f} s")


def _passed(models: Sequence[Model]) -> list[str]:
    """The stages that the canaries' requests pass."""
    steps = {step for model in models if model.name in CANARY_MODELS for step in (model.steps or (model.name,))}
    return [model.name for model in models if model.is_stage and model.name in steps]


def say(line: str) -> None:
    """One line of progress, on standard output."""
    print(line, flush=True)


def _say_removed(leftovers: Sequence[tuple[Path, int]]) -> None:
    """A line for each path that was removed, with the id of its server's process."""
    for path, process in leftovers:
        say(f"removed {path}: its server, process {process}, was killed")
