"""``config.json`` and ``generation_config.json`` of Whisper, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.errors import CheckpointError
from backends.json_file import read_json

MODEL_TYPE = "whisper"
SAMPLING_RATE = 16_000
_ACTIVATIONS = ("gelu",)


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Sizes of a Whisper encoder, which other models have too. ``positions``: states of one window of 30 s."""

    mels: int
    width: int
    layers: int
    heads: int
    ffn: int
    positions: int

    @property
    def mel_frames(self) -> int:
        """Mel frames of one window: the second convolution halves them."""
        return 2 * self.positions


@dataclass(frozen=True, slots=True)
class WhisperConfig:
    """Sizes and tokens of one checkpoint. ``suppressed`` are never written, ``first_suppressed`` not as the first."""

    encoder: EncoderConfig
    width: int
    decoder_layers: int
    decoder_heads: int
    decoder_ffn: int
    target_positions: int
    vocabulary: int
    start: int
    ends: tuple[int, ...]
    suppressed: tuple[int, ...]
    first_suppressed: tuple[int, ...]

    @classmethod
    def load(cls, folder: Path) -> WhisperConfig:
        """From ``folder``. Raises CheckpointError for what is not implemented, by the name of the key."""
        config = read_json(folder / "config.json")
        path = folder / "generation_config.json"
        advice = read_json(path) if path.exists() else {}
        implemented = {"model_type": MODEL_TYPE, "scale_embedding": False, "tie_word_embeddings": True}
        for key, value in implemented.items():
            if config.get(key, value) != value:
                raise CheckpointError(
                    f"{folder}/config.json: {key} is {config[key]!r}, this build implements {value!r}"
                )
        activation = config.get("activation_function", "gelu")
        if activation not in _ACTIVATIONS:
            raise CheckpointError(f"{folder}/config.json: activation_function {activation!r} is not implemented")
        try:
            return cls(
                encoder=EncoderConfig(
                    mels=config["num_mel_bins"],
                    width=config["d_model"],
                    layers=config["encoder_layers"],
                    heads=config["encoder_attention_heads"],
                    ffn=config["encoder_ffn_dim"],
                    positions=config["max_source_positions"],
                ),
                width=config["d_model"],
                decoder_layers=config["decoder_layers"],
                decoder_heads=config["decoder_attention_heads"],
                decoder_ffn=config["decoder_ffn_dim"],
                target_positions=config["max_target_positions"],
                vocabulary=config["vocab_size"],
                start=_first(advice, config, "decoder_start_token_id"),
                ends=_ids(_first(advice, config, "eos_token_id")),
                suppressed=_ids(_first(advice, config, "suppress_tokens")),
                first_suppressed=_ids(_first(advice, config, "begin_suppress_tokens")),
            )
        except KeyError as error:
            raise CheckpointError(f"{folder}/config.json: {error.args[0]} is missing") from None


def _first(advice: dict[str, Any], config: dict[str, Any], key: str) -> Any:
    return advice[key] if advice.get(key) is not None else config.get(key)


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)
