"""Mimi models of transformers with random weights, small and default, shared by the tests of this project's decoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import MimiConfig, MimiModel

from backends.models.mimi import Mimi
from backends.models.named_tensors import NamedTensors

_SMALL: dict[str, Any] = {
    "sampling_rate": 4800,
    "hidden_size": 32,
    "num_filters": 8,
    "upsampling_ratios": [4, 3, 2],
    "codebook_size": 64,
    "codebook_dim": 16,
    "vector_quantization_hidden_dimension": 16,
    "num_quantizers": 5,
    "upsample_groups": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "sliding_window": 20,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "small": _SMALL,
    # Everything that the default leaves alone: stereo, two residual blocks with growing dilation, shortcuts, other
    # kernels, two semantic codebooks, shared k and v heads, heads that do not make the width, grouped upsampling.
    "other": _SMALL
    | {
        "sampling_rate": 1000,
        "audio_channels": 2,
        "num_filters": 16,
        "upsampling_ratios": [5, 2],
        "num_residual_layers": 2,
        "kernel_size": 5,
        "last_kernel_size": 5,
        "residual_kernel_size": 4,
        "dilation_growth_rate": 3,
        "compress": 4,
        "use_conv_shortcut": True,
        "num_semantic_quantizers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "upsample_groups": 4,
        "sliding_window": 7,
        "norm_eps": 0.5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    },
    # Four transformer steps a frame, a window of less than a frame, no projection behind the codebooks, kernels of 1.
    "slow frames": _SMALL
    | {
        "frame_rate": 50.0,
        "codebook_dim": 32,
        "vector_quantization_hidden_dimension": 32,
        "kernel_size": 1,
        "residual_kernel_size": 1,
        "last_kernel_size": 1,
        "sliding_window": 3,
    },
}


def mimi_model(encoder: bool = False, **config: Any) -> MimiModel:
    """A seeded model with codebooks and layer scales that matter and an output of standard deviation near 1."""
    settings = MimiConfig(**config)
    if not encoder:
        settings.encoder_config = None
    torch.manual_seed(0)
    model = MimiModel(settings).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in (*model.named_buffers(), *model.named_parameters()):
            if name.endswith("embed_sum"):
                tensor.normal_(generator=generator)
            elif name.endswith(("cluster_usage", "layer_scale.scale")):
                tensor.uniform_(0.3, 1.5, generator=generator)
        for book in (module for name, module in model.named_modules() if name.endswith("codebook")):
            book.cluster_usage[0] = 0.0  # an entry that training never used
            book.embed_sum[0] *= 1e-5
        seanet = getattr(model.decoder, "decoder_seanet", model.decoder)  # older transformers have no such part
        last = seanet.layers[-1].conv
        gain = 1 / public_decode(model, random_codes(model.config, 8)).std()
        last.weight.mul_(gain)
        last.bias.mul_(gain)
    return model


def random_codes(config: MimiConfig, frames: int, seed: int = 0) -> Tensor:
    """Int64 [frames, codebooks]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.codebook_size, (frames, config.num_quantizers), generator=generator)


@torch.no_grad()
def public_decode(model: MimiModel, codes: Tensor) -> Tensor:
    """Codes [T, codebooks] by transformers -> float32 [samples * channels], channels in turns."""
    audio: Tensor = model.decode(codes.t()[None]).audio_values[0]
    return audio.t().reshape(-1)


def published(model: MimiModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors as ``save_pretrained`` writes them (tests/unit/test_codec_mimi.py compares them with a saved
    folder): the two halves of the model lie flat."""
    tensors = {
        name.replace("decoder.decoder_seanet.", "decoder.")
        .replace("decoder.decoder_transformer.", "decoder_transformer.")
        .replace("decoder.upsample.", "upsample."): tensor
        for name, tensor in model.state_dict().items()
    }
    return model.config.to_dict(), tensors


def mimi_codec(model: MimiModel, device: str = "cpu", codebooks: int | None = None) -> Mimi:
    """This project's decoder of the same weights."""
    config, tensors = published(model)
    return Mimi(config, NamedTensors(tensors, "test", torch.device(device), torch.float32), codebooks)
