"""The bench of transcription: clips, records, levels, tables, options."""

from __future__ import annotations

import io
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.__main__ import build_parser, main
from client.bench import transcript_tables
from client.bench.clips import PAUSE_S, Clip, as_wav, joined, read_clips
from client.bench.level import Tally
from client.bench.metrics import parse
from client.bench.report import report
from client.bench.stages import ASR_STAGES
from client.bench.transcripts import TranscriptLevel, TranscriptRecord, TranscriptWorkload, summarise
from client.bench.workload import Outcome
from client.commands.bench_requests import make_workload, source
from client.errors import InvalidArgument
from client.request import TranscriptionRequest
from client.transcript import TranscriptChunk
from client.wav import wav_header


def record(
    index: int = 0, due: float = 0.0, seconds: float = 4.0, after: float = 0.4, **fields: Any
) -> TranscriptRecord:
    """Blanks after 0.1 s, words after 0.2 s, the end after ``after``."""
    values: dict[str, Any] = {
        "sent": due,
        "ended": due + after,
        "kind": "OK",
        "finish_reason": "stop",
        "clip": "a.wav",
        "audio_s": seconds,
        "chunks": ((due + 0.1, 0), (due + 0.2, 12), (due + after, 0)),
    }
    return TranscriptRecord(index=index, due=due, **{**values, **fields})


def clip(name: str, rate: int, samples: Any) -> Clip:
    data = np.asarray(samples, "<i2").tobytes()
    return Clip(name, wav_header(rate, len(data)) + data, len(samples) / rate, rate)


def samples_of(data: bytes) -> tuple[np.ndarray, int]:
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2"), file.getframerate()


def test_the_built_in_clips() -> None:
    clips = read_clips(None)
    assert [one.name for one in clips] == ["rms.flac", "slt.flac"]
    assert [round(one.seconds, 3) for one in clips] == [2.845, 2.67]


