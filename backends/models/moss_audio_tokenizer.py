"""MOSS-Audio-Tokenizer (``model_type`` ``moss-audio-tokenizer``): a causal codec of windowed transformers without
convolutions.

Reads the published folder by its own tensor names and config keys: this project's small voice and the public 24 kHz
release have the same format. What a config may ask for and this file does not implement is refused by key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backends.checkpoint_files import read_tensors
from backends.errors import CheckpointError, InvalidArgument
from backends.json_file import read_json
from backends.models.causal_transformer import HEAD_DIM, CausalTransformer, TransformerSpec
from backends.models.codes import check_codes
from backends.models.named_tensors import NamedTensors
from backends.models.residual_quantizer import QuantizerSpec, ResidualQuantizer

MODEL_TYPE = "moss-audio-tokenizer"
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


def _transformer_spec(
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


def _quantizer_spec(config: dict[str, Any], codebooks: int | None) -> QuantizerSpec:
    entry = config.get("quantizer_kwargs") or {}
    kind = entry.get("quantizer_type", config.get("quantizer_type", "rlfq"))
    if kind != "rlfq":
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


class MossAudioTokenizer:
    """The codec: ``encode`` and ``decode`` whole signals, ``step`` a chunk of several streams. Float32, mono.

    ``sampling_rate`` in Hz, ``hop`` in samples a frame, ``codebooks`` and ``entries`` the sizes of a frame's codes.
    ``encoder``: its modules in order; a number is a patch of so many steps.
    """

    def __init__(self, config: dict[str, Any], tensors: NamedTensors, codebooks: int | None = None) -> None:
        if (found := config.get("model_type", MODEL_TYPE)) != MODEL_TYPE:
            raise CheckpointError(f"model_type: {found!r} is not {MODEL_TYPE!r}")
        if (channels := config.get("number_channels", 1)) != 1:
            raise CheckpointError(f"number_channels: {channels} is not implemented, only 1")
        try:
            self.sampling_rate = int(config["sampling_rate"] if "sampling_rate" in config else config["sample_rate"])
            self.hop = int(config["downsample_rate"])
            context = float(config["causal_transformer_context_duration"])
            encoder, decoder = config["encoder_kwargs"], config["decoder_kwargs"]
        except KeyError as error:
            raise CheckpointError(f"{error.args[0]} is missing from the codec's config") from None
        self.channels, self.frame_rate = 1, self.sampling_rate / self.hop
        self.device = tensors.device
        self.encoder = self._modules("encoder", encoder, tensors, float(self.sampling_rate), False, context)
        self.quantizer = ResidualQuantizer(_quantizer_spec(config, codebooks), tensors, "quantizer")
        self._decoder = self._modules("decoder", decoder, tensors, self.frame_rate, True, context)
        self.codebooks, self.entries = self.quantizer.spec.used, self.quantizer.spec.entries
        tensors.finish()

    @classmethod
    @torch.inference_mode()
    def load(cls, folder: Path, device: str | torch.device = "cpu", codebooks: int | None = None) -> MossAudioTokenizer:
        """Read a published folder. ``codebooks`` limits the codec to its first ones. CheckpointError names what is
        wrong."""
        config = read_json(folder / "config.json")
        tensors = NamedTensors(read_tensors(folder), str(folder), torch.device(device), torch.float32)
        return cls(config, tensors, codebooks)

    def _modules(
        self, side: str, entries: list[dict[str, Any]], tensors: NamedTensors, rate: float, up: bool, context: float
    ) -> list[CausalTransformer | int]:
        """A patch stays a number; a transformer is built at the rate where it stands."""
        modules: list[CausalTransformer | int] = []
        for i, entry in enumerate(entries):
            where, kind = f"{side}_kwargs[{i}]", entry.get("module_type")
            if kind == "PatchedPretransform":
                size = int(entry["patch_size"])
                rate = rate * size if up else rate / size
                modules.append(size)
            elif kind == "Transformer":
                spec = _transformer_spec(entry, where, rate, self.frame_rate, context)
                modules.append(CausalTransformer(spec, tensors, f"{side}.{i}"))
            else:
                raise CheckpointError(f"{where}.module_type: {kind!r} is not implemented")
        end = float(self.sampling_rate) if up else self.frame_rate
        if rate != end:
            raise CheckpointError(f"{side}_kwargs: the patches end at {rate} Hz, not at {end} Hz")
        return modules

    def check_codes(self, codes: Tensor) -> None:
        """InvalidArgument unless ``codes`` is an integer tensor [T, codebooks] with values in [0, entries)."""
        check_codes(codes, self.codebooks, self.entries)

    def new_state(self, slots: int) -> list[Tensor]:
        """The decoder's streaming state for ``slots`` streams: one history a transformer, see
        CausalTransformer.new_history."""
        return [module.new_history(slots) for module in self._decoder if not isinstance(module, int)]

    def step(self, codes: Tensor, frames: Tensor, slots: Tensor, state: list[Tensor]) -> Tensor:
        """Decode T frames of B streams and move their state on, in place.

        ``codes`` int64 [B, T, codebooks], checked by the caller; ``frames`` int64 [B], frames decoded before;
        ``slots`` int64 [B], all different. Returns float32 [B, T * hop], full scale 1.0. No host synchronisation, no
        shape from data.
        """
        x = self.quantizer.decode(codes)
        histories = iter(state)
        for module in self._decoder:
            if isinstance(module, int):
                x = _spread(x, module)
            else:
                x = module.forward(x, frames, slots, next(histories))
        return x.squeeze(2)

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        """One whole decode: codes [T, codebooks] -> float32 [T * hop]. InvalidArgument for codes out of range."""
        self.check_codes(codes)
        if not codes.shape[0]:
            return torch.zeros(0, device=self.device)
        start = torch.zeros(1, dtype=torch.int64, device=self.device)
        return self.step(codes.to(self.device, torch.int64)[None], start, start, self.new_state(1))[0]

    @torch.inference_mode()
    def encode(self, pcm: Tensor) -> Tensor:
        """Float32 [samples] at ``sampling_rate`` -> codes int64 [ceil(samples / hop), codebooks]; the last frame is
        zero-padded."""
        if pcm.ndim != 1 or not pcm.is_floating_point():
            raise InvalidArgument(
                "pcm", f"{pcm.dtype} of shape {list(pcm.shape)} is not floating point of shape [samples]"
            )
        if not pcm.numel():
            return torch.zeros(0, self.codebooks, dtype=torch.int64, device=self.device)
        x = pcm.to(self.device, torch.float32)
        x = torch.nn.functional.pad(x, (0, -x.numel() % self.hop))[None, :, None]
        start = torch.zeros(1, dtype=torch.int64, device=self.device)
        for module in self.encoder:
            if isinstance(module, int):
                x = _gather(x, module)
            else:
                x = module.forward(x, start, start, module.new_history(1))
        return self.quantizer.encode(x[0])


def _spread(x: Tensor, patch: int) -> Tensor:
    """[B, L, d * patch] -> [B, L * patch, d]: channel ``i * patch + j`` becomes channel ``i`` of step ``j``."""
    batch, steps, channels = x.shape
    return x.view(batch, steps, channels // patch, patch).transpose(2, 3).reshape(batch, steps * patch, -1)


def _gather(x: Tensor, patch: int) -> Tensor:
    """The inverse of :func:`_spread`: [B, L * patch, d] -> [B, L, d * patch]."""
    batch, steps, channels = x.shape
    return x.view(batch, steps // patch, patch, channels).transpose(2, 3).reshape(batch, steps // patch, -1)
