"""Transcription where no server is needed: requests, segments, lengths of files, the command line."""

from __future__ import annotations

import io
import struct
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import AsyncTranscriber, InvalidArgument, Segment, ServerError, TranscriptChunk, TranscriptionRequest
from client.__main__ import main
from client.commands.transcribe import Output
from client.duration import duration
from client.progress import TranscriptProgress, transcript_summary
from client.request import make_transcription
from client.response import read_segments
from client.transcript import Transcript, murmur

ROOT = Path(__file__).resolve().parents[2]
CLIP = ROOT / "voices" / "slt.flac"


def tensors(request: TranscriptionRequest) -> dict[str, tuple[str, list[int], bytes]]:
    return {t.name(): (t.datatype(), list(t.shape()), t._get_content()) for t in request.inputs()}


@pytest.mark.parametrize("audio", [CLIP, str(CLIP), CLIP.read_bytes()])
def test_a_file_goes_out_byte_for_byte(audio: Any) -> None:
    data = CLIP.read_bytes()
    assert tensors(TranscriptionRequest(audio)) == {
        "audio_file": ("BYTES", [1], struct.pack("<I", len(data)) + data),
    }


def test_every_field_has_its_type() -> None:
    samples = np.array([[0.0, 0.5], [1.0, -1.0]])
    request = TranscriptionRequest(
        samples, sample_rate=8000, language="en", context="Ann", max_tokens=7, temperature=0.5, seed=3
    )
    sent = tensors(request)
    assert sent == {
        "audio": ("FP32", [4], np.array([0.0, 0.5, 1.0, -1.0], np.float32).tobytes()),
        "channels": ("INT32", [1], struct.pack("<i", 2)),
        "sample_rate": ("INT32", [1], struct.pack("<i", 8000)),
        "language": ("BYTES", [1], b"\x02\0\0\0en"),
        "context": ("BYTES", [1], b"\x03\0\0\0Ann"),
        "max_tokens": ("INT32", [1], struct.pack("<i", 7)),
        "temperature": ("FP32", [1], struct.pack("<f", 0.5)),
        "seed": ("INT64", [1], struct.pack("<q", 3)),
    }


def test_whole_numbers_are_scaled() -> None:
    sent = tensors(TranscriptionRequest(np.array([-32768, 0, 16384], np.int16), sample_rate=1))
    assert np.frombuffer(sent["audio"][2], np.float32).tolist() == [-1.0, 0.0, 0.5]


