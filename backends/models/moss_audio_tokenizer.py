"""MOSS-Audio-Tokenizer (``model_type`` ``moss-audio-tokenizer``): a causal codec of windowed transformers without
convolutions.

Reads the published folders by their own tensor names and config keys: this project's small voice, the public 24 kHz
mono release and the public 48 kHz stereo one (v2). v2 models its two channels as one stream of samples in turns, left
first, at twice the sampling rate (``enable_channel_interleave``), so that its last patch yields them as they leave us;
each of its transformers has a window of its own (``context_duration``), and a layer's matrices other names. What a
config may ask for and this file does not implement is refused by key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backends.checkpoint import channel_count
from backends.checkpoint_files import read_tensors
from backends.errors import CheckpointError, Internal, InvalidArgument
from backends.json_file import read_json
from backends.models.causal_transformer import CausalTransformer
from backends.models.codes import check_codes
from backends.models.moss_audio_config import quantizer_spec, transformer_spec
from backends.models.named_tensors import NamedTensors, RandomTensors
from backends.models.residual_quantizer import ResidualQuantizer
from backends.models.ring_transformer import RingTransformer

MODEL_TYPE = "moss-audio-tokenizer"
_V2_NAMES = {
    "self_attn.in_proj.": "self_attn.in_projs.0.",
    "self_attn.out_proj.": "self_attn.out_projs.0.",
    ".ffn.0.": ".linear1.",
    ".ffn.2.": ".linear2.",
}


def _v1_name(name: str) -> str:
    """A tensor's name as the 24 kHz release has it."""
    for v2, v1 in _V2_NAMES.items():
        name = name.replace(v2, v1)
    return name


