"""What a Mimi config says about the decode side, checked. What it may ask for and this build does not do is refused by
key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from backends.errors import CheckpointError
from backends.models.causal_transformer import TransformerSpec
from backends.models.mimi_quantizer import SplitQuantizerSpec
from backends.models.seanet_decoder import SeanetSpec

MODEL_TYPE = "mimi"
_DEFAULTS: dict[str, Any] = {  # the public code's, where a key is absent
    "sampling_rate": 24_000,
    "audio_channels": 1,
    "hidden_size": 512,
    "num_filters": 64,
    "num_residual_layers": 1,
    "kernel_size": 7,
    "last_kernel_size": 3,
    "residual_kernel_size": 3,
    "dilation_growth_rate": 2,
    "compress": 2,
    "codebook_size": 2048,
    "codebook_dim": 256,
    "num_quantizers": 32,
    "vector_quantization_hidden_dimension": 256,
    "num_semantic_quantizers": 1,
    "upsample_groups": 512,
    "num_hidden_layers": 8,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "sliding_window": 250,
}
_RATIOS = [8, 6, 5, 4]
_ONLY = {
    "use_causal_conv": True,
    "pad_mode": "constant",
    "trim_right_ratio": 1.0,
    "hidden_act": "gelu",
    "attention_bias": False,
    "normalize": False,
}


class _Values:
    """Checked access to a config's values."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config

    def size(self, key: str, default: int | None = None) -> int:
        """An integer above 0; the default also stands in for null where the public code has it so."""
        value = self._config.get(key, _DEFAULTS.get(key))
        return _positive(key, default if value is None and default is not None else value)

    def divisor(self, key: str, whole: int) -> int:
        """An integer above 0 that divides ``whole``."""
        value = self.size(key)
        if whole % value:
            raise CheckpointError(f"{key}: {value} does not divide {whole}")
        return value

    def number(self, key: str, default: float) -> float:
        """A number above 0."""
        value = self._config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise CheckpointError(f"{key}: {value!r} is not a number above 0")
        return float(value)

    def ratios(self) -> tuple[int, ...]:
        """The strides of the SEANet decoder."""
        value = self._config.get("upsampling_ratios") or _RATIOS
        if not isinstance(value, list | tuple):
            raise CheckpointError(f"upsampling_ratios: {value!r} is not a list")
        return tuple(_positive("upsampling_ratios", ratio) for ratio in value)

    def stride(self, sampling_rate: int, hop: int) -> int:
        """Transformer steps a frame, as published: steps a second, rounded up, by frames a second, rounded down."""
        steps = math.ceil(sampling_rate / hop)
        keys = [key for key in ("_frame_rate", "frame_rate") if self._config.get(key) is not None]
        frames = self.number(keys[0] if keys else "frame_rate", sampling_rate / (2 * hop))
        if frames >= steps:
            raise CheckpointError(
                f"frame_rate: {frames} is not implemented, only rates below the {steps} steps a second that "
                "sampling_rate and upsampling_ratios make"
            )
        return int(steps / frames)

    def rope_theta(self) -> float:
        """From ``rope_parameters``, or from the older keys."""
        rope = self._config.get("rope_parameters") or self._config.get("rope_scaling") or {}
        if (kind := rope.get("rope_type", rope.get("type", "default"))) != "default":
            raise CheckpointError(f"rope_parameters.rope_type: {kind!r} is not implemented, only 'default'")
        return float(rope.get("rope_theta", self.number("rope_theta", 10_000.0)))


def _positive(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"{key}: {value!r} is not an integer above 0")
    return value


@dataclass(frozen=True, slots=True)
class MimiSpec:
    """Sizes of the parts. ``stride`` transformer steps a frame, ``upsample_groups`` of the convolution that makes them,
    ``key_heads`` heads of k and v."""

    sampling_rate: int
    stride: int
    upsample_groups: int
    quantizer: SplitQuantizerSpec
    transformer: TransformerSpec
    key_heads: int
    seanet: SeanetSpec

    @property
    def hop(self) -> int:
        """Samples a frame and channel."""
        return self.stride * math.prod(self.seanet.ratios)


