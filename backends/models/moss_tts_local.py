"""MOSS-TTS-Local v1.5: a Qwen3 backbone, one row a frame, and a frame-local transformer that writes the codes of the
row.

The backbone reads the sum of a row's embeddings and gives one hidden state. The frame-local transformer (GPT-2 style,
one position for that state and one for each code already written) first says whether the utterance goes on (a head of
two), then writes the codes one after another, each read back through its embedding. Heads and embeddings are tied.

Weights load under their published names into transformers' own Qwen3 modules; :meth:`MossTTSLocal.prepare` then fuses
what is multiplied by the same input and packs it for the device.
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
from backends.kernels import embed_rows
from backends.models.config_errors import check_part, check_sizes, config_errors
from backends.models.frame_transformer import FrameTransformer
from backends.models.linear import pack_linears, stream_linears
from backends.models.named_linears import frozen_linear
from backends.models.protocol import Attention, CodeSampler, KVSpec
from backends.models.qwen3_backbone import Qwen3Backbone
from backends.models.qwen3_config import check_layers, qwen3_config
from backends.models.random_weights import random_module
from backends.models.sampling_defaults import SamplingDefaults
from backends.rows import RowSpec

MODEL_TYPE = "moss_tts_local"
_SIZES = ("hidden_size", "vocab_size", "n_vq", "sampling_rate")
_TOKENS = (
    "audio_pad_token_id", "audio_assistant_slot_token_id", "audio_user_slot_token_id", "audio_start_token_id",
    "audio_end_token_id",
)  # fmt: skip


class MossTTSLocalWeights(nn.Module):
    """The published module tree: its ``state_dict`` has the checkpoint's names, no more and no fewer."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.transformer = Qwen3Model(qwen3_config(config, "qwen3_config"))
        self.local_transformer = FrameTransformer(config["gpt2_config"], positions=config["n_vq"] + 1)
        self.audio_embeddings = nn.ModuleList(nn.Embedding(size, hidden) for size in config["audio_codebook_sizes"])
        self.local_text_lm_head = nn.Linear(hidden, 2, bias=False)


