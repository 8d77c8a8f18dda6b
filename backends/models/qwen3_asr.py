"""The decoder of Qwen3-ASR: Qwen3 that reads audio states in its prompt and writes text, one token a step.

The public model turns queries and keys with three-part positions (MRoPE). Audio and text advance all three together,
so they are one position, and the backbone is plain Qwen3. Weights load under their published names
(``model.language_model.*``, ``lm_head.weight``); the encoder's half is :mod:`backends.models.qwen3_asr_encoder`.

The decoder of MOSS-Transcribe-Diarize is the same, under the same names
(:mod:`backends.models.moss_transcribe_encoder`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model

from backends.checkpoint_files import load_weights
from backends.errors import CheckpointError
from backends.json_file import read_json
from backends.models.config_errors import config_errors
from backends.models.linear import pack_linears, stream_linears
from backends.models.named_linears import frozen_linear
from backends.models.protocol import Attention, AudioSpec, CodeSampler, KVSpec
from backends.models.qwen3_backbone import Qwen3Backbone
from backends.models.qwen3_config import check_layers, qwen3_config
from backends.models.random_weights import random_module
from backends.models.text_rows import greedy_defaults, text_row_spec

MODEL_TYPE, MOSS_TYPE = "qwen3_asr", "moss_transcribe_diarize"
SAMPLING_RATE = 16_000
_MAX_TOKENS = 512


class Qwen3ASRWeights(nn.Module):
    """The decoder's part of the published module tree."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        text = config["text_config"]
        self.model = nn.Module()
        self.model.language_model = Qwen3Model(qwen3_config(config, "text_config"))
        if not is_tied(config):
            self.lm_head = nn.Linear(text["hidden_size"], text["vocab_size"], bias=False)


class Qwen3ASR(nn.Module):
    """The decoder as the engine runs it (:class:`backends.models.protocol.AudioModel`)."""

    def __init__(
        self, config: dict[str, Any], ends: list[int], weights: Qwen3ASRWeights, stream_weights: bool = True
    ) -> None:
        """``config`` as in ``config.json``; ``ends``: tokens that end a text; ``weights`` as loaded, on their device.

        ``stream_weights``: products of few rows on the weight-streaming kernel, where the GPU has what it needs.
        """
        super().__init__()
        text = config["text_config"]
        source: Any = weights.model.language_model
        self.rows = text_row_spec(text["vocab_size"])
        self.table: Tensor = source.embed_tokens.weight.detach()
        self.device, dtype = self.table.device, self.table.dtype
        self.kv = KVSpec(text["num_hidden_layers"], text["num_key_value_heads"], text["head_dim"], dtype)
        self.audio = AudioSpec(width=text["hidden_size"])
        self.defaults, self.sampling_rate = greedy_defaults(_MAX_TOKENS), SAMPLING_RATE
        self.max_positions = text["max_position_embeddings"]
        self.backbone_layers = Qwen3Backbone(text, source)
        self.head = frozen_linear(self.table if is_tied(config) else weights.lm_head.weight.detach())
        self.ends = torch.tensor(ends, device=self.device)
        pack_linears(self)
        if stream_weights:
            stream_linears(self)

    @classmethod
    def load(cls, folder: Path, device: torch.device, dtype: torch.dtype, stream_weights: bool = True) -> Qwen3ASR:
        """The decoder of ``folder`` on ``device``. Raises CheckpointError when it does not fit this architecture."""
        config = _read(folder)
        with torch.device("meta"):
            weights = Qwen3ASRWeights(config)
        weights = weights.to_empty(device="cpu").to(dtype)
        # A tied head may be stored all the same; the embedding is what counts.
        prefixes = ("model.language_model.",) if is_tied(config) else ("model.language_model.", "lm_head.")
        load_weights(weights, folder, dtype, prefixes)
        weights = weights.to(device).eval().requires_grad_(False)
        return cls(config, end_tokens(config, folder), weights, stream_weights)

    @classmethod
    def dummy(
        cls, folder: Path, device: torch.device, dtype: torch.dtype, stream_weights: bool = True, seed: int = 0
    ) -> Qwen3ASR:
        """The decoder that ``config.json`` of ``folder`` describes, with seeded random weights: for benchmarks."""
        config = _read(folder)
        deviation = config["text_config"].get("initializer_range", 0.02)
        weights = random_module(lambda: Qwen3ASRWeights(config), device, dtype, deviation, seed)
        return cls(config, end_tokens(config, folder), weights, stream_weights)

    def embed(self, rows: Tensor) -> Tensor:
        """Rows int64 [N, 2] -> embeddings of their tokens [N, hidden]; the engine puts audio states in their place."""
        return F.embedding(rows[:, 1], self.table)

    def backbone(self, x: Tensor, positions: Tensor, attend: Attention) -> Tensor:
        """``x`` [N, hidden], ``positions`` int64 [N] -> normed hidden states [N, hidden]."""
        return self.backbone_layers(x, positions, attend)

    def frame(self, hidden: Tensor, sampler: CodeSampler) -> tuple[Tensor, Tensor]:
        """``hidden`` [B, hidden] -> tokens int64 [B, 1], stop bool [B]: whether the token is one that ends a text."""
        tokens = sampler.code(self.head(hidden), 0).unsqueeze(1)
        return tokens, (tokens == self.ends).any(dim=1)


def is_tied(config: dict[str, Any]) -> bool:
    """Whether the head is the embedding. Absent means tied: the default of the format."""
    return bool(config.get("tie_word_embeddings", True))


def end_tokens(config: dict[str, Any], folder: Path) -> list[int]:
    """Tokens that end a text: of ``generation_config.json`` if there is one, as transformers has it."""
    path = folder / "generation_config.json"
    found = (read_json(path) if path.exists() else {}).get("eos_token_id") or config.get("eos_token_id")
    if not found:
        raise CheckpointError(f"{folder}: eos_token_id is in neither generation_config.json nor config.json")
    return found if isinstance(found, list) else [found]


def check_config(config: dict[str, Any], folder: Path, types: tuple[str, ...] = (MODEL_TYPE, MOSS_TYPE)) -> None:
    """Refuse what is not implemented, by the name of the key; ``types``: model types that will do."""
    found = config.get("model_type")
    if found not in types:
        raise CheckpointError(
            f"{folder}/config.json: model_type is {found!r}, this build implements {' and '.join(map(repr, types))}"
        )
    with config_errors(folder / "config.json"):
        check_layers(config, "text_config")


def _read(folder: Path) -> dict[str, Any]:
    """``config.json``, checked. Raises CheckpointError with the file and, where it can be told, the key."""
    config = read_json(folder / "config.json")
    check_config(config, folder)
    with config_errors(folder / "config.json"), torch.device("meta"):
        Qwen3ASRWeights(config)
    return config
