"""The three stages of ``asr`` joined in process, for each architecture: text as transformers generates it from the same
audio, alone and together, short and in windows. Tiny checkpoints, random but for one thing: they write letters.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from backends.asr.decoder_service import AsrDecoderStage
from backends.asr.encoder_service import AsrEncoderStage
from backends.asr.log_mel import RATE
from backends.asr.prompt_service import AsrPromptStage
from backends.asr.settings import AsrDecoderSettings, AsrEncoderSettings, AsrPromptSettings
from backends.decoder.engine import DecoderEngine
from backends.errors import VoxstageError
from tests.server.dummies import wait_until
from tests.unit.tiny_asr import ENDS, byte_tokenizer, tiny_moss_transcribe, tiny_qwen3_asr, tiny_whisper, without_end

TOKENS, LETTERS = 12, 256
MAKERS: dict[str, Callable[[Path], Any]] = {
    "whisper": tiny_whisper, "qwen3_asr": tiny_qwen3_asr, "moss_transcribe": tiny_moss_transcribe,
}  # fmt: skip
Outputs = dict[str, Any]


class Request:
    """A request between two stages: who gets its replies, and whether its client has gone."""

    def __init__(
        self, tensors: Outputs, reply: Callable[[Outputs], None], fail: Callable[[VoxstageError], None]
    ) -> None:
        self._tensors, self._reply, self._fail = tensors, reply, fail
        self.ended, self.gone = threading.Event(), False

    def tensor(self, name: str) -> Any:
        return self._tensors.get(name)

    def parameters(self) -> Outputs:
        return {}

    def release(self) -> None:
        self._tensors = {}

    def cancelled(self) -> bool:
        return self.gone

    def reply(self, outputs: Outputs, final: bool = False) -> None:
        assert not self.ended.is_set()
        self._reply(outputs)
        if final:
            self.ended.set()

    def fail(self, error: VoxstageError) -> None:
        self._fail(error)
        self.ended.set()

    def finish(self) -> None:
        self.ended.set()


class Stages:
    """All stages of one checkpoint; each is the context of the others."""

    log = logging.getLogger("test")

    def __init__(self, folder: Path, name: str = "asr") -> None:
        context: Any = self
        common: dict[str, Any] = {"checkpoint": str(folder), "device": "cpu", "num_threads": 1, "nice": 0}
        self.name = name
        self.encoder = AsrEncoderStage(AsrEncoderSettings(**common, pass_clips=2), context)
        self.decoder = AsrDecoderStage(AsrDecoderSettings(**common, max_running=4, check_integrity=True), context)
        self.prompt = AsrPromptStage(
            AsrPromptSettings(checkpoint=str(folder), nice=0, windows_per_request=2, max_window_seconds=5), context
        )

    def close(self) -> None:
        for stage in (self.prompt, self.decoder, self.encoder):
            stage.close()

    def infer(self, model: str, inputs: Outputs, outputs: list[str]) -> Outputs:
        answers: queue.Queue[Any] = queue.Queue()
        self._execute(self.encoder, Request(inputs, answers.put, answers.put))
        found = answers.get(timeout=60)
        if isinstance(found, VoxstageError):
            raise found
        assert isinstance(found, dict)
        return found

    def call(self, model: str, inputs: Outputs) -> None:
        assert model == "asr_prompt"
        self._execute(self.prompt, Request(inputs, unexpected, unexpected))

    def start(self, **tensors: Any) -> queue.Queue[Any]:
        """Where the responses to a request will be."""
        answers: queue.Queue[Any] = queue.Queue()

        def window(outputs: Outputs) -> None:
            self._execute(self.decoder, Request(outputs, answers.put, answers.put))

        self._execute(self.prompt, Request(tensors, window, answers.put))
        return answers

    @staticmethod
    def _execute(stage: Any, request: Any) -> None:
        try:
            stage.execute(request)
        except VoxstageError as error:
            request.fail(error)


def unexpected(answer: object) -> None:
    raise AssertionError(answer)


def finished(answers: queue.Queue[Any]) -> tuple[str, Outputs]:
    """(text, last response)."""
    text = ""
    while True:
        found = answers.get(timeout=60)
        assert isinstance(found, dict), found
        text += found["text"][0].decode()
        if found["final"][0]:
            return text, found


def one(value: Any, kind: Any) -> Any:
    return np.array([value], dtype=kind)


def fields(samples: np.ndarray[Any, Any], **more: Any) -> Outputs:
    return {"audio": samples, "sample_rate": one(RATE, np.int32), "max_tokens": one(TOKENS, np.int32), **more}


@pytest.fixture(scope="module", params=list(MAKERS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any, Stages]]:
    """(architecture, the model of transformers, the stages)."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp(request.param)
    model = MAKERS[request.param](folder)
    with torch.no_grad():
        table = model.get_output_embeddings().weight
        table[LETTERS:] *= 0.01  # tokens that are no letters lose every vote
    model.save_pretrained(folder)
    byte_tokenizer(folder)
    stages = Stages(folder)
    yield request.param, model, stages
    assert isinstance(stages.decoder.engine, DecoderEngine)
    stages.decoder.engine.check_idle()
    # The last word from the decoder to the prompt stage follows the last text.
    assert wait_until(lambda: stages.prompt.metrics.inside.value == 0 and not stages.decoder._transcriptions)
    stages.close()


