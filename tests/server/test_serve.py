"""serve.py with a real Triton on throw-away models: what it says, how it ends, and that it leaves nothing behind."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from tests.server.dummies import ROOT, Serve, add_stage, alive, leftovers, wait_until

pytest.importorskip("tritonclient.grpc")


@pytest.fixture
def repository(tmp_path):
    """Two stages; the one called ``tts`` is the canary's model."""
    folder = tmp_path / "repository"
    add_stage(folder, "tts")
    add_stage(folder, "other")
    return folder


def test_it_says_ready_stage_by_stage_and_ends_cleanly_on_sigterm(tmp_path, repository):
    with Serve(tmp_path, repository=repository) as serve:
        state = serve.wait_serving()
        assert sorted(state["stages"]) == ["other", "tts"]
        with urllib.request.urlopen(f"http://127.0.0.1:{state['http']}/v2/health/ready") as answer:
            assert answer.status == 200
        with urllib.request.urlopen(f"http://127.0.0.1:{state['metrics']}/metrics") as answer:
            assert answer.status == 200
        began = time.monotonic()
        serve.process.send_signal(signal.SIGTERM)
        assert serve.wait_ended() == 0
        assert time.monotonic() - began < 5
    for words in ("other loaded", "tts loaded", "2 models ready", "tts answered a test request"):
        assert words in serve.out
    assert serve.out.index("tts answered") < serve.out.index("serving on http 127.0.0.1:")
    assert serve.err == ""
    assert leftovers(state) == []
    assert not serve.ready_file.exists()


def test_a_killed_stage_stops_the_server_and_is_named(tmp_path, repository):
    with Serve(tmp_path, repository=repository) as serve:
        state = serve.wait_serving()
        os.kill(state["stages"]["other"], signal.SIGKILL)
        assert serve.wait_ended(10) == 1
    assert serve.err.strip().splitlines()[-1] == (
        "serve.py: the process of the stage other was killed by SIGKILL, as the kernel does when memory runs out; "
        "the server was stopped, start it again"
    )
    assert leftovers(state) == []


def test_a_killed_triton_leaves_nothing_behind(tmp_path, repository):
    with Serve(tmp_path, repository=repository) as serve:
        state = serve.wait_serving()
        os.kill(state["triton_pid"], signal.SIGKILL)
        assert serve.wait_ended(10) == 1
    assert "Triton was killed by SIGKILL while serving" in serve.err
    assert leftovers(state) == []


def test_a_killed_serve_takes_triton_with_it(tmp_path, repository):
    with Serve(tmp_path, repository=repository) as serve:
        state = serve.wait_serving()
        serve.process.kill()
        serve.wait_ended()
        assert wait_until(lambda: not leftovers(state)), leftovers(state)


def test_nothing_outlives_serve_and_triton_when_both_are_killed(tmp_path):
    """Triton cannot end its stages then, and one of them hangs."""
    repository = tmp_path / "repository"
    hang = "self.count = getattr(self, 'count', 0) + 1; self.count > 1 and time.sleep(3600)"
    add_stage(repository, "tts", execute=hang)
    with Serve(tmp_path, "--canary-interval", "0.2", "--canary-timeout", "600", repository=repository) as serve:
        state = serve.wait_serving()
        time.sleep(1)
        serve.process.kill()
        os.kill(state["triton_pid"], signal.SIGKILL)
        assert wait_until(lambda: not [pid for pid in state["stages"].values() if alive(pid)])


