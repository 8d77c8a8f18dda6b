"""A codec of a few hundred kilobytes with random weights, written as a checkpoint is published."""

from __future__ import annotations

import json
import shutil
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


def write_checkpoint(folder: Path, voice: Path, seed: int = 0) -> Path:
    """A checkpoint with that codec, and the config of the voice's other half."""
    write_codec(folder / "codec", tiny_config(), seed)
    (folder / "tts").mkdir()
    shutil.copy(voice / "tts" / "config.json", folder / "tts")
    return folder
