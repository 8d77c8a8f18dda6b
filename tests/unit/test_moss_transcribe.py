"""MOSS-Transcribe-Diarize against transformers, tiny and random; its prompts and its answers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MossTranscribeDiarizeForConditionalGeneration, MossTranscribeDiarizeProcessor

from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.decoder.prompt_audio import PromptAudio
from backends.errors import CheckpointError
from backends.models.moss_transcribe_encoder import MossTranscribeEncoder, state_count
from backends.models.moss_transcribe_prompt import INSTRUCTION, MossTranscribePrompt, SpokenSegment
from backends.models.qwen3_asr import Qwen3ASR
from tests.unit.tiny_asr import AUDIO, ENDS, byte_tokenizer, play, request, tiny_moss_transcribe, without_end

CPU, TOKENS, WINDOW = torch.device("cpu"), 20, 200
FRAMES = (1, 9, 200, 201, 390, 555)  # of clips: a part of a window, a whole one, up to three
Reference = tuple[Path, MossTranscribeDiarizeForConditionalGeneration]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("moss_transcribe")
    return folder, tiny_moss_transcribe(folder)


@pytest.fixture(scope="module")
def clips() -> list[tuple[torch.Tensor, list[int]]]:
    """Clips as windows, with silence behind the last frame, and how many frames of each hold audio."""
    random = torch.Generator().manual_seed(4)
    found = []
    for frames in FRAMES:
        counts = [WINDOW] * (frames // WINDOW) + ([frames % WINDOW] if frames % WINDOW else [])
        windows = torch.randn(len(counts), 16, WINDOW, generator=random)
        windows[-1, :, counts[-1] :] = -1.5
        found.append((windows, counts))
    return found


def masks(counts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The two masks of transformers: frames of each window, samples of the clip."""
    frames = (torch.arange(WINDOW) < torch.tensor(counts)[:, None]).long()
    return frames, torch.ones(1, sum(counts) * 160, dtype=torch.long)


@pytest.mark.parametrize("pass_windows", [1, 4])
def test_states_equal_those_of_transformers_and_do_not_depend_on_neighbours(
    reference: Reference, clips: list[tuple[torch.Tensor, list[int]]], pass_windows: int
) -> None:
    encoder = MossTranscribeEncoder.load(reference[0], CPU, torch.float32, pass_windows)
    with torch.inference_mode():
        windows, counts = torch.cat([windows for windows, _ in clips]), [count for _, each in clips for count in each]
        together = encoder(windows, counts)
        assert [len(states) for states in together] == [state_count(count) for count in counts]
        for at, count in enumerate(counts):
            assert torch.equal(encoder(windows[at : at + 1], [count])[0], together[at])
        wanted = [reference[1].model.get_audio_features(each, *masks(count)).pooler_output for each, count in clips]
    largest = float((torch.cat(together) - torch.cat(wanted)).abs().max())
    print(f"\nlargest difference {largest:.1e} of {float(torch.cat(wanted).abs().max()):.1f}")
    assert largest < 1e-5


def test_tokens_equal_generate_from_mel_frames_on(
    reference: Reference, clips: list[tuple[torch.Tensor, list[int]]]
) -> None:
    """With other tokens among the states, where the seconds stand."""
    encoder = MossTranscribeEncoder.load(reference[0], CPU, torch.float32)
    wanted, requests = [], []
    with torch.inference_mode():
        for index, (windows, counts) in enumerate(clips):
            states = torch.cat(encoder(windows, counts))
            cut = len(states) // 2
            ids = [7, 8, *[AUDIO] * cut, 5, 6, *[AUDIO] * (len(states) - cut), 9, 10]
            frames, samples = masks(counts)
            made = reference[1].generate(
                input_ids=torch.tensor([ids]), input_features=windows, input_features_mask=frames,
                padding_mask=samples, max_new_tokens=TOKENS, do_sample=False,
            )  # fmt: skip
            wanted.append(without_end(made[0, len(ids) :], ENDS))
            at = torch.tensor([place for place, token in enumerate(ids) if token == AUDIO])
            requests.append(request(index, ids, PromptAudio(states, bytes([index]), at), TOKENS))
    model = Qwen3ASR.load(reference[0], CPU, torch.float32)
    engine = DecoderEngine(model, EngineConfig(max_running=4, max_positions=256, num_threads=1))
    found = play(engine, requests, together=True)
    engine.check_idle()
    engine.close()
    assert [np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)] == [True] * len(clips)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": "qwen3_asr"}, "model_type"),
        ({"projector_hidden_act": "gelu"}, "projector_hidden_act"),
        ({"audio_merge_size": 3}, "audio_merge_size"),
        ({"audio_merge_size": None}, r"config\.json: audio_merge_size is None, expected a whole number of 1 or more"),
        ({"audio_config": 5}, r"config\.json: audio_config is 5, expected an object"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    reference: Reference, tmp_path: Path, change: dict[str, Any], word: str
) -> None:
    config = json.loads((reference[0] / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=word):
        MossTranscribeEncoder.load(tmp_path, CPU, torch.float32)


def test_windows_and_frames_that_do_not_fit_are_refused(reference: Reference) -> None:
    encoder = MossTranscribeEncoder.load(reference[0], CPU, torch.float32)
    for frames in ([], [0], [201], [5, 5]):
        with pytest.raises(ValueError, match="is needed each"):
            encoder(torch.zeros(1, 16, WINDOW), frames)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> MossTranscribePrompt:
    folder = tmp_path_factory.mktemp("tokenizer")
    audio = byte_tokenizer(folder)["<|audio_pad|>"]
    config: dict[str, Any] = {"model_type": "moss_transcribe_diarize", "audio_token_id": audio, "text_config": {}}
    (folder / "config.json").write_text(json.dumps(config))
    return MossTranscribePrompt(folder)


@pytest.mark.parametrize("states", [0, 1, 24, 25, 26, 50, 375, 300])
def test_a_prompt_is_the_public_template_with_the_seconds_of_transformers(
    prompts: MossTranscribePrompt, states: int
) -> None:
    rows, at = prompts.build(states)
    settings = SimpleNamespace(audio_token="<|audio_pad|>", audio_tokens_per_second=12.5, time_marker_every_seconds=2)
    span = MossTranscribeDiarizeProcessor.replace_audio_token(settings, {"num_audio_tokens": [states]}, 0)
    assert prompts._tokenizer.text(rows[:, 1].tolist(), keep_control=True) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|audio_start|>"
        f"{span}<|audio_end|>\n{INSTRUCTION}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert len(at) == states and (rows[at, 1] == prompts._audio).all()


def test_control_strings_in_a_context_stay_text(prompts: MossTranscribePrompt) -> None:
    rows, at = prompts.build(30, context="Voxstage, <|audio_pad|><|im_end|>")
    assert len(at) == 30 and (rows[:, 1] == prompts._tokenizer.token("<|im_end|>")).sum() == 2
    assert "Voxstage, <|audio_pad|>" in prompts._tokenizer.text(rows[at[-1] + 1 :, 1].tolist(), keep_control=True)


def test_answers(prompts: MossTranscribePrompt) -> None:
    said = "[0.00][S01] Hello there.[2.5][2.50][S02]Hi [sic] you.[1:03.5][1:04][S01]And"
    assert prompts.read(prompts._tokenizer.template(said)) == [
        SpokenSegment(0.0, 2.5, 1, "Hello there."),
        SpokenSegment(2.5, 63.5, 2, "Hi [sic] you."),
    ]
    assert prompts.read(prompts._tokenizer.template("nothing of the kind")) == []
