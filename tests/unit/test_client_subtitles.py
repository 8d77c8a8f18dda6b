"""Transcripts as files, against the rules of the formats."""

from __future__ import annotations

import io
import json
import math
import re

import pytest

from client.subtitles import CUE_CHARACTERS, WRITERS, milliseconds, one_line, split, timestamp
from client.transcript import Segment, Transcript, TranscriptChunk, join


def chunk(text: str, *segments: Segment, index: int = 0, final: bool = False, language: str = "en") -> TranscriptChunk:
    return TranscriptChunk(text, segments, language, index, final, "stop" if final else "", 1.0 + index)


def written(form: str, *chunks: TranscriptChunk, seconds: float | None = None) -> str:
    out = io.StringIO(newline="")
    writer = WRITERS[form](out)
    for one in chunks:
        writer.write(one)
    writer.finish("talk.wav", join(chunks, 0.5), seconds)
    assert not out.closed
    return out.getvalue()


TALK = (
    chunk(" Good"),
    chunk(" morning.", Segment(0.0, 1.2344, " Good morning."), index=1),
    chunk(" Tom & <Ann> --> all.", Segment(3599.9996, 3661.5, " Tom & <Ann> --> all."), index=2, final=True),
)


def test_srt() -> None:
    assert written("srt", *TALK) == (
        "1\n00:00:00,000 --> 00:00:01,234\nGood morning.\n\n"
        "2\n01:00:00,000 --> 01:01:01,500\nTom & <Ann> -> all.\n\n"
    )  # fmt: skip


def test_vtt() -> None:
    assert written("vtt", *TALK) == (
        "WEBVTT\n\n"
        "00:00:00.000 --> 00:00:01.234\nGood morning.\n\n"
        "01:00:00.000 --> 01:01:01.500\nTom &amp; &lt;Ann&gt; --&gt; all.\n\n"
    )


def test_text() -> None:
    assert written("txt", *TALK) == "Good morning. Tom & <Ann> --> all.\n"
    assert written("txt", chunk("  "), chunk("\n", index=1), chunk("x\n", index=2, final=True)) == "x\n"
    assert written("txt", chunk("", final=True)) == ""


def test_text_comes_at_once() -> None:
    out = io.StringIO()
    writer = WRITERS["txt"](out)
    writer.write(TALK[0])
    assert out.getvalue() == "Good"


@pytest.mark.parametrize(("form", "expected"), [("txt", "Good\n"), ("srt", ""), ("vtt", "WEBVTT\n\n"), ("json", "")])
def test_a_transcript_that_breaks_off_ends_its_line(form: str, expected: str) -> None:
    out = io.StringIO()
    writer = WRITERS[form](out)
    writer.write(TALK[0])
    writer.stop()
    assert out.getvalue() == expected


def test_json() -> None:
    text = written("json", *TALK, seconds=3700.25)
    assert text.endswith("\n")
    assert text.count("\n") == 1
    assert json.loads(text) == {
        "file": "talk.wav",
        "text": "Good morning. Tom & <Ann> --> all.",
        "language": "en",
        "duration": 3700.25,
        "finish_reason": "stop",
        "segments": [
            {"start": 0.0, "end": 1.2344, "text": " Good morning."},
            {"start": 3599.9996, "end": 3661.5, "text": " Tom & <Ann> --> all."},
        ],
    }


@pytest.mark.parametrize(
    ("ms", "expected"),
    [(0, "00:00:00.000"), (59_999, "00:00:59.999"), (3_599_999, "00:59:59.999"), (360_000_000, "100:00:00.000")],
)
def test_timestamps(ms: int, expected: str) -> None:
    assert timestamp(ms, ".") == expected


def test_seconds_are_rounded_once() -> None:
    # 59.9996 s is a minute, never 00:00:60.000 or 00:00:59.1000.
    assert timestamp(milliseconds(59.9996), ",") == "00:01:00,000"
    assert milliseconds(-0.2) == 0
    for seconds in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite seconds"):
            milliseconds(seconds)


@pytest.mark.parametrize("form", ["srt", "vtt"])
def test_cues_are_in_order_and_never_empty(form: str) -> None:
    segments = (Segment(5.0, 5.0, "a"), Segment(4.0, 4.5, "b"), Segment(-1.0, 9.0, "c"), Segment(9.0, 10.0, " \n "))
    text = written(form, chunk("a b c", *segments, final=True))
    times = re.findall(r"00:00:(\d\d)[.,](\d{3}) --> 00:00:(\d\d)[.,](\d{3})", text)
    found = [(1000 * int(a) + int(b), 1000 * int(c) + int(d)) for a, b, c, d in times]
    assert found == [(5000, 5001), (5000, 5001), (5000, 9000)]


@pytest.mark.parametrize("form", ["srt", "vtt"])
@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r", "\n\n", "\u2028", "\x85", "\x0b", "\t"])
def test_a_cue_is_one_line(form: str, line_break: str) -> None:
    segments = (Segment(0, 1, f"a{line_break}b"), Segment(1, 2, "c\0d"))
    text = written(form, chunk("", *segments, final=True))
    assert "\r" not in text
    cues = [cue.split("\n") for cue in text.removeprefix("WEBVTT\n\n").rstrip("\n").split("\n\n")]
    assert [cue[-1] for cue in cues] == ["a b", "c\ufffdd"]
    assert all(len(cue) == (3 if form == "srt" else 2) for cue in cues)


def test_a_long_segment_becomes_cues_that_end_with_sentences() -> None:
    sentence = "A small boat came slowly down the river."  # 40 characters: two of them fit, three do not
    found = split(Segment(10.0, 30.0, " ".join([sentence] * 5)))
    assert [cue.text for cue in found] == [f"{sentence} {sentence}"] * 2 + [sentence]
    assert (found[0].start, found[-1].end) == (10.0, 30.0)
    assert [cue.end for cue in found[:-1]] == [cue.start for cue in found[1:]]
    assert found[0].end == pytest.approx(10.0 + 20.0 * 81 / 202)


@pytest.mark.parametrize("text", ["word " * 60, "x" * 200, "好" * 100 + "。" + "吗" * 50 + "？"])
def test_cues_are_short_whatever_the_text(text: str) -> None:
    found = split(Segment(0.0, 10.0, text))
    assert len(found) > 1
    assert max(len(cue.text) for cue in found) <= CUE_CHARACTERS
    assert "".join("".join(cue.text for cue in found).split()) == "".join(text.split())


def test_a_segment_without_text_is_no_cue() -> None:
    assert split(Segment(0.0, 1.0, " \n ")) == []


def test_an_arrow_cannot_be_put_together() -> None:
    assert "-->" not in written("srt", chunk("", Segment(0, 1, "---->>"), final=True)).split("\n")[2]
    assert one_line("  a \t b\r\n") == "a b"


def test_no_speech() -> None:
    silent = chunk("", final=True, language="")
    assert written("vtt", silent) == "WEBVTT\n\n"
    assert written("srt", silent) == ""


def test_join() -> None:
    whole = join(TALK, 0.5)
    assert isinstance(whole, Transcript)
    assert (whole.text, whole.language, whole.finish_reason) == (
        " Good morning. Tom & <Ann> --> all.", "en", "stop",
    )  # fmt: skip
    assert len(whole.segments) == 2
    assert (whole.first_text_s, whole.total_s) == (0.5, 2.5)
    blank = join([chunk(" "), chunk("", index=1, final=True, language="")], 0.5)
    assert (blank.first_text_s, blank.language) == (None, "en")