def read_spec(config: dict[str, Any], codebooks: int | None = None) -> MimiSpec:
    """Check ``config``. ``codebooks`` limits the codec to its first ones. CheckpointError names the key."""
    if (found := config.get("model_type", MODEL_TYPE)) != MODEL_TYPE:
        raise CheckpointError(f"model_type: {found!r} is not {MODEL_TYPE!r}")
    for key, only in _ONLY.items():
        if (value := config.get(key, only)) != only:
            raise CheckpointError(f"{key}: {value!r} is not implemented, only {only!r}")
    if "decoder_config" in config and config["decoder_config"] is None:
        raise CheckpointError("decoder_config: null, so the checkpoint has no decoder")
    values = _Values(config)
    width, sampling_rate = values.size("hidden_size"), values.size("sampling_rate")
    ratios = values.ratios()
    stride = values.stride(sampling_rate, math.prod(ratios))
    return MimiSpec(
        sampling_rate=sampling_rate,
        stride=stride,
        upsample_groups=values.divisor("upsample_groups", width),
        quantizer=_quantizer_spec(values, width, codebooks),
        transformer=_transformer_spec(values, width, stride),
        key_heads=values.divisor("num_key_value_heads", values.size("num_attention_heads")),
        seanet=_seanet_spec(values, width, ratios, bool(config.get("use_conv_shortcut", False))),
    )


def _quantizer_spec(values: _Values, width: int, codebooks: int | None) -> SplitQuantizerSpec:
    stored, semantic = values.size("num_quantizers"), values.size("num_semantic_quantizers")
    if semantic >= stored:
        raise CheckpointError(f"num_semantic_quantizers: {semantic} is not below num_quantizers, {stored}")
    entry_dim, inner = values.size("codebook_dim", width), values.size("vector_quantization_hidden_dimension")
    if entry_dim != inner:
        raise CheckpointError(f"codebook_dim: {entry_dim} is not vector_quantization_hidden_dimension, {inner}")
    used = stored if codebooks is None else codebooks
    if not 1 <= used <= stored:
        raise CheckpointError(f"codebooks: {used} is not between 1 and the codec's {stored}")
    return SplitQuantizerSpec(stored, semantic, used, values.size("codebook_size"), entry_dim, width)


def _transformer_spec(values: _Values, width: int, stride: int) -> TransformerSpec:
    heads = values.size("num_attention_heads")
    head_dim = values.size("head_dim", width // heads)
    if head_dim % 2:
        raise CheckpointError(f"head_dim: {head_dim} is not even")
    return TransformerSpec(
        input_dim=width,
        output_dim=width,
        width=width,
        heads=heads,
        layers=values.size("num_hidden_layers"),
        feedforward=values.size("intermediate_size"),
        layer_scale=True,
        max_period=values.rope_theta(),
        rate=stride,
        window=values.size("sliding_window"),
        head_dim=head_dim,
        norm_eps=values.number("norm_eps", 1e-5),
    )


def _seanet_spec(values: _Values, width: int, ratios: tuple[int, ...], shortcut: bool) -> SeanetSpec:
    channels = values.size("audio_channels")
    if channels > 2:
        raise CheckpointError(f"audio_channels: {channels} is not implemented, only 1 and 2")
    return SeanetSpec(
        input_dim=width,
        filters=values.size("num_filters"),
        ratios=ratios,
        residual_layers=values.size("num_residual_layers"),
        kernel=values.size("kernel_size"),
        last_kernel=values.size("last_kernel_size"),
        residual_kernel=values.size("residual_kernel_size"),
        dilation_growth=values.size("dilation_growth_rate"),
        compress=values.size("compress"),
        shortcut=shortcut,
        channels=channels,
    )
