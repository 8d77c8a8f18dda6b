"""Text on the decoder engine on a GPU: audio in the prompt, and attention over audio, with random weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.asr.encoders import Qwen3ASRStates
from backends.asr.places import same_in_every_place
from backends.decoder.chunks import ChunkSchedule
from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.decoder.prompt_audio import PromptAudio
from backends.decoder.request import DecodeRequest
from backends.decoder.sampler import SamplingParams
from backends.encoder.metrics import EncoderMetrics
from backends.models.qwen3_asr import Qwen3ASR
from backends.models.qwen3_asr_encoder import Qwen3ASREncoder
from backends.models.text_rows import text_rows
from backends.models.whisper import Whisper
from backends.models.whisper_encoder import WhisperEncoder
from tests.gpu.no_sync import forbid_sync
from tests.unit.decoding import Listener

pytestmark = pytest.mark.gpu
DEVICE, REQUESTS, SLOTS, WORDS, AUDIO = "cuda:0", 60, 32, 20_000, 19_990
Model = Qwen3ASR | Whisper
PUBLISHED = Path(__file__).resolve().parents[2] / "benchmarks/configs/qwen3_asr_1.7b"
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_asr": {
        "model_type": "qwen3_asr", "eos_token_id": [19_998, 19_999], "audio_token_id": AUDIO,
        "text_config": {
            "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 64, "vocab_size": WORDS, "max_position_embeddings": 1024,
            "rms_norm_eps": 1e-6, "initializer_range": 0.15,
        },
        "audio_config": {
            "num_mel_bins": 128, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 512,
            "d_model": 256, "output_dim": 256, "downsample_hidden_size": 64, "n_window": 50, "n_window_infer": 800,
            "max_position_embeddings": 13,
        },
    },
    "whisper": {
        "model_type": "whisper", "eos_token_id": 19_999, "decoder_start_token_id": 19_990, "num_mel_bins": 80,
        "vocab_size": WORDS - 2, "d_model": 256, "encoder_layers": 2, "encoder_attention_heads": 4,
        "encoder_ffn_dim": 512, "decoder_layers": 3, "decoder_attention_heads": 4, "decoder_ffn_dim": 512,
        "max_source_positions": 1500, "max_target_positions": 448, "suppress_tokens": [1, 2, 3],
        "begin_suppress_tokens": [220],
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp(request.param)
    (folder / "config.json").write_text(json.dumps(CONFIGS[request.param]))
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    kind = Whisper if json.loads((folder / "config.json").read_text())["model_type"] == "whisper" else Qwen3ASR
    return kind.dummy(folder, torch.device(DEVICE), torch.bfloat16)


def make(model: Model, stream: int) -> tuple[Listener, DecodeRequest]:
    """Every clip is heard twice, so that the prefix cache has something to find; every third request is greedy."""
    generator = torch.Generator().manual_seed(stream // 2)
    words = torch.randint(
        4, 19_000, (int(torch.randint(2, 60, (1,), generator=generator)),), generator=generator
    ).tolist()
    name = (stream // 2).to_bytes(8, "little")
    if model.audio.cross is not None:
        audio = PromptAudio(torch.randn(1500, model.audio.width, generator=generator), name)
    else:
        count = int(torch.randint(5, 150, (1,), generator=generator))
        audio = PromptAudio(torch.randn(count, 256, generator=generator), name, torch.arange(2, 2 + count))
        words = [*words[:2], *[AUDIO] * count, *words[2:], 7]
    sampling = SamplingParams(stream, 0.0 if stream % 3 == 0 else 0.8, 0.9, 50 * (stream % 2), 1.0)
    rows, listener = torch.from_numpy(text_rows(words)).long(), Listener()
    return listener, DecodeRequest(
        stream + 1, rows, sampling, 5 + stream % 20, ChunkSchedule(1, 4, 1.0), listener, audio
    )


def run(engine: DecoderEngine, model: Model, streams: Sequence[int], at_once: int) -> list[np.ndarray[Any, Any]]:
    listeners: list[Listener] = []
    for place, stream in enumerate(streams):
        listener, request = make(model, stream)
        if place >= at_once:
            assert listeners[place - at_once].done.wait(120)
        engine.submit(request)
        listeners.append(listener)
    return [listener.codes() for listener in listeners]


def config(**switches: Any) -> EngineConfig:
    return EngineConfig(
        **{"max_running": SLOTS, "max_waiting": 1000, "max_positions": 320, "prefill_rows": 64, "prefill_pieces": 4}
        | switches
    )


def test_no_switch_and_no_load_changes_a_token(model: Model) -> None:
    plain = DecoderEngine(model, config(lookahead=False, cuda_graph=False, prefix_cache=False))
    reference = run(plain, model, range(REQUESTS), 1)
    plain.close()
    assert len({codes.tobytes() for codes in reference}) > REQUESTS // 2
    for switches in ({}, {"lookahead": False}, {"cuda_graph": False}, {"kv_pages": 24}):
        engine = DecoderEngine(model, config(**switches))
        assert (engine.graphs > 0) == switches.get("cuda_graph", True)
        for at_once in (SLOTS, 5):  # cold, then warm
            codes = run(engine, model, range(REQUESTS), at_once)
            same = [np.array_equal(a, b) for a, b in zip(codes, reference, strict=True)]
            assert all(same), f"{switches}: {same.count(False)} of {REQUESTS} differ at {at_once} at once"
            engine.check_idle()
        assert engine.metrics.prefix_hits.value > 0
        engine.close()


def test_a_step_does_not_synchronise(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    for graph in (False, True):
        engine = DecoderEngine(model, config(cuda_graph=graph))
        faults = forbid_sync(engine, monkeypatch)
        run(engine, model, range(12), 12)
        assert not faults, faults
        engine.close()


def test_a_clip_among_others_has_the_states_it_has_alone(folder: Path) -> None:
    device, random = torch.device(DEVICE), torch.Generator().manual_seed(0)
    with torch.inference_mode():
        if folder.name.startswith("whisper"):
            encoder = WhisperEncoder.dummy(folder, device, torch.bfloat16, pass_clips=8)
            mels = torch.randn(11, 80, 3000, generator=random)
            together = encoder(mels)
            assert all(torch.equal(encoder(mels[at : at + 1])[0], together[at]) for at in range(len(mels)))
        else:
            packed = Qwen3ASREncoder.dummy(folder, device, torch.bfloat16, pass_windows=8)
            clips = [torch.randn(128, 37 * (at + 1), generator=random) for at in range(40)]
            states = packed(clips)
            assert all(torch.equal(packed([clip])[0], states[at]) for at, clip in enumerate(clips))
            metrics = EncoderMetrics()
            packed.capture(metrics, 0)
            assert packed.graphs is not None and len(packed.graphs) == 8 and not metrics.graph_failures.value
            assert all(torch.equal(a, b) for a, b in zip(packed(clips), states, strict=True))
            assert all(torch.equal(packed([clip])[0], states[at]) for at, clip in enumerate(clips))
            assert metrics.graph_replays.value > len(clips)


@pytest.mark.parametrize("windows", [4, 16])
def test_every_place_of_a_pass_gives_the_same_bits_at_a_published_size(windows: int) -> None:
    """Libraries choose kernels by size: those of a small model say nothing about this one."""
    with torch.inference_mode():
        encoder = Qwen3ASREncoder.dummy(PUBLISHED, torch.device(DEVICE), torch.bfloat16, pass_windows=windows)
        assert same_in_every_place(Qwen3ASRStates(encoder), windows)


def test_a_failed_replay_of_the_encoder_falls_back_to_the_same_states(folder: Path) -> None:
    if folder.name.startswith("whisper"):
        pytest.skip("the encoder of Whisper has no graphs: a pass is few and large kernels")
    packed, metrics = (
        Qwen3ASREncoder.dummy(folder, torch.device(DEVICE), torch.bfloat16, pass_windows=4),
        EncoderMetrics(),
    )
    clips = [torch.randn(128, 300 + at, generator=torch.Generator().manual_seed(at)) for at in range(6)]
    with torch.inference_mode():
        expected = packed(clips)
        packed.capture(metrics, 1 << 60)
        assert packed.graphs is not None and not len(packed.graphs), "nothing is captured where memory is short"
        packed.capture(metrics, 0)

        class Broken:
            def replay(self) -> None:
                raise RuntimeError("replay failed on purpose")

        entries = packed.graphs._graphs
        packed.graphs._graphs = {key: (Broken(), *rest) for key, (_, *rest) in entries.items()}  # type: ignore[misc]
        assert all(torch.equal(a, b) for a, b in zip(packed(clips), expected, strict=True))
    assert metrics.graph_failures.value == 1 and not len(packed.graphs)
