"""An encoder whose passes treat places differently encodes one window a pass, and says so."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.asr.encoder_service import AsrEncoderStage
from backends.asr.encoders import load_encoder
from backends.asr.places import same_in_every_place
from backends.asr.settings import AsrEncoderSettings
from backends.models.qwen3_asr_encoder import Qwen3ASREncoder
from tests.unit.tiny_asr import byte_tokenizer, tiny_moss_transcribe, tiny_qwen3_asr, tiny_whisper

MAKERS = {"whisper": tiny_whisper, "qwen3_asr": tiny_qwen3_asr, "moss_transcribe": tiny_moss_transcribe}


class Context:
    name, log = "asr_encoder", logging.getLogger("test")


@pytest.fixture(scope="module", params=list(MAKERS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    made: Path = tmp_path_factory.mktemp(request.param)
    MAKERS[request.param](made).save_pretrained(made)
    byte_tokenizer(made)
    return made


def test_every_shape_of_every_encoder_is_looked_at(folder: Path) -> None:
    encoder = load_encoder(folder, torch.device("cpu"), torch.float32, 3, dummy=False)
    seen: list[tuple[int, int]] = []
    encode = encoder.encode

    def note(windows: Any) -> Any:
        seen.append((len(windows), windows[0][0].shape[2]))
        return encode(windows)

    encoder.encode = note  # type: ignore[method-assign]
    assert same_in_every_place(encoder, 3)
    assert seen == [(3, frames) for frames in encoder.lengths]


@pytest.mark.parametrize("differs", [True, False])
def test_places_that_differ_are_not_used(
    differs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_qwen3_asr(tmp_path).save_pretrained(tmp_path)
    byte_tokenizer(tmp_path)
    compute = Qwen3ASREncoder._compute

    def uneven(self: Qwen3ASREncoder, mels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        states = compute(self, mels, lengths)
        if mels.shape[2] == self.window * self.chunk:  # of one shape, one place is not like the others
            states[2:3] *= 1 + 1e-6
        return states

    if differs:
        monkeypatch.setattr(Qwen3ASREncoder, "_compute", uneven)
    context: Any = Context()
    settings = AsrEncoderSettings(checkpoint=str(tmp_path), device="cpu", num_threads=1, nice=0, pass_clips=4)
    with caplog.at_level(logging.WARNING):
        stage = AsrEncoderStage(settings, context)
    try:
        encoder: Any = stage._worker.encoder
        assert encoder._encoder.pass_windows == (1 if differs else 4)
        assert ("one a pass" in caplog.text) == differs
        mels = np.random.default_rng(3).standard_normal((1, encoder.mels, encoder.lengths[-1]), dtype=np.float32)
        window = (mels, np.array([mels.shape[2]], np.int32))
        with torch.inference_mode():
            together = encoder.encode([window] * 4)
        assert all(np.array_equal(together[0], states) for states in together)
    finally:
        stage.close()
