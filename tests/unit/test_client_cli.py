"""The command line where no server is needed: wrong usage, no server, what is printed."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from client import AsyncSpeechClient, AudioChunk, InvalidArgument
from client.__main__ import main
from client.player import PlayerError, find_player
from client.progress import Progress, summary
from client.speech import timings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nothing answers: bound so that nobody else takes it, but not listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["sing"], "sing"),
        (["speak", "Hi.", "-o", "a.wav", "--seed", "x"], "--seed"),
        (["speak", "Hi.", "-o", "a.wav", "--timeout", "0"], "'0' is not a time"),
        (["speak", "Hi.", "-o", "a.wav", "--timeout", "nan"], "'nan' is not a time"),
        (["health", "--bogus"], "--bogus"),
    ],
)
def test_wrong_usage_exits_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--output is missing, so there is nowhere to put the audio; give -o FILE, -o - or --play."),
        (["-o", "."], "The value of --output is not valid: . is a folder; give the name of a file."),
        (
            ["-o", "no/such/folder/a.wav"],
            "The value of --output is not valid: the folder no/such/folder does not exist;",
        ),
        (["-o", "-", "--voice-text", "Hi."], "--voice-text needs a clip; give its file with --voice."),
        (["-o", "-", "--voice", "slt", "--voice-text", "Hi."], "--voice-text needs a clip; give its file with"),
        (["-o", "-", "--voice", "no/such.wav"], "The value of --voice is not valid: the file no/such.wav cannot be"),
        (["-o", "a.mp3"], "The value of --output is not valid: a.mp3 ends in .mp3; give .wav, .pcm or .raw."),
        (["-o", "-", "--seed", str(2**63)], "The value of --seed is not valid: 9223372036854775808 is above"),
        (["-o", "-", "--url", "grpc://localhost:8001"], "The value of url is not valid: 'grpc://localhost:8001' has a"),
    ],
)
def test_values_that_need_no_server_exit_2(
    arguments: list[str], said: str, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["speak", "Hi.", "--url", nobody, *arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""


def test_no_server_exits_1_with_a_sentence_and_leaves_the_file_alone(
    tmp_path: Path, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"older")
    assert main(["speak", "Hi.", "-o", str(path), "--url", nobody]) == 1
    assert f"No Triton server answers at {nobody} (Connection refused)." in capsys.readouterr().err
    assert path.read_bytes() == b"older"


def test_health_without_a_server(nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--url", nobody]) == 1
    assert capsys.readouterr().out.startswith("No Triton server answers")
    assert main(["health", "--json", "--url", nobody]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["live"], found["latency_s"]) == (False, False, None)


def test_no_player_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PlayerError, match="ffplay, aplay, paplay, play"):
        find_player()
    assert main(["speak", "Hi.", "--play", "--url", nobody]) == 1
    assert "no player" in capsys.readouterr().err


def test_timeouts_must_be_times() -> None:
    with pytest.raises(InvalidArgument) as caught:
        AsyncSpeechClient(chunk_timeout=0)
    assert caught.value.field == "chunk_timeout"


def test_client_runs_alone_without_backends(tmp_path: Path) -> None:
    """A user may copy client/ and nothing else."""
    (tmp_path / "client").symlink_to(ROOT / "client")
    code = (
        "import sys, client, client.__main__, client.demo; "
        "bad = [m for m in sys.modules if m.split('.')[0] in ('backends', 'tests', 'torch')]; "
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def chunk(index: int, seconds: float, at: float, final: bool = False) -> AudioChunk:
    return AudioChunk(np.zeros(int(24000 * seconds), np.int16), 24000, index, final, "stop" if final else "", at)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_on_a_terminal_and_lines_elsewhere() -> None:
    for out, expected in (
        (io.StringIO(), "chunk 0: 0.08 s of audio after 0.10 s\nchunk 1: 0.16 s of audio after 0.20 s\n"),
        (
            Terminal(),
            "\r\x1b[K1 chunk, 0.08 s of audio after 0.10 s\r\x1b[K2 chunks, 0.24 s of audio after 0.20 s\n",
        ),
    ):
        progress = Progress(5.0, out)
        progress.update(chunk(0, 0.08, 5.1))
        progress.update(chunk(1, 0.16, 5.2, final=True))
        progress.close()
        assert out.getvalue() == expected


def test_summary_says_what_was_measured() -> None:
    rows = dict(summary(timings([chunk(0, 0.08, 5.1), chunk(1, 0.32, 5.2, final=True)], 5.0)))
    assert rows == {
        "first chunk": "100 ms",
        "real-time factor": "0.500",
        "chunks": "2",
        "audio": "0.40 s",
        "worst gap": "100 ms",
        "playback underrun": "20 ms",
    }
