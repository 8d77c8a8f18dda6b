"""``tts_vocoder`` without a server: what fails, whom it harms, and what comes after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from backends.settings import home
from backends.vocoder.service import VocoderStage
from backends.vocoder.settings import VocoderSettings
from tests.vocoder_requests import HOP, Context, Request, engine, idle, random_codes, send

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def codec() -> MossAudioTokenizer:
    return MossAudioTokenizer.load(home() / "checkpoints/voice/codec")


@pytest.fixture
def context() -> Context:
    return Context()


@pytest.fixture
def stage(context: Context) -> Iterator[VocoderStage]:
    server: Any = context
    stage = VocoderStage(VocoderSettings(num_threads=1, step_streams=4, slots=6, device="cpu"), server)
    yield stage
    stage.close()


def test_a_step_that_breaks_ends_its_own_streams(
    stage: VocoderStage, context: Context, codec: MossAudioTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = engine(stage).step

    def breaks_on_three(codes: torch.Tensor, slots: torch.Tensor, reset: torch.Tensor) -> torch.Tensor:
        if codes.shape[1] == 3:
            raise RuntimeError("no memory")
        return step(codes, slots, reset)

    monkeypatch.setattr(stage.vocoder, "step", breaks_on_three)
    codes = {stream: random_codes(9, stream) for stream in range(1, 5)}
    first = [Request(stream, 0, codes[stream][:4]) for stream in codes]
    send(stage, first)
    assert all(request.error == "" and len(request.answer["audio"]) == 4 * HOP for request in first)
    second = [Request(stream, 1, codes[stream][4 : 7 if stream < 3 else 8]) for stream in codes]
    send(stage, second)
    for request in second[:2]:
        assert request.error == "INTERNAL vocoder step failed: no memory"
        assert request.answer["final"][0] and len(request.answer["audio"]) == 0
        assert request.answer["finish_reason"][0] in (b"error", "error")
    third = [Request(stream, 2, codes[stream][8:], final=True) for stream in (3, 4)]
    late = Request(1, 2, codes[1][7:])
    send(stage, [*third, late])
    for stream, requests in ((3, (first[2], second[2], third[0])), (4, (first[3], second[3], third[1]))):
        audio = np.concatenate([request.answer["audio"] for request in requests])
        assert torch.equal(torch.from_numpy(audio), codec.decode(codes[stream])), stream
    assert late.done.wait(10) and not late.answers, "a stream that has ended was answered again"
    assert idle(stage)
    stage._hangups.close()
    assert sorted(context.cancelled) == [1, 2]
    assert stage.metrics.failed.value == 2
    again = Request(7, 0, codes[1][:5], final=True)
    send(stage, [again])
    assert torch.equal(torch.from_numpy(again.answer["audio"]), codec.decode(codes[1][:5]))


@pytest.mark.parametrize("bad", ["code", "shape", "empty", "not a number"])
def test_one_bad_item_leaves_its_peers_alone(
    stage: VocoderStage, codec: MossAudioTokenizer, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    codes = random_codes(5, 11)
    spoilt = {"code": codes.clone(), "shape": codes[:, :11], "empty": codes[:0], "not a number": codes}[bad]
    if bad == "code":
        spoilt[2, 3] = 1024
    if bad == "not a number":
        step = engine(stage).step

        def noise(codes: torch.Tensor, slots: torch.Tensor, reset: torch.Tensor) -> torch.Tensor:
            audio = step(codes, slots, reset)
            audio[1 if codes.shape[1] == 5 else 0, 7] = float("nan")
            return audio

        monkeypatch.setattr(stage.vocoder, "step", noise)
    form = "s16" if bad == "not a number" else "f32"
    requests = [Request(1, 0, codes, True), Request(2, 0, spoilt, True, form), Request(3, 0, codes, True)]
    send(stage, requests)
    want = codec.decode(codes)
    for peer in (requests[0], requests[2]):
        assert peer.error == "" and torch.equal(torch.from_numpy(peer.answer["audio"]), want)
    expected = {
        "code": "INVALID_ARG codes: 1024 is above 1023, the largest code",
        "shape": "INVALID_ARG codes: shape [5, 11] is not [frames, 12]",
        "empty": "",
        "not a number": "INTERNAL audio: a sample is not a finite number",
    }
    assert requests[1].error == expected[bad]
    assert len(requests[1].answer["audio"]) == 0 and requests[1].answer["final"][0]
    assert requests[0].answer["channels"][0] == 1 and requests[0].answer["sample_rate"][0] == 24000
    assert idle(stage)


def test_an_answer_that_cannot_be_sent_ends_one_stream(stage: VocoderStage, codec: MossAudioTokenizer) -> None:
    class Gone(Request):
        def reply(self, outputs: dict[str, Any], final: bool = False) -> None:
            raise RuntimeError("the pipe is closed")

    codes = random_codes(4, 2)
    gone, peer = Gone(1, 0, codes), Request(2, 0, codes, final=True)
    send(stage, [gone, peer])
    assert torch.equal(torch.from_numpy(peer.answer["audio"]), codec.decode(codes))
    assert gone.done.wait(10), "neither an answer nor the end of the request"
    assert idle(stage)


def test_bfloat16_is_refused_on_a_cpu(context: Context) -> None:
    server: Any = context
    with pytest.raises(Exception, match=r"INVALID_ARG dtype.*bfloat16 is not for a moss-audio-tokenizer codec on cpu"):
        VocoderStage(VocoderSettings(dtype="bfloat16", device="cpu"), server)