def test_what_a_killed_server_left_is_removed_by_the_next(tmp_path, repository, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Serve(tmp_path, repository=repository) as serve:
        state = serve.wait_serving()
        (folder,) = tmp_path.glob("voxstage-serve-*")
        serve.process.kill()
        os.kill(state["triton_pid"], signal.SIGKILL)
        serve.wait_ended()
        assert wait_until(lambda: not [pid for pid in state["stages"].values() if alive(pid)])
    assert serve.ready_file.exists() and folder.exists()
    region = f"/dev/shm/voxstage-{state['pid']}-test"
    with open(region, "w"):
        pass
    with Serve(tmp_path, repository=repository) as serve:
        assert wait_until(lambda: "starting Triton" in serve.out)
        assert not serve.ready_file.exists() or "serving on" in serve.out
        fresh = serve.wait_serving()
        assert fresh["pid"] == serve.process.pid != state["pid"]
        (new,) = tmp_path.glob("voxstage-serve-*")
        assert new != folder and not os.path.exists(region)
        for path in (serve.ready_file, folder):
            assert f"removed {path}: its server, process {state['pid']}, was killed" in serve.out
        # The file of a live server is not taken over, and stays.
        second = subprocess.run(
            [sys.executable, str(ROOT / "serve.py"), "--ready-file", str(serve.ready_file)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert second.returncode == 2
        assert second.stderr.strip() == (
            f"serve.py: --ready-file {serve.ready_file} belongs to a server that runs, process {fresh['pid']}; "
            "stop it, or give another name"
        )
        assert serve.wait_serving() == fresh and new.exists()
        serve.process.send_signal(signal.SIGTERM)
        assert serve.wait_ended() == 0
    assert not serve.ready_file.exists() and not list(tmp_path.glob("voxstage-serve-*"))


def test_what_outlives_a_killed_server_by_seconds_is_removed_later(tmp_path, repository, monkeypatch):
    """Its Triton still ends, and holds the folder, when the next server starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folders, locks = [tmp_path / f"voxstage-serve-{name}" for name in "ab"], []
    for folder in folders:
        folder.mkdir()
        (folder / "owner").write_text(f"voxstage-{ended.pid}-")
        locks.append((folder / "owner").open())
        fcntl.flock(locks[-1], fcntl.LOCK_EX)
    with Serve(tmp_path, repository=repository) as serve:
        assert wait_until(lambda: "starting Triton" in serve.out)
        assert folders[0].exists() and folders[1].exists()
        locks[0].close()
        serve.wait_serving()
        assert not folders[0].exists() and folders[1].exists()
        locks[1].close()
        serve.process.send_signal(signal.SIGTERM)
        assert serve.wait_ended() == 0
    assert not list(tmp_path.glob("voxstage-serve-*"))
    for folder in folders:
        assert f"removed {folder}: its server, process {ended.pid}, was killed" in serve.out


def test_a_stage_that_fails_to_load_is_quoted(tmp_path, repository):
    add_stage(repository, "broken", init="raise ValueError('the weights are \"wet\"')")
    with Serve(tmp_path, repository=repository) as serve:
        assert serve.wait_ended() == 1
    assert serve.err.strip().splitlines()[-1] == (
        'serve.py: the stage broken failed to load: ValueError: the weights are "wet"'
    )


@pytest.mark.parametrize(
    ("init", "how"),
    [
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL, as the kernel does when memory runs out"),
        ("time.sleep(1); os._exit(3)", "ended with code 3"),
    ],
)
def test_a_stage_whose_process_ends_while_it_loads_is_one_sentence(tmp_path, repository, init, how):
    add_stage(repository, "broken", init=init)
    with Serve(tmp_path, repository=repository) as serve:
        assert serve.wait_ended() == 1
    assert serve.err.strip() == (
        f"serve.py: the stage broken failed to load: its process {how}; --log-verbose 1 shows all that was said"
    )


def test_stages_that_refuse_for_the_same_reason_are_one_sentence(tmp_path, repository):
    """As all do for --device cuda on a machine without a GPU."""
    for name in ("first", "second"):
        add_stage(repository, name, init="raise pb.TritonModelException('INVALID_ARG device: no GPU; choose cpu')")
    with Serve(tmp_path, repository=repository) as serve:
        assert serve.wait_ended() == 1
    assert serve.err.strip() == (
        "serve.py: the stages first and second failed to load: INVALID_ARG device: no GPU; choose cpu"
    )


def test_a_stage_without_code_does_not_load_for_ever(tmp_path, repository):
    """Triton 2.51 alone would wait for it without end."""
    (repository / "other" / "1" / "model.py").unlink()
    with Serve(tmp_path, repository=repository) as serve:
        assert serve.wait_ended(20) == 1
    assert "serve.py: a stage's process died while loading (not loaded yet: other" in serve.err
    assert "Python model file not found" in serve.err


def test_a_stage_that_answers_with_an_error_is_not_served(tmp_path):
    repository = tmp_path / "repository"
    add_stage(repository, "tts", execute="raise RuntimeError('no voice')")
    with Serve(tmp_path, repository=repository) as serve:
        assert serve.wait_ended() == 1
    assert "serve.py: tts is loaded but the test request failed: " in serve.err
    assert "no voice" in serve.err
    assert "serving on" not in serve.out


def test_a_stage_that_hangs_is_noticed_by_the_canary(tmp_path):
    repository = tmp_path / "repository"
    hang = "self.count = getattr(self, 'count', 0) + 1; self.count > 1 and time.sleep(3600)"
    add_stage(repository, "tts", execute=hang)
    with Serve(tmp_path, "--canary-interval", "0.5", "--canary-timeout", "0.5", repository=repository) as serve:
        state = serve.wait_serving()
        assert serve.wait_ended(20) == 1
    assert "tts no longer answers: the test request failed 2 times in a row: no answer within 0.5 s" in serve.err
    assert leftovers(state) == []


def test_a_full_server_counts_as_alive(tmp_path):
    repository = tmp_path / "repository"
    full = (
        "request.get_response_sender().send(pb.InferenceResponse(error=pb.TritonError('UNAVAILABLE full')), "
        "flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL); continue"
    )
    add_stage(repository, "tts", execute=full)
    with Serve(tmp_path, "--canary-interval", "0.2", repository=repository) as serve:
        serve.wait_serving()
        time.sleep(1.5)
        assert serve.process.poll() is None


def test_a_second_signal_kills(tmp_path):
    repository = tmp_path / "repository"
    # The first request is the canary; the next one keeps Triton from ending.
    add_stage(repository, "tts", execute="self.n = getattr(self, 'n', 0) + 1; self.n > 1 and time.sleep(3600)")
    arguments = ("--canary-interval", "0.2", "--canary-timeout", "600", "--exit-timeout-secs", "600")
    with Serve(tmp_path, *arguments, repository=repository) as serve:
        state = serve.wait_serving()
        time.sleep(1)
        serve.process.send_signal(signal.SIGINT)
        assert wait_until(lambda: "stopping" in serve.out)
        time.sleep(1)
        assert serve.process.poll() is None
        serve.process.send_signal(signal.SIGINT)
        assert serve.wait_ended(5) == 128 + signal.SIGINT
    assert "killed by a second signal" in serve.out
    assert leftovers(state) == []


def test_a_signal_to_the_process_and_its_group_is_one_signal(tmp_path):
    """As ``timeout`` sends it. The request that runs is not cut off."""
    repository = tmp_path / "repository"
    add_stage(repository, "tts", execute="self.n = getattr(self, 'n', 0) + 1; self.n > 1 and time.sleep(3)")
    with Serve(tmp_path, "--canary-interval", "0.2", "--canary-timeout", "600", repository=repository) as serve:
        state = serve.wait_serving()
        time.sleep(0.5)
        for _ in range(2):
            serve.process.send_signal(signal.SIGTERM)
            time.sleep(0.02)
        assert serve.wait_ended(10) == 0
    assert "killed" not in serve.out and serve.out.splitlines()[-1].startswith("stopped ")
    assert leftovers(state) == []


def test_a_request_that_triton_refused_does_not_hold_up_the_end(tmp_path, repository):
    """Triton 2.51 counts such a request of a gRPC stream for ever and would wait for --exit-timeout-secs."""
    import numpy as np
    import tritonclient.grpc as grpc

    with Serve(tmp_path, "--exit-timeout-secs", "60", repository=repository) as serve:
        state = serve.wait_serving()
        client = grpc.InferenceServerClient(f"127.0.0.1:{state['grpc']}")
        errors: list[object] = []
        client.start_stream(lambda result, error: errors.append(error))
        wrong = grpc.InferInput("text", [1], "INT32")
        wrong.set_data_from_numpy(np.zeros(1, np.int32))
        client.async_stream_infer("tts", [wrong])
        assert wait_until(lambda: errors)
        client.stop_stream()
        client.close()
        began = time.monotonic()
        serve.process.send_signal(signal.SIGTERM)
        assert serve.wait_ended() == 0
        assert time.monotonic() - began < 6
    assert leftovers(state) == []


def test_a_signal_while_loading_ends_at_once(tmp_path):
    repository = tmp_path / "repository"
    add_stage(repository, "tts", init="time.sleep(3600)")
    with Serve(tmp_path, repository=repository) as serve:
        assert wait_until(lambda: "starting Triton" in serve.out)
        time.sleep(1)
        serve.process.send_signal(signal.SIGTERM)
        assert serve.wait_ended(5) == 0
        assert not alive(serve.process.pid)
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"voxstage-{serve.process.pid}-")]


def test_settings_reach_the_stages(tmp_path):
    repository = tmp_path / "repository"
    add_stage(repository, "tts", init="raise ValueError(os.environ['VOXSTAGE_OVERRIDES'])")
    with Serve(tmp_path, "--set", "tts.size=8", repository=repository) as serve:
        assert serve.wait_ended() == 1
    assert 'ValueError: {"tts": {"size": "8"}}' in serve.err


def test_a_port_in_use_and_a_wrong_setting_start_nothing(tmp_path, repository):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Serve(tmp_path, "--http-port", str(port), repository=repository) as serve:
            assert serve.wait_ended() == 1
        assert serve.err.strip() == (
            f"serve.py: port {port} on 127.0.0.1 is in use; choose another with --http-port, or 0 for any free one"
        )
    with Serve(tmp_path, "--set", "tts.depth=1", repository=repository) as serve:
        assert serve.wait_ended() == 2
    assert serve.err.strip() == "serve.py: --set tts.depth=1: tts has no parameter 'depth'; it has size"
