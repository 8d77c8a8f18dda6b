"""DAC (``model_type`` ``dac``): Descript's audio codec in the format of transformers' ``DacModel``, decode side.

The encoder's tensors are left in the file. Defaults of absent config keys are the public class's.
"""

from __future__ import annotations

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
from backends.models.weight_norm import take_weight
from backends.models.window_codec import WindowCodec, positive, strides_of, used_codebooks

MODEL_TYPE = "dac"
_ENCODE_ONLY = re.compile(r"encoder\.|quantizer\.quantizers\.\d+\.in_proj\.")


class Dac(WindowCodec):
    """The codec. Odd strides lose samples at the end of a stream: see ``DacDecoderSpec.samples``. No special ids."""

    def __init__(self, config: dict[str, Any], tensors: NamedTensors, codebooks: int | None = None) -> None:
        if (found := config.get("model_type", MODEL_TYPE)) != MODEL_TYPE:
            raise CheckpointError(f"model_type: {found!r} is not {MODEL_TYPE!r}")
        width = positive(config, "decoder_hidden_size", 1536)
        down = strides_of(config.get("downsampling_ratios", [2, 4, 8, 8]), width, "downsampling_ratios")
        strides = strides_of(config.get("upsampling_ratios", down[::-1]), width, "upsampling_ratios")
        hidden = positive(config, "hidden_size", positive(config, "encoder_hidden_size", 64) * 2 ** len(down))
        entries, entry_dim = positive(config, "codebook_size", 1024), positive(config, "codebook_dim", 8)
        stored = positive(config, "n_codebooks", 9)
        used = used_codebooks(codebooks, stored)
        tables = []
        for i in range(stored):
            name = f"quantizer.quantizers.{i}"
            book = tensors.take(f"{name}.codebook.weight", entries, entry_dim)
            weight = take_weight(tensors, f"{name}.out_proj", hidden, entry_dim, 1)
            bias = tensors.take(f"{name}.out_proj.bias", hidden)
            if i < used:
                tables.append(F.linear(book, weight[:, :, 0], bias))
        spec = DacDecoderSpec(hidden, width, strides, pad_output=False, tanh=True)
        decoder = DacDecoder(spec, tensors, "decoder")
        super().__init__(tables, decoder, positive(config, "sampling_rate", 16000))
        tensors.finish()

    @classmethod
    @torch.inference_mode()
    def load(cls, folder: Path, device: str | torch.device = "cpu", codebooks: int | None = None) -> Dac:
        """Read a published folder. ``codebooks`` limits the codec to its first ones. CheckpointError names what is
        wrong."""
        config = read_json(folder / "config.json")
        stored = {name: value for name, value in read_tensors(folder).items() if not _ENCODE_ONLY.match(name)}
        return cls(config, NamedTensors(stored, str(folder), torch.device(device), torch.float32), codebooks)
