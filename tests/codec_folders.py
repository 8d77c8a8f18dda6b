"""Small codecs of the DAC family with random weights, saved by transformers: what the published folders look like."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

SIZES: dict[str, Any] = {
    "encoder_hidden_size": 4,
    "downsampling_ratios": [2, 4, 5, 8],
    "decoder_hidden_size": 32,
    "n_codebooks": 3,
    "codebook_size": 64,
    "codebook_dim": 8,
    "sampling_rate": 24000,
}


def fill(model: nn.Module, seed: int) -> None:
    """Random weights with a gain near one, also through 12 residual units: with more, a snake decoder is chaotic, and
    rounding grows until two correct decodes differ by the whole signal, which no trained codec does."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("alpha"):
            value = 1 + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.05 * noise
        elif "codebook" in name or tensor.ndim < 2:
            value = noise
        elif "conv_t1" in name:
            value = noise * (2 * tensor.shape[0]) ** -0.5
        else:
            value = noise * tensor[0].numel() ** -0.5 * (0.3 if "res_unit" in name else 1.0)
        tensor.data.copy_(value)


def dac_model(seed: int = 0, **sizes: Any) -> Any:
    """transformers' ``DacModel``, in evaluation mode; ``sizes`` replace those of ``SIZES``."""
    from transformers import DacConfig, DacModel

    model = DacModel(DacConfig(**{**SIZES, **sizes})).eval()
    fill(model, seed)
    return model


def save(model: Any, folder: Path) -> Path:
    """Write ``config.json`` and ``model.safetensors``."""
    model.save_pretrained(folder)
    return folder


def higgs_model(seed: int = 0, strides: tuple[int, ...] = (8, 5, 4, 2, 3)) -> Any:
    """transformers' ``HiggsAudioV2TokenizerModel``: 25 Hz, hop 960, 8 codebooks of 1024.

    Its module imports torchaudio and refuses to be built without it, though only ``encode`` calls it (to resample). An
    empty module stands in for it here, during import and construction alone.
    """
    from transformers import DacConfig, HubertConfig
    from transformers.models.higgs_audio_v2_tokenizer.configuration_higgs_audio_v2_tokenizer import (
        HiggsAudioV2TokenizerConfig,
    )

    acoustic = DacConfig(
        encoder_hidden_size=2, downsampling_ratios=list(strides), decoder_hidden_size=32, codebook_dim=8
    )
    acoustic.upsampling_ratios, acoustic.hidden_size = list(strides), 64
    semantic = HubertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, conv_dim=[8] * 7
    )
    config = HiggsAudioV2TokenizerConfig(
        acoustic_model_config=acoustic,
        semantic_model_config=semantic,
        target_bandwidths=[0.5, 1, 1.5, 2],
        codebook_dim=8,
    )
    name = "transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer"
    empty = types.ModuleType("torchaudio")
    with mock.patch.dict(sys.modules, {"torchaudio": sys.modules.get("torchaudio", empty)}):
        model = importlib.import_module(name).HiggsAudioV2TokenizerModel(config).eval()
    fill(model, seed)
    return model
