"""The folder of named voices, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from backends.errors import InvalidArgument
from backends.voices.named import load_voices
from tests.unit.test_voice_cache import WANTED, Answers, Encoder, desk


def write(path: Path, seconds: float = 0.5) -> None:
    samples = np.random.default_rng(len(path.stem)).uniform(-0.2, 0.2, int(seconds * 16000))
    soundfile.write(path, samples, 16000)


def test_named_voices_are_the_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("anna.wav", "bob.flac", "Carl-2.OGG"):
        write(tmp_path / name)
    (tmp_path / "bob.txt").write_text(" What Bob says.\n")
    (tmp_path / "README.md").write_text("no voice")
    (tmp_path / "sub.wav").mkdir()
    voices = load_voices(tmp_path, WANTED, "tts_prompt.voices")
    assert {name: voice.text for name, voice in voices.items()} == {
        "Carl-2": None, "anna": None, "bob": "What Bob says."
    }  # fmt: skip
    assert all(len(voice.samples) == 7 * 1920 for voice in voices.values())
    with desk(Encoder(), cache_bytes=0) as asked:
        seen = Answers()
        asked.encode_named(list(voices.values()))
        asked.ask(voices["anna"], seen)
        asked.ask(voices["anna"], seen)
        seen.wait(2)
        assert asked._metrics.misses.value == 3
        asked.ask(voices["anna"], seen)  # kept, in a cache that keeps nothing else
        seen.wait(3)
        assert asked._metrics.hits.value >= 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("broken.wav", b"RIFF....WAVE", "broken.wav: cannot be read as audio: it is damaged, or no wav"),
        ("empty.flac", b"", "empty.flac: is empty"),
        ("text.mp3", b"hello", "text.mp3: begins with the bytes 68 65 6c 6c"),
        ("a b.wav", b"", "a b.wav: a voice's name has letters, digits, - and _ only"),
        ("lost.txt", b"words", "lost.txt: there is no clip of this name beside it"),
        ("good.txt", b" \n", "good.txt: is empty"),
        ("good.txt", b"\xff", "good.txt: 'utf-8' codec"),
        ("good.ogg", b"", "good.wav: another file of this folder has the same name"),
    ],
)
def test_a_broken_voice_stops_the_load_with_its_name(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    write(tmp_path / "good.wav")
    (tmp_path / name).write_bytes(content)
    if name == "good.ogg":
        write(tmp_path / name)
    with pytest.raises(InvalidArgument, match=r"tts_prompt\.voices: ") as caught:
        load_voices(tmp_path, WANTED, "tts_prompt.voices")
    assert words in str(caught.value) and str(tmp_path) in str(caught.value)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="is not a folder; without named voices give an empty one"):
        load_voices(tmp_path / "none", WANTED, "tts_prompt.voices")
