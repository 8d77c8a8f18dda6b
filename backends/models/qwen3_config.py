"""Qwen3's part of a ``config.json``, checked."""

from __future__ import annotations

from typing import Any

from transformers import Qwen3Config

from backends.errors import CheckpointError
from backends.models.config_errors import check_part, check_sizes, reason

_SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings", "vocab_size",
)  # fmt: skip
_ONLY = {"use_sliding_window": False, "attention_bias": False, "hidden_act": "silu"}


def check_layers(config: dict[str, Any], name: str) -> None:
    """Refuse what :class:`backends.models.qwen3_backbone.Qwen3Backbone` does not implement, by the name of the key.

    ``name``: the key of ``config`` that holds Qwen3's part.
    """
    part = check_part(config, name)
    rope = part.get("rope_parameters") or {}
    kind = rope.get("rope_type", "default") if isinstance(rope, dict) else rope
    if kind != "default":
        raise CheckpointError(f"{name}.rope_parameters.rope_type is {kind!r}, this build implements 'default'")
    for key, only in _ONLY.items():
        if (value := part.get(key) or only) != only:
            raise CheckpointError(f"{name}.{key} is {value!r}, this build implements {only!r}")


def qwen3_config(config: dict[str, Any], name: str) -> Qwen3Config:
    """The part ``name`` of ``config`` for transformers. Raises CheckpointError, also for what contradicts itself."""
    part = check_part(config, name)
    check_sizes(part, _SIZES, part=f"{name}.")
    heads, key_heads = part["num_attention_heads"], part["num_key_value_heads"]
    if heads % key_heads:
        raise CheckpointError(f"{name}.num_key_value_heads is {key_heads}, which does not divide {heads} heads")
    try:
        return Qwen3Config(**{key: value for key, value in part.items() if key != "model_type"})
    except Exception as error:  # of several libraries
        raise CheckpointError(f"{name}: {reason(error)}") from None
