"""The Higgs Audio v2 tokenizer (``model_type`` ``higgs_audio_v2_tokenizer``) in the format of transformers'
``HiggsAudioV2TokenizerModel``, decode side: residual vectors, one projection, a DAC decoder that loses no sample.

The acoustic encoder, the semantic model and its coders are left in the file: they only encode.

Ids beyond the codebook. The language model says 1026 ids a codebook: 1024 codes, begin (1024) and end (1025). After
the delay is undone none should be left, but nothing forbids a model to sample one in mid-stream. The codec has no sound
for them and decodes them as code 0, as the public servers of this model do; any other id is refused.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from backends.checkpoint_files import read_tensors
from backends.errors import CheckpointError
from backends.json_file import read_json
from backends.models.dac_decoder import DacDecoder, DacDecoderSpec
from backends.models.named_tensors import NamedTensors
from backends.models.window_codec import WindowCodec, positive, strides_of, used_codebooks

MODEL_TYPE = "higgs_audio_v2_tokenizer"
#: Begin and end of a codebook's stream.
SPECIAL = 2
_ENCODE_ONLY = re.compile(
    r"acoustic_encoder\.|encoder_semantic\.|decoder_semantic\.|semantic_model\.|fc\.|fc1\."
    r"|quantizer\.quantizers\.\d+\.(project_in\.|codebook\.(cluster_size|embed_avg|inited)$)"
)
#: Of the acoustic model, where its config leaves a key out.
_STRIDES, _WIDTH, _HIDDEN, _SEMANTIC_HIDDEN = (8, 5, 4, 2), 1024, 256, 768


class HiggsAudioTokenizer(WindowCodec):
    """The codec. ``samples(T)`` is exactly ``T * hop``."""

    def __init__(self, config: dict[str, Any], tensors: NamedTensors, codebooks: int | None = None) -> None:
        if (found := config.get("model_type", MODEL_TYPE)) != MODEL_TYPE:
            raise CheckpointError(f"model_type: {found!r} is not {MODEL_TYPE!r}")
        acoustic, semantic = _part(config, "acoustic_model_config"), _part(config, "semantic_model_config")
        if (kind := acoustic.get("model_type", "dac")) != "dac":
            raise CheckpointError(f"acoustic_model_config.model_type: {kind!r} is not implemented, only 'dac'")
        where = "acoustic_model_config."
        width = positive(acoustic, "decoder_hidden_size", _WIDTH, where)
        strides = strides_of(acoustic.get("upsampling_ratios", _STRIDES), width, f"{where}upsampling_ratios")
        acoustic_dim = positive(acoustic, "hidden_size", _HIDDEN, where)
        hidden = acoustic_dim + positive(semantic, "hidden_size", _SEMANTIC_HIDDEN, "semantic_model_config.")
        rate = positive(config, "sample_rate", 24000)
        entries, entry_dim = positive(config, "codebook_size", 1024), positive(config, "codebook_dim", 64)
        stored = _codebooks(config, rate, math.prod(strides), entries)
        used = used_codebooks(codebooks, stored)
        books = []
        for i in range(stored):
            name = f"quantizer.quantizers.{i}"
            book = tensors.take(f"{name}.codebook.embed", entries, entry_dim)
            weight = tensors.take(f"{name}.project_out.weight", hidden, entry_dim)
            books.append(F.linear(book, weight, tensors.take(f"{name}.project_out.bias", hidden)))
        weight, bias = tensors.take("fc2.weight", acoustic_dim, hidden), tensors.take("fc2.bias", acoustic_dim)
        # Linear in each entry, so the projection goes into the tables; its bias counts once.
        tables = [F.linear(book, weight, bias if i == 0 else None) for i, book in enumerate(books[:used])]
        tables = [torch.cat([table, table[:1].expand(SPECIAL, -1)]) for table in tables]
        spec = DacDecoderSpec(acoustic_dim, width, strides, pad_output=True, tanh=False)
        super().__init__(tables, DacDecoder(spec, tensors, "acoustic_decoder"), rate, SPECIAL)
        tensors.finish()

    @classmethod
    @torch.inference_mode()
    def load(
        cls, folder: Path, device: str | torch.device = "cpu", codebooks: int | None = None
    ) -> HiggsAudioTokenizer:
        """Read a published folder. ``codebooks`` limits the codec to its first ones. CheckpointError names what is
        wrong."""
        config = read_json(folder / "config.json")
        stored = {name: value for name, value in read_tensors(folder).items() if not _ENCODE_ONLY.match(name)}
        return cls(config, NamedTensors(stored, str(folder), torch.device(device), torch.float32), codebooks)


def _part(config: dict[str, Any], key: str) -> dict[str, Any]:
    part = config.get(key) or {}
    if not isinstance(part, dict):
        raise CheckpointError(f"{key}: {part!r} is not an object")
    return part


def _codebooks(config: dict[str, Any], rate: int, hop: int, entries: int) -> int:
    """As published: the largest bandwidth in kbit/s over what one codebook takes at a frame rate rounded up."""
    bandwidths = config.get("target_bandwidths", [0.5, 1, 1.5, 2, 4])
    if not isinstance(bandwidths, list) or not bandwidths or not isinstance(bandwidths[-1], int | float):
        raise CheckpointError(f"target_bandwidths: {bandwidths!r} is not a list of numbers")
    count = int(1000 * bandwidths[-1] // (math.ceil(rate / hop) * math.ceil(math.log2(entries))))
    if count < 1:
        raise CheckpointError(f"target_bandwidths: {bandwidths[-1]} kbit/s is less than one codebook takes")
    return count