@pytest.mark.parametrize(
    ("audio", "params", "said"),
    [
        (np.zeros(3), {}, "sample_rate is missing"),
        (np.zeros((1, 2, 3)), {"sample_rate": 1}, "audio is not valid: shape [1, 2, 3] is not"),
        (np.zeros(3, np.int64), {"sample_rate": 1}, "audio is not valid: dtype int64 is not"),
        ("no/such/file.wav", {}, "audio is not valid: the file no/such/file.wav cannot be read: No such file"),
        (None, {}, "audio is not valid: a NoneType is no clip"),
        (b"", {"seed": 2**63}, "seed is not valid"),
        (b"", {"language": 3}, "language is not valid: 3 is a int"),
        (b"", {"text": "x"}, "text is not a field of a request; use one of context, extra"),
    ],
)
def test_what_fits_no_tensor_is_refused_by_name(audio: Any, params: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        AsyncTranscriber().stream(audio, **params)
    assert said in str(caught.value)


def test_a_request_with_fields_replaced() -> None:
    request = make_transcription(TranscriptionRequest(b"x", language="en"), {"language": "de"})
    assert (request.audio, request.language) == (b"x", "de")
    sent = tensors(TranscriptionRequest(b"x", extra={"audio_file": None, "seed": 1.5}))
    assert sent == {"seed": ("FP32", [1], struct.pack("<f", 1.5))}


def test_segments() -> None:
    assert read_segments("") == read_segments("[]") == ()
    found = read_segments('[{"start": 0, "end": 1.5, "text": " Hi.", "speaker": 2, "mood": 1}]')
    assert found == (Segment(0.0, 1.5, " Hi.", 2),)


@pytest.mark.parametrize(
    "text", ["{", "3", '[{"start": 0, "end": 1}]', "[3]", '[{"start": "x", "end": 1, "text": ""}]',
             '[{"start": NaN, "end": 1, "text": ""}]'],
)  # fmt: skip
def test_segments_that_are_none(text: str) -> None:
    with pytest.raises(ServerError, match="segment"):
        read_segments(text)


def wav(frames: int, rate: int, channels: int) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes(bytes(2 * channels * frames))
    return out.getvalue()


def test_duration() -> None:
    assert duration(wav(12345, 8000, 2)) == 12345 / 8000
    # A recorder that writes into a pipe cannot go back and say how much there was.
    streamed = bytearray(wav(8000, 8000, 1))
    streamed[40:44] = b"\xff\xff\xff\xff"
    assert duration(bytes(streamed)) == 1.0
    assert duration(CLIP.read_bytes()) == 2.67
    for nothing in (b"", b"RIFF", b"fLaC", b"no audio at all", wav(8, 8000, 1)[:30], CLIP.read_bytes()[:20]):
        assert duration(nothing) is None


@pytest.mark.parametrize("form", ["OGG", "MP3"])
def test_duration_of_what_soundfile_knows(form: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    out = io.BytesIO()
    soundfile.write(out, np.zeros(24000), 16000, format=form)
    assert duration(out.getvalue()) == pytest.approx(1.5, abs=0.1)


def test_murmur_is_a_clip() -> None:
    samples, rate = murmur()
    assert (samples.dtype, len(samples)) == (np.float32, rate)
    assert 0.05 < np.abs(samples).max() < 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def chunk(text: str, at: float, *segments: Segment, final: bool = False) -> TranscriptChunk:
    return TranscriptChunk(text, segments, "en", 0, final, "", at)


def test_progress_is_a_bar_on_a_terminal_and_nothing_elsewhere() -> None:
    for out, expected in (
        (io.StringIO(), ""),
        (
            Terminal(),
            f"\r\x1b[Ka.wav [{' ' * 24}]   0 %, 0 s in 1.0 s"
            f"\r\x1b[Ka.wav [{'#' * 12}{' ' * 12}]  50 %, 30 s in 2.0 s"
            f"\r\x1b[Ka.wav [{'#' * 24}] 100 %, 30 s in 3.0 s\r\x1b[K",
        ),
    ):
        progress = TranscriptProgress("a.wav", 60.0, 5.0, out)
        progress.update(chunk("a", 6.0))
        progress.update(chunk("b", 7.0, Segment(0, 30, "ab")))
        progress.update(chunk("", 8.0, final=True))
        progress.close()
        assert out.getvalue() == expected
    assert TranscriptProgress("-", None, 0.0).line(2.0) == "- 0 s in 2.0 s"


def test_summary() -> None:
    heard = Transcript("Hi.", (), "en", "stop", 0.2, 1.5)
    assert transcript_summary(heard, 60.0) == (
        "60.00 s of audio in 1.50 s, 40.0 times as fast as it plays, first text after 0.20 s, language en"
    )
    assert transcript_summary(Transcript("", (), "", "stop", None, 1.5), None) == "1.50 s, no speech found"


@pytest.mark.parametrize(
    ("output", "form", "expected"),
    [
        (None, None, "txt"), ("-", None, "txt"), ("-", "srt", "srt"), ("a.vtt", None, "vtt"), ("a.SRT", None, "srt"),
        ("a.vtt", "json", "json"), ("a.log", "txt", "txt"), ("a", None, "txt"), (".", "vtt", "vtt"),
    ],
)  # fmt: skip
def test_the_format(output: str | None, form: str | None, expected: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert Output(output, form, ["talk.wav"]).format == expected
    assert list(tmp_path.iterdir()) == []


def test_files_of_a_folder(tmp_path: Path) -> None:
    output = Output(str(tmp_path), "srt", ["a/one.wav", "two.mp3", "-"])
    for name in ("a/one.wav", "two.mp3", "-"):
        with output.opened(name) as (out, path):
            out.write(name)
            assert Path(path).parent == tmp_path
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.srt", "stdin.srt", "two.srt"]
    assert output.heading("a/one.wav") == ""
    several = Output(None, None, ["a", "b"])
    assert [several.heading(name) for name in ("a", "b")] == ["==> a <==\n", "\n==> b <==\n"]
    assert Output(None, None, ["a"]).heading("a") == Output(None, "json", ["a", "b"]).heading("a") == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a.wav", "b.wav", "--format", "srt"], "--output is needed: 2 recordings make no single srt file"),
        (["a.wav", "b.wav", "-o", "x.vtt"], "--output is needed"),
        (["a/x.wav", "b/x.mp3", "-o", "."], "a/x.wav and b/x.mp3 would both become x.txt"),
        (["a.wav", "-o", "no/such/folder/"], "the folder no/such/folder does not exist"),
        (["a.wav", "-o", "no/such/file.txt"], "the folder no/such does not exist"),
        (["a.wav", "-o", "x.pdf"], "x.pdf ends in .pdf; give .txt, .srt, .vtt or .json, or choose with --format."),
        (["-", "-"], "- is stdin, which can be read once"),
    ],
)
def test_values_that_need_no_server_exit_2(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["transcribe", "--url", "127.0.0.1:1", *arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""


def test_files_that_cannot_be_read_are_refused_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcribe", "--url", "127.0.0.1:1", "no.wav"]) == 2
    assert capsys.readouterr().err == (
        "The value of FILE is not valid: the file no.wav cannot be read: No such file or directory.\n"
    )
    assert main(["transcribe", "--url", "127.0.0.1:1", "no.wav", "nor.wav", "-o", str(tmp_path)]) == 2
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["no.wav", "nor.wav"]
    assert list(tmp_path.iterdir()) == []


def test_no_server_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"older")
    assert main(["transcribe", "--url", "127.0.0.1:1", str(CLIP), str(CLIP), "-o", str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.err.count("No Triton server answers at 127.0.0.1:1") == 1
    assert path.read_bytes() == b"older"