class MossTTSLocal(nn.Module):
    """The model as the engine runs it (:class:`backends.models.protocol.DecoderModel`)."""

    def __init__(
        self,
        config: dict[str, Any],
        weights: MossTTSLocalWeights,
        defaults: SamplingDefaults,
        stream_weights: bool = True,
    ) -> None:
        """``config`` as in ``config.json``; ``weights`` on their device and in their dtype, and not used afterwards.

        ``stream_weights``: products of few rows on the weight-streaming kernel, where the GPU has what it needs.
        """
        super().__init__()
        qwen3 = config["qwen3_config"]
        kv_heads, head_dim = qwen3["num_key_value_heads"], qwen3["head_dim"]
        codebooks, size = config["n_vq"], config["audio_codebook_sizes"][0]
        self.rows = RowSpec(
            codebooks=codebooks,
            codebook_size=size,
            text_vocab=config["vocab_size"],
            pad_code=config["audio_pad_token_id"],
            assistant_slot_id=config["audio_assistant_slot_token_id"],
            user_slot_id=config["audio_user_slot_token_id"],
            audio_start_id=config["audio_start_token_id"],
            audio_end_id=config["audio_end_token_id"],
        )
        embed_tokens = weights.transformer.embed_tokens.weight.detach()
        self.device, dtype = embed_tokens.device, embed_tokens.dtype
        self.kv = KVSpec(layers=len(weights.transformer.layers), heads=kv_heads, head_dim=head_dim, dtype=dtype)
        self.defaults, self.sampling_rate = defaults, config["sampling_rate"]
        self.max_positions = qwen3["max_position_embeddings"]
        self.qwen3 = Qwen3Backbone(qwen3, weights.transformer)
        self.local = weights.local_transformer
        # Zero rows up to 16, the least that the weight-streaming kernel takes: a library's product of two columns was
        # seen to change its bits with the batch (H200), and cost the decode buckets below 32 rows.
        stop = weights.local_text_lm_head.weight.detach()
        self.stop_head = frozen_linear(F.pad(stop, (0, 0, 0, 14)))
        tables: list[Tensor] = [embedding.get_parameter("weight").detach() for embedding in weights.audio_embeddings]
        self.code_heads = nn.ModuleList(frozen_linear(table) for table in tables)
        # One table for all codebooks, each with a row of zeros for the pad code, so that a row needs one gather.
        zero = embed_tokens.new_zeros(1, embed_tokens.shape[1])
        self.text_table = embed_tokens
        self.code_table = torch.cat([torch.cat([table, zero]) for table in tables])
        pack_linears(self)
        if stream_weights:
            stream_linears(self)

    @classmethod
    def load(cls, folder: Path, device: torch.device, dtype: torch.dtype, stream_weights: bool = True) -> MossTTSLocal:
        """The checkpoint in ``folder`` on ``device``. Raises CheckpointError when it does not fit this architecture."""
        config = _read(folder)
        with torch.device("meta"):
            weights = MossTTSLocalWeights(config)
        weights = weights.to_empty(device="cpu").to(dtype)
        load_weights(weights, folder, dtype)
        weights = weights.to(device).eval().requires_grad_(False)
        return cls(config, weights, SamplingDefaults.load(folder), stream_weights)

    @classmethod
    def dummy(
        cls, folder: Path, device: torch.device, dtype: torch.dtype, stream_weights: bool = True, seed: int = 0
    ) -> MossTTSLocal:
        """The model that ``config.json`` of ``folder`` describes, with seeded random weights: for benchmarks."""
        config = _read(folder)
        deviation = float(config.get("initializer_range", 0.02))
        weights = random_module(lambda: MossTTSLocalWeights(config), device, dtype, deviation, seed)
        return cls(config, weights, SamplingDefaults.load(folder), stream_weights)

    def embed(self, rows: Tensor) -> Tensor:
        """Rows int64 [N, 1 + codebooks] -> the sum of their embeddings [N, hidden]; the pad code adds nothing."""
        return embed_rows(rows, self.text_table, self.code_table, self.rows.codebook_size + 1)

    def backbone(self, x: Tensor, positions: Tensor, attend: Attention) -> Tensor:
        """``x`` [N, hidden], ``positions`` int64 [N] -> normed hidden states [N, hidden]."""
        return self.qwen3(x, positions, attend)

    @property
    def layers(self) -> nn.ModuleList:
        """The layers of the backbone."""
        return self.qwen3.layers

    def frame(self, hidden: Tensor, sampler: CodeSampler) -> tuple[Tensor, Tensor]:
        """``hidden`` [B, hidden] -> codes int64 [B, codebooks], stop bool [B]. Codes of a stopping row mean nothing."""
        cache, count = self.local.new_cache(hidden), self.rows.codebooks
        state = self.local.step(*self.local.enter(hidden), 0, cache)
        stop = sampler.stop(self.stop_head(state)[:, :2])
        codes: list[Tensor] = []
        for codebook in range(count - 1):
            # The next position reads the code back from its own part of the common table.
            reader = self.local.reader(self.code_table, codebook * (self.rows.codebook_size + 1), codebook + 1)
            ids, x, normed = sampler.code_embed(self.code_heads[codebook](state), codebook, reader)
            codes.append(ids)
            state = self.local.step(normed, x, codebook + 1, cache)
        codes.append(sampler.code(self.code_heads[count - 1](state), count - 1))
        return torch.stack(codes, dim=1), stop


def _read(folder: Path) -> dict[str, Any]:
    """``config.json``, checked. Raises CheckpointError with the file and, where it can be told, the key."""
    path = folder / "config.json"
    config = read_json(path)
    with config_errors(path):
        _check(config)
        with torch.device("meta"):
            MossTTSLocalWeights(config)
    return config


def _check(config: dict[str, Any]) -> None:
    """Refuse what this file does not implement, by the name of the key."""
    implemented = {"model_type": MODEL_TYPE, "local_text_head_mode": "binary", "tie_word_embeddings": True}
    for key, value in implemented.items():
        if config.get(key) != value:
            raise CheckpointError(f"{key} is {config.get(key)!r}, this build implements {value!r}")
    check_sizes(config, _SIZES)
    check_sizes(config, _TOKENS, least=0)
    codebooks, sizes = config["n_vq"], config.get("audio_codebook_sizes")
    if not isinstance(sizes, list) or len(sizes) < codebooks:
        raise CheckpointError(f"audio_codebook_sizes is {sizes!r}, expected a list of {codebooks} sizes, as n_vq says")
    if len(set(sizes)) != 1:
        raise CheckpointError("audio_codebook_sizes differ, this build wants one size")
    check_layers(config, "qwen3_config")
    local = check_part(config, "gpt2_config")
    check_sizes(local, ("n_embd", "n_head", "n_layer"), part="gpt2_config.")
    if local["n_embd"] % local["n_head"]:
        raise CheckpointError(
            f"gpt2_config.n_head is {local['n_head']}, which does not divide n_embd {local['n_embd']}"
        )
    for part, key in (("gpt2_config", "n_embd"), ("qwen3_config", "hidden_size")):
        if config["hidden_size"] != config[part].get(key):
            raise CheckpointError(f"hidden_size is {config['hidden_size']}, and {part}.{key} {config[part].get(key)!r}")