class MossAudioTokenizer:
    """The codec: ``encode`` and ``decode`` whole signals, ``step`` a chunk of several streams.

    ``sampling_rate`` in Hz, ``hop`` in samples a frame and channel, ``codebooks`` and ``entries`` the sizes of a
    frame's codes. Audio is float32 with the ``channels`` in turns. ``dtype`` is that of the decoder's matrix products:
    float32 on a CPU; on a GPU float32 or bfloat16, where the decoder also runs on other kernels
    (:mod:`backends.models.ring_transformer`). Quantizer and encoder compute in float32.
    ``encoder``: its modules in order; a number is a patch of so many steps. Empty where it was left out.
    """

    GPU_DTYPE = torch.bfloat16

    def __init__(
        self,
        config: dict[str, Any],
        tensors: NamedTensors,
        codebooks: int | None = None,
        dtype: torch.dtype = torch.float32,
        decode_only: bool = False,
    ) -> None:
        if (found := config.get("model_type", MODEL_TYPE)) != MODEL_TYPE:
            raise CheckpointError(f"model_type: {found!r} is not {MODEL_TYPE!r}")
        self.channels = channel_count(config)
        try:
            self.sampling_rate = int(config["sampling_rate"] if "sampling_rate" in config else config["sample_rate"])
            self.hop = int(config["downsample_rate"])
            context = float(config["causal_transformer_context_duration"])
            encoder, decoder = config["encoder_kwargs"], config["decoder_kwargs"]
        except KeyError as error:
            raise CheckpointError(f"{error.args[0]} is missing from the codec's config") from None
        self.frame_rate = self.sampling_rate / self.hop
        self.device, self.dtype = tensors.device, dtype
        self.encoder: list[CausalTransformer | int] = []
        if decode_only:
            tensors.ignore("encoder.")
        else:
            self.encoder = self._modules("encoder", encoder, tensors, False, context)
        self.quantizer = ResidualQuantizer(quantizer_spec(config, codebooks), tensors, "quantizer")
        self._decoder = self._modules("decoder", decoder, tensors, True, context)
        self.codebooks, self.entries = self.quantizer.spec.used, self.quantizer.spec.entries
        tensors.finish()

    @classmethod
    @torch.inference_mode()
    def load(
        cls,
        folder: Path,
        device: str | torch.device = "cpu",
        codebooks: int | None = None,
        dtype: torch.dtype = torch.float32,
        decode_only: bool = False,
    ) -> MossAudioTokenizer:
        """Read a published folder. ``codebooks`` limits the codec to its first ones; ``decode_only`` leaves its encoder
        out. CheckpointError names what is wrong."""
        config = read_json(folder / "config.json")
        stored = {_v1_name(name): tensor for name, tensor in read_tensors(folder).items()}
        tensors = NamedTensors(stored, str(folder), torch.device(device), torch.float32)
        return cls(config, tensors, codebooks, dtype, decode_only)

    @classmethod
    @torch.inference_mode()
    def dummy(
        cls,
        folder: Path,
        device: str | torch.device = "cpu",
        codebooks: int | None = None,
        dtype: torch.dtype = torch.float32,
        decode_only: bool = False,
    ) -> MossAudioTokenizer:
        """The codec that ``config.json`` of ``folder`` describes, with seeded random weights: for benchmarks."""
        tensors = RandomTensors(0, torch.device(device), torch.float32)
        return cls(read_json(folder / "config.json"), tensors, codebooks, dtype, decode_only)

    def _modules(
        self, side: str, entries: list[dict[str, Any]], tensors: NamedTensors, up: bool, context: float
    ) -> list[CausalTransformer | int]:
        """A patch stays a number; a transformer is built at the rate where it stands. ``up``: from frames to
        samples."""
        samples = float(self.sampling_rate * self.channels)
        rate, end = (self.frame_rate, samples) if up else (samples, self.frame_rate)
        last = max((i for i, entry in enumerate(entries) if entry.get("module_type") == "Transformer"), default=-1)
        modules: list[CausalTransformer | int] = []
        for i, entry in enumerate(entries):
            where, kind = f"{side}_kwargs[{i}]", entry.get("module_type")
            if kind == "PatchedPretransform":
                size = int(entry["patch_size"])
                rate = rate * size if up else rate / size
                modules.append(size)
            elif kind == "Transformer":
                spec = transformer_spec(entry, where, rate, self.frame_rate, context)
                if up and (self.device.type == "cuda" or self.dtype != torch.float32):
                    modules.append(RingTransformer(spec, tensors, f"{side}.{i}", self.dtype, exact_output=i == last))
                else:
                    modules.append(CausalTransformer(spec, tensors, f"{side}.{i}"))
            else:
                raise CheckpointError(f"{where}.module_type: {kind!r} is not implemented")
        if rate != end:
            raise CheckpointError(f"{side}_kwargs: the patches end at {rate} Hz, not at {end} Hz")
        return modules

    @property
    def frame_samples(self) -> int:
        """Samples of one frame, all channels together."""
        return self.hop * self.channels

    def check_codes(self, codes: Tensor) -> None:
        """InvalidArgument unless ``codes`` is an integer tensor [T, codebooks] with values in [0, entries)."""
        check_codes(codes, self.codebooks, self.entries)

    def new_state(self, slots: int, step_frames: int) -> list[Tensor]:
        """The decoder's streaming state for ``slots`` streams and steps of up to ``step_frames`` frames: one history a
        transformer, see its ``new_history``."""
        stages = [module for module in self._decoder if not isinstance(module, int)]
        return [
            stage.new_history(slots, step_frames) if isinstance(stage, RingTransformer) else stage.new_history(slots)
            for stage in stages
        ]

    def step(self, codes: Tensor, frames: Tensor, slots: Tensor, state: list[Tensor]) -> Tensor:
        """Decode T frames of B streams and move their state on, in place.

        ``codes`` int64 [B, T, codebooks], checked by the caller; ``frames`` int64 [B], frames decoded before;
        ``slots`` int64 [B], all different. Returns float32 [B, T * hop * channels], full scale 1.0. No host
        synchronisation, no shape from data.
        """
        x = self.quantizer.decode(codes)
        histories = iter(state)
        for module in self._decoder:
            if isinstance(module, int):
                x = _spread(x, module)
            else:
                x = module.forward(x, frames, slots, next(histories))
        return x.squeeze(2).float()

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        """One whole decode: codes [T, codebooks] -> float32 [T * hop * channels]. InvalidArgument for codes out of
        range."""
        self.check_codes(codes)
        if not codes.shape[0]:
            return torch.zeros(0, device=self.device)
        start = torch.zeros(1, dtype=torch.int64, device=self.device)
        return self.step(codes.to(self.device, torch.int64)[None], start, start, self.new_state(1, len(codes)))[0]

    @torch.inference_mode()
    def encode(self, pcm: Tensor) -> Tensor:
        """Float32 [samples * channels] at ``sampling_rate`` -> codes int64 [ceil(samples / hop), codebooks]; the last
        frame is zero-padded."""
        if pcm.ndim != 1 or not pcm.is_floating_point():
            raise InvalidArgument(
                "pcm", f"{pcm.dtype} of shape {list(pcm.shape)} is not floating point of shape [samples]"
            )
        if not self.encoder:
            raise Internal("encode: the codec was loaded to decode only")
        if not pcm.numel():
            return torch.zeros(0, self.codebooks, dtype=torch.int64, device=self.device)
        x = pcm.to(self.device, torch.float32)
        x = torch.nn.functional.pad(x, (0, -x.numel() % self.frame_samples))[None, :, None]
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
