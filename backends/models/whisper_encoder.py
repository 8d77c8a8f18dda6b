"""The encoder of Whisper: 30 s of log-mel frames -> one state every 20 ms."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backends.checkpoint_files import read_tensors
from backends.models.named_linears import NamedLinears
from backends.models.named_tensors import NamedTensors, RandomTensors
from backends.models.whisper_config import EncoderConfig, WhisperConfig

_EPS = 1e-5


class _Layer(nn.Module):
    def __init__(self, config: EncoderConfig, tensors: NamedTensors, prefix: str, index: int) -> None:
        super().__init__()
        take = NamedLinears(tensors, f"{prefix}.layers.{index}", config.width)
        self.heads = config.heads
        self.norm1, self.norm2 = take.norm("self_attn_layer_norm"), take.norm("final_layer_norm")
        self.qkv, self.out = take.fused("self_attn"), take.one("self_attn.out_proj")
        self.fc1 = take.one("fc1", out=config.ffn)
        self.fc2 = take.one("fc2", into=config.ffn)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [clips, positions, width] -> the same."""
        clips, positions, width = x.shape
        normed = F.layer_norm(x, (width,), *self.norm1, _EPS)
        shape = (clips, positions, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(normed).view(shape).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(clips, positions, width)
        x = x + self.out(mixed)
        return x + self.fc2(F.gelu(self.fc1(F.layer_norm(x, (width,), *self.norm2, _EPS))))


class WhisperEncoder(nn.Module):
    """Runs at one shape: ``pass_clips`` clips at a time, so that a clip's states do not depend on its neighbours.

    A pass that is not full is filled with silence, which costs what a clip costs. On a CPU one clip a pass loses
    nothing (1,500 rows keep it busy) and is the default; a GPU wants more.
    """

    def __init__(
        self, config: EncoderConfig, tensors: NamedTensors, pass_clips: int = 1, prefix: str = "model.encoder"
    ) -> None:
        """Takes the encoder's tensors, whose names begin with ``prefix``."""
        super().__init__()
        if pass_clips < 1:
            raise ValueError(f"pass_clips: {pass_clips} is below 1")
        self.config, self.device, self.dtype = config, tensors.device, tensors.dtype
        self.pass_clips, width = pass_clips, config.width
        self.conv1 = tensors.take(f"{prefix}.conv1.weight", width, config.mels, 3)
        self.bias1 = tensors.take(f"{prefix}.conv1.bias", width)
        self.conv2 = tensors.take(f"{prefix}.conv2.weight", width, width, 3)
        self.bias2 = tensors.take(f"{prefix}.conv2.bias", width)
        self.places = tensors.take(f"{prefix}.embed_positions.weight", config.positions, width)
        self.layers = nn.ModuleList(_Layer(config, tensors, prefix, index) for index in range(config.layers))
        self.norm = NamedLinears(tensors, prefix, width).norm("layer_norm")

    @classmethod
    def load(cls, folder: Path, device: torch.device, dtype: torch.dtype, pass_clips: int = 1) -> WhisperEncoder:
        """The encoder of ``folder`` on ``device``. Raises CheckpointError when it does not fit this architecture."""
        tensors = NamedTensors(read_tensors(folder, ("model.encoder.",)), str(folder), device, dtype)
        encoder = cls(WhisperConfig.load(folder).encoder, tensors, pass_clips)
        tensors.finish()
        return encoder.eval()

    @classmethod
    def dummy(
        cls, folder: Path, device: torch.device, dtype: torch.dtype, pass_clips: int = 1, seed: int = 0
    ) -> WhisperEncoder:
        """The encoder that ``config.json`` of ``folder`` describes, with seeded random weights: for benchmarks."""
        return cls(WhisperConfig.load(folder).encoder, RandomTensors(seed, device, dtype), pass_clips).eval()

    def forward(self, mels: Tensor) -> Tensor:
        """``mels`` float [clips, mel bins, frames] of whole windows -> states [clips, positions, width].

        Raises ValueError for another number of bins or frames.
        """
        want = (self.config.mels, self.config.mel_frames)
        if mels.ndim != 3 or tuple(mels.shape[1:]) != want:
            raise ValueError(f"mels {list(mels.shape)}: each clip must be {list(want)}")
        mels = mels.to(self.device, self.dtype)
        states = []
        for part in mels.split(self.pass_clips):
            missing = self.pass_clips - len(part)
            states.append(self._pass(F.pad(part, (0, 0, 0, 0, 0, missing)))[: len(part)])
        return torch.cat(states) if states else mels.new_zeros(0, self.config.positions, self.config.width)

    def _pass(self, mels: Tensor) -> Tensor:
        x = F.gelu(F.conv1d(mels, self.conv1, self.bias1, padding=1))
        x = F.gelu(F.conv1d(x, self.conv2, self.bias2, stride=2, padding=1)).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        return F.layer_norm(x, (self.config.width,), *self.norm, _EPS)
