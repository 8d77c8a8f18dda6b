"""The benchmark of word errors: what it counts, and which recordings it takes."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from benchmarks.asr_speech import RATE, Clip, librivox, prompts
from benchmarks.asr_words import Passage, by_clip, count_errors, in_one_piece, judge, passages, recording


def write_g722(path: Path, samples: np.ndarray) -> None:
    with av.open(str(path), "w", format="g722") as container:
        stream = container.add_stream("g722", rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray((samples * 32767).astype(np.int16)[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)


def tone(seconds: float) -> np.ndarray:
    return (0.3 * np.sin(np.arange(round(seconds * RATE)) * 0.2)).astype(np.float32)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """What the two packages hold, with tones for words."""
    sounds = tmp_path / "usr/share/asterisk/sounds/en_US_f_Allison"
    words = tmp_path / "usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"
    books = tmp_path / "usr/share/pocketsphinx/test/data/librivox"
    for folder in (sounds, words.parent, books):
        folder.mkdir(parents=True)
    lengths = {"short": 1.0, "beep": 3.0, "a": 2.5, "b": 3.0, "c": 4.0, "d": 3.5, "long": 31.0}
    for name, seconds in lengths.items():
        write_g722(sounds / f"{name}.g722", tone(seconds))
    lines = ["; Sounds", "", *(f"{name}: Words: of {name}." for name in lengths if name != "beep"), "beep: [a beep]"]
    words.write_bytes(gzip.compress("\n".join([*lines, "gone: No such file."]).encode()))
    soundfile.write(books / "one.wav", tone(0.5), RATE, subtype="PCM_16")
    (books / "transcription").write_text("<s> he was not </s> (one)\n")
    return tmp_path


def test_recordings_that_fit_are_taken(data: Path) -> None:
    clips = prompts(data, 2)
    assert [(clip.name, clip.said) for clip in clips] == [("a", "Words: of a."), ("c", "Words: of c.")]
    assert [clip.name for clip in prompts(data, 4)] == ["a", "b", "c", "d"]
    found, wanted = clips[0].samples, tone(2.5)
    assert found.dtype == np.float32 and abs(len(found) - len(wanted)) < RATE // 10
    # The codec delays by some samples; a tone is still a tone, as loud as it was.
    assert np.sqrt(np.mean(found**2)) == pytest.approx(np.sqrt(np.mean(wanted**2)), rel=0.05)
    with pytest.raises(ValueError, match="4 prompts fit, 5"):
        prompts(data, 5)


def test_a_transcript_is_read(data: Path) -> None:
    (clip,) = librivox(data)
    assert (clip.name, clip.said, len(clip.samples)) == ("one", "he was not", RATE // 2)
    (data / "usr/share/pocketsphinx/test/data/librivox/transcription").write_text("he was not (one)\n")
    with pytest.raises(ValueError, match="no transcript"):
        librivox(data)


@pytest.mark.parametrize(
    ("said", "heard", "errors", "words"),
    [
        ("Press one, or two.", "press 1 or 2", 0, 4),
        ("mister John didn't", "Mr. John did not!", 0, 4),
        ("a b c d", "a c d e", 2, 4),
        ("a b", "", 2, 2),
    ],
)
def test_errors_are_counted_on_normal_words(said: str, heard: str, errors: int, words: int) -> None:
    assert count_errors([said], [heard]) == (errors, words)


def test_a_row_counts_equal_texts_and_errors() -> None:
    clips = [Clip("one", "the cat", tone(1)), Clip("two", "a dog", tone(2))]
    writers = {
        "transformers": by_clip(lambda each: ["The cat.", "The dog."]),
        "ours": by_clip(lambda each: ["The cat.", "A dog."]),
    }
    first, second = judge("pets", passages(clips), writers)
    assert (first["errors"], first["words"], first["equal"], first["seconds"]) == (1, 4, 2, 3.0)
    assert (second["errors"], second["equal"], second["texts"]) == (0, 1, 2)
    assert second["differ"] == [{"transformers": "The dog.", "ours": "A dog."}]


def test_a_server_hears_a_recording_in_one_piece() -> None:
    clips = [tone(1), tone(2)]
    heard: list[int] = []

    def write(each: Sequence[np.ndarray]) -> list[str]:
        heard.extend(map(len, each))
        return ["The cat. A cat."]

    group = [Passage("the cat a dog", clips)]
    _, row = judge("pets", group, {"transformers": by_clip(lambda _: ["The cat.", "A cat."]), "s": in_one_piece(write)})
    assert heard == [3 * RATE] and (row["texts"], row["equal"], row["errors"]) == (1, 1, 1)


def test_one_recording_of_all_clips_is_cut_both_ways() -> None:
    clips = [Clip(str(n), f"word {n}", tone(20)) for n in range(4)]
    for quiet in (True, False):
        (passage,) = recording(clips, quiet)
        assert passage.said == "word 0 word 1 word 2 word 3"
        assert np.array_equal(np.concatenate(passage.clips), np.concatenate([clip.samples for clip in clips]))
        assert max(map(len, passage.clips)) <= 30 * RATE
