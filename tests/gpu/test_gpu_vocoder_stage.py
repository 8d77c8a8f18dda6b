"""``tts_vocoder`` on a GPU, without a server: from the parameters to the answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from backends.vocoder.service import VocoderStage
from backends.vocoder.settings import VocoderSettings
from backends.vocoder.streaming import StreamingVocoder
from tests.vocoder_requests import Context, Request, engine, idle, random_codes, send

pytest.importorskip("triton", reason="triton is not installed")
pytestmark = pytest.mark.gpu


class Broken:
    """A graph whose replay fails."""

    def replay(self) -> None:
        raise RuntimeError("replay failed on purpose")


def stream(vocoder: StreamingVocoder, codes: Tensor, sizes: list[int]) -> Tensor:
    slot = vocoder.open()
    made = [vocoder.decode([slot], part[None])[0] for part in codes.split(sizes)]
    vocoder.close(slot)
    return torch.cat(made)


def test_the_stage_speaks_and_survives_a_failed_replay() -> None:
    """From the parameters to the answers: chunks of several streams, one step whose graph breaks, and what follows."""
    context: Any = Context()
    settings = VocoderSettings(device="cuda", load_format="dummy", slots=20, cuda_graph_frames=8)
    stage = VocoderStage(settings, context)
    vocoder = engine(stage)
    assert vocoder.graphs >= 8 and vocoder.max_step_frames == 8 and vocoder.step_streams == 16
    codes = {number: random_codes(12, number) for number in range(1, 5)}
    first = [Request(number, 0, part[:4]) for number, part in codes.items()]
    send(stage, first)
    graphs = vocoder._graphs._graphs
    graphs.update({(b, 5): (Broken(), *graphs[b, 5][1:]) for b in vocoder.buckets})  # type: ignore[misc]
    second = [Request(number, 1, part[4 : 9 if number < 3 else 10]) for number, part in codes.items()]
    send(stage, second)
    for request in second[:2]:
        assert request.error == "INTERNAL vocoder step failed: replay failed on purpose"
        assert request.answer["final"][0] and not len(request.answer["audio"])
    third = [Request(number, 2, codes[number][10:], final=True) for number in (3, 4)]
    send(stage, [*third, fresh := Request(9, 0, codes[1], final=True)])
    assert idle(stage) and vocoder.graphs == 0 and stage.metrics.graph_failures.value == 1
    for number, requests in ((3, [first[2], second[2], third[0]]), (4, [first[3], second[3], third[1]]), (9, [fresh])):
        assert not any(request.error for request in requests)
        audio = torch.cat([torch.from_numpy(request.answer["audio"]) for request in requests])
        own = codes.get(number, codes[1])
        assert torch.equal(audio, stream(vocoder, own, [4, 6, 2] if len(requests) > 1 else [12])), number
    stage.close()
    assert sorted(context.cancelled) == [1, 2]
