"""What a config of MOSS-Audio-Tokenizer may say, and the sentences that refuse the rest by key."""

from __future__ import annotations

from typing import Any

from backends.errors import CheckpointError
from backends.models.causal_transformer import HEAD_DIM, TransformerSpec
from backends.models.residual_quantizer import QuantizerSpec

_ONLY = {
    "causal": True,
    "gating": "none",
    "norm": "layer_norm",
    "positional_embedding": "rope",
    "weights_per_step": 0,
    "weights_per_step_schedule": None,
    "positional_scale": 1.0,
}
_NEEDED = {"input_dimension", "output_dimension", "d_model", "num_heads", "num_layers", "dim_feedforward"}
_KNOWN = _NEEDED | _ONLY.keys() | {"module_type", "conv_layout", "layer_scale", "max_period", "context_duration"}
_DEFAULTS = {"causal": False, "positional_embedding": "sin"}  # the public code's, where a key is absent
_QUANTIZER_KEYS = {
    "input_dim",
    "rvq_dim",
    "output_dim",
    "num_quantizers",
    "codebook_size",
    "codebook_dim",
    "quantizer_type",
}


def transformer_spec(
    module: dict[str, Any], where: str, rate: float, frame_rate: float, context: float
) -> TransformerSpec:
    """Check one ``Transformer`` entry. ``rate`` in steps a second; window as published: int(rate * context seconds)."""
    if unknown := sorted(module.keys() - _KNOWN):
        raise CheckpointError(f"{where}.{unknown[0]}: {module[unknown[0]]!r} is not implemented")
    if missing := sorted(_NEEDED - module.keys()):
        raise CheckpointError(f"{where}.{missing[0]} is missing")
    for key, only in _ONLY.items():
        if (value := module.get(key, _DEFAULTS.get(key, only))) != only:
            raise CheckpointError(f"{where}.{key}: {value!r} is not implemented, only {only!r}")
    width, heads = module["d_model"], module["num_heads"]
    if width != heads * HEAD_DIM:
        raise CheckpointError(f"{where}.num_heads: {heads} heads of {HEAD_DIM} do not make d_model {width}")
    steps = rate / frame_rate
    window = int(rate * module.get("context_duration", context))
    if steps != int(steps) or steps < 1 or window < 1:
        raise CheckpointError(f"{where}: {steps} steps a frame and a window of {window} steps are not implemented")
    return TransformerSpec(
        input_dim=module["input_dimension"],
        output_dim=module["output_dimension"],
        width=width,
        heads=heads,
        layers=module["num_layers"],
        feedforward=module["dim_feedforward"],
        layer_scale=module.get("layer_scale") is not None,
        max_period=float(module.get("max_period", 10_000)),
        rate=int(steps),
        window=window,
    )


def quantizer_spec(config: dict[str, Any], codebooks: int | None) -> QuantizerSpec:
    """Sizes of the quantizer, of which the first ``codebooks`` (None: all) take part."""
    entry = config.get("quantizer_kwargs") or {}
    kind = entry.get("quantizer_type", config.get("quantizer_type", "rlfq"))
    if kind not in ("rlfq", "random_prefix_rlfq"):  # they differ in training only
        raise CheckpointError(f"quantizer_kwargs.quantizer_type: {kind!r} is not implemented, only 'rlfq'")
    if unknown := sorted(entry.keys() - _QUANTIZER_KEYS):
        raise CheckpointError(f"quantizer_kwargs.{unknown[0]}: {entry[unknown[0]]!r} is not implemented")
    stored = entry.get("num_quantizers", 32)
    used = stored if codebooks is None else codebooks
    if not 1 <= used <= stored:
        raise CheckpointError(f"codebooks: {used} is not between 1 and the codec's {stored}")
    width = entry.get("input_dim", 1024)
    return QuantizerSpec(
        input_dim=width,
        inner_dim=entry.get("rvq_dim") or width,
        output_dim=entry.get("output_dim") or width,
        codebooks=stored,
        used=used,
        entries=entry.get("codebook_size", 1024),
        entry_dim=entry.get("codebook_dim", 8),
    )
