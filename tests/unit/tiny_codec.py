"""A codec of a few hundred kilobytes with random weights, written as a checkpoint is published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from backends.models.named_tensors import RandomTensors


def transformer(inputs: int, outputs: int, layers: int = 1, **more: Any) -> dict[str, Any]:
    """One entry of the config: width 64, one head."""
    sizes = {"input_dimension": inputs, "output_dimension": outputs, "d_model": 64, "num_heads": 1}
    kind = {"module_type": "Transformer", "causal": True, "positional_embedding": "rope"}
    return {**sizes, **kind, "num_layers": layers, "dim_feedforward": 128, **more}


def patch(size: int) -> dict[str, Any]:
    """A patch of ``size`` steps."""
    return {"module_type": "PatchedPretransform", "patch_size": size}


def tiny_config(context: float = 1.0, codebooks: int = 3) -> dict[str, Any]:
    """200 Hz in frames of 16 samples: 12.5 a second. Every optional projection is there once and missing once."""
    return {
        "model_type": "moss-audio-tokenizer",
        "architectures": ["MossAudioTokenizerModel"],
        "sampling_rate": 200,
        "downsample_rate": 16,
        "causal_transformer_context_duration": context,
        "encoder_kwargs": [patch(4), transformer(4, 64, 2, layer_scale=0.1), patch(4), transformer(256, 32)],
        "decoder_kwargs": [transformer(32, 16), patch(16)],
        "quantizer_kwargs": {
            "input_dim": 32,
            "rvq_dim": 32,
            "output_dim": 32,
            "num_quantizers": codebooks,
            "codebook_size": 64,
            "codebook_dim": 8,
            "quantizer_type": "rlfq",
        },
    }


def stereo_config(sampling_rate: int = 48000, channels: int = 2, codebooks: int = 4) -> dict[str, Any]:
    """The public 48 kHz stereo release in small: windows of their own, rates up to 32 steps a frame."""

    def block(inputs: int, outputs: int, seconds: float) -> dict[str, Any]:
        return transformer(inputs, outputs, layer_scale=0.01, norm="layer_norm", context_duration=seconds)

    windows = [0.8, 0.8, 0.4, 0.4, 0.2, 0.1]
    decoder = [block(64, 96, windows[0]), patch(2)]
    for seconds in windows[1:-1]:
        decoder += [block(48, 96, seconds), patch(2)]
    encoder = [patch(240), block(240, 48, windows[-1])]
    for seconds in reversed(windows[:-1]):
        encoder += [patch(2), block(96, 48 if seconds != windows[0] else 64, seconds)]
    encoder[-1]["output_dimension"] = 64
    encoder[-3]["output_dimension"] = 48
    sizes = {"input_dim": 64, "rvq_dim": 32, "output_dim": 64, "num_quantizers": codebooks, "codebook_dim": 8}
    return {
        "model_type": "moss-audio-tokenizer",
        "sampling_rate": sampling_rate,
        "downsample_rate": 7680 // channels,
        "number_channels": channels,
        "enable_channel_interleave": True,
        "causal_transformer_context_duration": 10.0,
        "attention_implementation": "sdpa",
        "compute_dtype": "bf16",
        "codec_weight_dtype": "fp32",
        "encoder_kwargs": encoder,
        "decoder_kwargs": [*decoder, block(48, 240, windows[-1]), patch(240)],
        "quantizer_kwargs": sizes,
    }


class _Recording(RandomTensors):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, torch.device("cpu"), torch.float32)
        self.taken: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        self.taken[name] = super().take(name, *shape)
        return self.taken[name]


def write_codec(folder: Path, config: dict[str, Any], seed: int = 0) -> Path:
    """``folder`` with config.json and model.safetensors; returns it."""
    tensors = _Recording(seed)
    MossAudioTokenizer(config, tensors)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.taken.items()}, folder / "model.safetensors")
    return folder


def write_checkpoint(folder: Path, voice: Path, seed: int = 0, config: dict[str, Any] | None = None) -> Path:
    """A checkpoint with a codec (None: that of ``tiny_config``), and the config of the voice's other half, as if it
    spoke three codebooks."""
    write_codec(folder / "codec", config or tiny_config(), seed)
    (folder / "tts").mkdir()
    tts = json.loads((voice / "tts" / "config.json").read_text(encoding="utf-8")) | {"n_vq": 3}
    (folder / "tts" / "config.json").write_text(json.dumps(tts), encoding="utf-8")
    return folder