def test_a_folder_and_a_file(tmp_path: Path) -> None:
    for name in ("b.wav", "a.WAV"):
        (tmp_path / name).write_bytes(clip(name, 8000, np.ones(4000)).data)
    (tmp_path / "notes.txt").write_text("none")
    assert [(one.name, one.seconds) for one in read_clips(tmp_path)] == [("a.WAV", 0.5), ("b.wav", 0.5)]
    assert [one.name for one in read_clips(tmp_path / "b.wav")] == ["b.wav"]
    (tmp_path / "c.wav").write_bytes(b"no audio")
    for path, said in (
        (tmp_path / "c.wav", "length of"),
        (tmp_path, "length of"),
        (tmp_path / "none.wav", "cannot be read (No such file"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            read_clips(path)
        assert caught.value.field == "--clips"
        assert said in str(caught.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArgument, match="holds no wav"):
        read_clips(tmp_path / "empty")


def test_long_recordings() -> None:
    pytest.importorskip("soundfile")
    pause = [0] * round(100 * PAUSE_S)
    one, two = [1] * 30, [2] * 20
    made = joined([clip("one", 100, one), clip("two", 100, two)], 1.9)
    assert [found.seconds for found in made] == [1.9, 1.9]
    samples, rate = samples_of(made[0].data)
    assert rate == 100
    assert samples.tolist() == [*one, *pause, *two, *pause, *one, *pause][:190]
    assert samples_of(made[1].data)[0].tolist()[:20] == two
    with pytest.raises(InvalidArgument, match=r"the file c\.mp3 cannot be read as audio: it is damaged, or"):
        as_wav([Clip("c.mp3", b"\xff\xfb" + bytes(400), 1.0)], "--unseen")
    with pytest.raises(InvalidArgument, match="one sample rate; there are 100, 200"):
        joined([clip("one", 100, one), clip("two", 200, two)], 1.0)


def test_a_mark_is_faint_and_in_every_second() -> None:
    pytest.importorskip("soundfile")
    plain = np.full(350, 1000, np.int16)
    (made,) = as_wav([clip("x", 100, plain)], "--unseen")
    assert np.array_equal(samples_of(made.data)[0], plain)
    numbers = (0, 1, 31, 32, 2**20 - 1)
    marked = [samples_of(made.marked(number))[0] for number in numbers]
    for found in marked:
        changed = np.flatnonzero(found != plain)
        assert changed.tolist() == [second + i for second in (0, 100, 200, 300) for i in range(4)]
        assert np.abs(found[changed]).max() <= 32
    for start in (0, 100, 200, 300):
        assert len({found[start : start + 100].tobytes() for found in marked}) == len(numbers)


def test_a_record() -> None:
    found = record(due=1.0)
    assert found.latency_s == pytest.approx(0.4)
    assert found.first_text_s == pytest.approx(0.2)
    assert record(chunks=((0.4, 0),)).first_text_s is None
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["characters"] == 12


def test_a_workload_makes_records_of_outcomes() -> None:
    clips = (clip("a", 100, np.ones(100)), clip("b", 100, np.ones(250)))
    work = TranscriptWorkload(clips, TranscriptionRequest(b"", seed=3))
    last = TranscriptChunk(" two\n words ", (), "en", 1, True, "length", 2.0, {"built": 0.5})
    assert work.size(last) == len("twowords")
    made = work.record(Outcome(3, due=1.0, sent=1.5, ended=2.0, arrived=[(2.0, 8)], last=last))
    assert (made.clip, made.audio_s, made.finish_reason, made.timeline) == ("b", 2.5, "length", {"built": 0.5})
    assert (made.index, made.due, made.sent, made.ended, made.ok) == (3, 1.0, 1.5, 2.0, True)
    refused = work.record(Outcome(0, kind="UNAVAILABLE", message="full", ended=0.1))
    assert (refused.ok, refused.finish_reason, refused.chunks) == (False, "", ())
    assert [one.name for one in work.reversed().clips] == ["b", "a"]
    assert work.as_dict()["audio_s"] == {"mean": 1.75, "least": 1.0, "most": 2.5}


def sent(work: TranscriptWorkload, index: int) -> bytes:
    """The audio that request ``index`` would send."""

    class Client:
        def stream(self, request: TranscriptionRequest) -> Any:
            return request

    audio: Any = work.stream(Client(), index)
    assert isinstance(audio, TranscriptionRequest)
    assert isinstance(audio.audio, bytes)
    return audio.audio


def test_unseen_recordings_are_never_the_same() -> None:
    clips = (clip("a", 100, np.ones(100)),)
    seen = TranscriptWorkload(clips, TranscriptionRequest(b""))
    assert sent(seen, 0) == sent(seen, 1) == clips[0].data
    unseen = TranscriptWorkload(clips, TranscriptionRequest(b""), unseen=True)
    # A warm-up or the next level begins at 0 again, and must not say what was said before.
    assert len({sent(work, index) for work in (unseen, unseen.reversed()) for index in range(3)}) == 6


def test_a_level_adds_up() -> None:
    records = [
        record(0, 0.0, 4.0),
        record(1, 1.0, 30.0, 0.6),
        record(2, 2.8, 8.0),  # ends after the window
        record(3, 0.0, kind="UNAVAILABLE", ended=0.01, chunks=()),
        record(4, 0.0, kind="BROKEN", ended=3.0),
    ]
    level = summarise(Tally("2/s", started=6, offered=2.0, window=3.0), records)
    assert (level.finished, level.lost, level.unfinished) == (3, 1, 1)
    assert level.audio_per_s == pytest.approx(34 / 3)
    assert level.requests_per_s == pytest.approx(2 / 3)
    assert (level.latency.n, level.first_text.n) == (3, 3)
    assert level.latency.mean == pytest.approx((0.4 + 0.6 + 0.4) / 3)
    assert [(group.least, group.below, group.audio.n) for group in level.lengths] == [(0, 10, 2), (10, 60, 1)]
    assert level.lengths[1].audio.mean == 30
    json.dumps(level.as_dict(), allow_nan=False)


def test_a_silent_clip_has_a_latency_and_no_first_text() -> None:
    level = summarise(Tally("c=1", 1), [record(chunks=((0.4, 0),))])
    assert (level.latency.n, level.first_text.n) == (1, 0)


def test_stages_add_up() -> None:
    events = [end for _, _, end in ASR_STAGES]
    timeline = {name: 0.02 * (number + 1) for number, name in enumerate(events)}
    found = summarise(Tally("c=1", 1), [record(timeline=timeline)]).stages
    assert found is not None
    assert all(value == pytest.approx(0.02) for value in found.stages.values())
    assert found.rest == pytest.approx(0.4 - 0.02 * len(events))
    assert found.aside == {}


def big_level() -> TranscriptLevel:
    timeline = {name: 1.2345 * number for number, (_, _, name) in enumerate(ASR_STAGES)}
    records = [record(i, i / 100, (4.7, 60.0, 1200.0)[i % 3], 123.4, timeline=timeline) for i in range(12000)]
    records += [record(i, i / 100, kind="UNAVAILABLE", ended=i / 100 + 0.04) for i in range(200)]
    names = ("steps", "frames", "step_seconds", "prefill_seconds", "prefix_hits", "retracted", "shed")
    metrics = {f"voxstage_decoder_{name}": 123456.0 for name in names}
    metrics |= {
        f"voxstage_asr_{name}": 123456.0
        for name in ("windows", "silent_windows", "cache_hits", "feature_seconds", "encode_seconds", "shed")
    }
    return summarise(Tally("12.5/s", 12200, offered=12.5, client_cpu=0.9, window=120.0, metrics=metrics), records)


def test_every_table_fits_120_columns() -> None:
    text = report([big_level()], transcript_tables, timeline=True)
    assert max(map(len, text.splitlines())) <= 120
    for title in ("Latency", "By length", "300+ s", "Warning: 12.5/s: the client", "Errors", "Stages", "Server"):
        assert title in text
    assert "By length" not in report([summarise(Tally("c=1", 1), [record()])], transcript_tables, timeline=False)


def test_counters_of_the_other_pipeline_are_left_out() -> None:
    text = 'voxstage_x{model="tts_decoder"} 1\nvoxstage_x{model="asr_decoder",version="1"} 2\nvoxstage_x 4\n'
    assert parse(text).values["voxstage_x"] == 7
    assert parse(text, ("tts_",)).values["voxstage_x"] == 6
    assert parse(text, ("asr_", "audio_")).values["voxstage_x"] == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["asr", "--texts", "x"], "--texts is for bench tts; this is bench asr"),
        (["asr", "--top-p", "0.5"], "--top-p is for bench tts"),
        (["tts", "--clips", "x"], "--clips is for bench asr; this is bench tts"),
        (["tts", "--unseen"], "--unseen is for bench asr"),
        (["asr", "--clips", "/no/such/folder"], "--clips is not valid: the file /no/such/folder cannot be read"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments, "--url", "127.0.0.1:1"]) == 2
    assert said in capsys.readouterr().err


def test_options_become_a_request() -> None:
    args = build_parser().parse_args(["bench", "asr", "--language", "en", "--max-tokens", "20", "--seed", "3"])
    work = make_workload(args)
    assert isinstance(work, TranscriptWorkload)
    assert (work.request.language, work.request.max_tokens, work.request.seed) == ("en", 20, 3)
    assert source(args) == "built in"
    args.clips = Path("/some/where/clips/")
    assert source(args) == "clips"


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "asr", "--url", "127.0.0.1:1", "--requests", "1"]) == 1
    assert "No Triton server answers" in capsys.readouterr().err