def noise(seconds: float, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(0, 0.1, int(seconds * RATE)).astype(np.float32)


def reference(kind: str, model: Any, stages: Stages, samples: np.ndarray[Any, Any]) -> str:
    """What transformers writes about a clip."""
    family: Any = stages.decoder.family
    features, frames = (torch.from_numpy(each) for each in family.features(samples))
    with torch.inference_mode():
        if kind == "whisper":
            made = model.generate(features, max_new_tokens=TOKENS, do_sample=False)[0]
            tokens: Tensor = made
            ends = [model.generation_config.eos_token_id]
        else:
            states = len(stages.infer("", {"features": features.numpy(), "frames": frames.numpy()}, [])["states"])
            rows, _ = family.build(states, "en" if kind == "qwen3_asr" else "", "")
            if kind == "qwen3_asr":
                features = torch.nn.functional.pad(features, (0, -features.shape[2] % 100))
            mask = (torch.arange(features.shape[2]) < frames[:, None]).long()
            more = {"padding_mask": torch.ones(1, len(samples), dtype=torch.long)} if kind == "moss_transcribe" else {}
            ids = torch.from_numpy(rows[:, 1]).long()[None]
            tokens = model.generate(
                input_ids=ids, input_features=features, input_features_mask=mask, max_new_tokens=TOKENS,
                do_sample=False, **more,
            )[0, ids.shape[1] :]  # fmt: skip
            ends = ENDS
    return (
        str(family.prompts.text(list(without_end(tokens, ends))))
        if kind != "qwen3_asr"
        else str(family.prompts.read(list(without_end(tokens, ends)), "en")[1])
    )


def test_text_is_that_of_transformers_alone_and_together(made: tuple[str, Any, Stages]) -> None:
    kind, model, stages = made
    clips = [noise(seconds, seed) for seed, seconds in enumerate((0.7, 1.0, 1.5, 1.9, 2.0, 0.2))]
    more = {"language": one(b"en", object)} if kind == "qwen3_asr" else {}
    alone = [finished(stages.start(**fields(clip, **more))) for clip in clips]
    wanted = [reference(kind, model, stages, clip) for clip in clips]
    assert [text for text, _ in alone] == wanted
    assert len({text for text, _ in alone}) > 1, "the text depends on the audio"
    together = [finished(answers)[0] for answers in [stages.start(**fields(clip, **more)) for clip in clips * 3]]
    assert together == wanted * 3


def test_long_audio_is_its_windows_in_order(made: tuple[str, Any, Stages]) -> None:
    kind, _, stages = made
    more = {"language": one(b"en", object)} if kind == "qwen3_asr" else {}
    samples = noise(17.0, 9)
    windows = stages.prompt.cut(samples)
    assert len(windows) >= 4
    parts = [finished(stages.start(**fields(samples[each.start : each.end], **more)))[0] for each in windows]
    text, last = finished(stages.start(**fields(samples, **more)))
    # Joined with a space where both sides have something, and are of a script with spaces.
    assert text.replace(" ", "") == "".join(parts).replace(" ", "")
    assert last["finish_reason"][0] in (b"length", b"stop") and last["error"][0] == b""


def test_whoever_hangs_up_ends_all_windows(made: tuple[str, Any, Stages]) -> None:
    _, _, stages = made
    before = stages.prompt.metrics.windows.value
    answers, requests = queue.Queue[Any](), list[Request]()

    def window(outputs: Outputs) -> None:
        request = Request(outputs, answers.put, answers.put)
        request.gone = len(requests) >= 2  # as in an ensemble: only requests that come later tell
        requests.append(request)
        stages._execute(stages.decoder, request)

    first = Request(fields(noise(30.0, 3)), window, answers.put)
    stages._execute(stages.prompt, first)
    assert first.ended.wait(30)
    for request in requests:
        assert request.ended.wait(30)
    assert stages.prompt.metrics.windows.value - before < len(stages.prompt.cut(noise(30.0, 3)))


def test_a_model_that_names_no_language_says_so(made: tuple[str, Any, Stages]) -> None:
    kind, _, stages = made
    _, last = finished(stages.start(**fields(noise(1.0, 1))))
    assert last["detected_language"][0] == (b"en" if kind == "whisper" else b"")
