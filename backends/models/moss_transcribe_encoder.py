"""The audio encoder of MOSS-Transcribe-Diarize: Whisper's, four states in one, and two linears.

Audio is cut into windows of 30 s, the last one padded with silence; a window knows nothing of the others. Weights load
under their published names (``model.audio_tower.*``, ``model.multi_modal_projector.*``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backends.checkpoint_files import read_tensors
from backends.errors import CheckpointError
from backends.json_file import read_json
from backends.models.config_errors import check_part, check_sizes, config_errors
from backends.models.named_linears import NamedLinears
from backends.models.named_tensors import NamedTensors, RandomTensors
from backends.models.qwen3_asr import MOSS_TYPE, check_config
from backends.models.whisper_config import EncoderConfig
from backends.models.whisper_encoder import WhisperEncoder

_SIZES = (
    "num_mel_bins", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_source_positions",
)  # fmt: skip
_PREFIXES = ("model.audio_tower.", "model.multi_modal_projector.")


def state_count(frames: int, merge: int = 4) -> int:
    """States of a window of ``frames`` mel frames: two frames make one of Whisper's, ``merge`` of these one here; both
    round up.
    """
    return -(-((frames + 1) // 2) // merge)


class MossTranscribeEncoder(nn.Module):
    """Computes whole windows, ``pass_windows`` at a time, at one shape; see :class:`WhisperEncoder`."""

    def __init__(self, config: dict[str, Any], tensors: NamedTensors, pass_windows: int = 1) -> None:
        """``config`` as in ``config.json``; takes the encoder's tensors."""
        super().__init__()
        audio, text = config["audio_config"], config["text_config"]
        width, self.merge = audio["hidden_size"], config["audio_merge_size"]
        sizes = EncoderConfig(
            mels=audio["num_mel_bins"],
            width=width,
            layers=audio["num_hidden_layers"],
            heads=audio["num_attention_heads"],
            ffn=audio["intermediate_size"],
            positions=audio["max_source_positions"],
        )
        self.tower = WhisperEncoder(sizes, tensors, pass_windows, "model.audio_tower")
        self.width, self.eps = text["hidden_size"], text["rms_norm_eps"]
        take = NamedLinears(tensors, "model.multi_modal_projector", self.width)
        bias = config.get("projector_bias", True)
        self.linear_1 = take.one("linear_1", into=width * self.merge, bias=bias)
        self.linear_2, self.norm = take.one("linear_2", bias=bias), take.norm("norm")

    @classmethod
    def load(
        cls, folder: Path, device: torch.device, dtype: torch.dtype, pass_windows: int = 1
    ) -> MossTranscribeEncoder:
        """The encoder of ``folder`` on ``device``. Raises CheckpointError when it does not fit this architecture."""
        config = _read(folder)
        tensors = NamedTensors(read_tensors(folder, _PREFIXES), str(folder), device, dtype)
        encoder = cls(config, tensors, pass_windows)
        tensors.finish()
        return encoder.eval()

    @classmethod
    def dummy(
        cls, folder: Path, device: torch.device, dtype: torch.dtype, pass_windows: int = 1, seed: int = 0
    ) -> MossTranscribeEncoder:
        """The encoder that ``config.json`` of ``folder`` describes, with seeded random weights: for benchmarks."""
        return cls(_read(folder), RandomTensors(seed, device, dtype), pass_windows).eval()

    def forward(self, windows: Tensor, frames: Sequence[int]) -> list[Tensor]:
        """``windows`` float [n, mel bins, frames of a window], of which ``frames`` [n] hold audio -> the states of each
        window, [:func:`state_count`, decoder width]. Raises ValueError where these do not fit.
        """
        limit = self.tower.config.mel_frames
        if len(frames) != len(windows) or not all(0 < count <= limit for count in frames):
            raise ValueError(
                f"{len(windows)} windows with {list(frames)} frames: one number in 1...{limit} is needed each"
            )
        found: list[Tensor] = []
        size = self.tower.pass_clips
        for start in range(0, len(windows), size):
            part = windows[start : start + size]
            states = self.tower(F.pad(part, (0, 0, 0, 0, 0, size - len(part))))
            merged = states.reshape(size, -1, self.merge * states.shape[2])
            out = self.linear_2(F.silu(self.linear_1(merged)))
            out = F.layer_norm(out, (self.width,), *self.norm, self.eps)
            counts = frames[start : start + size]
            found += [own[: state_count(count, self.merge)] for own, count in zip(out, counts, strict=False)]
        return found


def _read(folder: Path) -> dict[str, Any]:
    """``config.json``, checked: what is not implemented is refused by the name of the key."""
    path = folder / "config.json"
    config = read_json(path)
    check_config(config, folder, (MOSS_TYPE,))
    with config_errors(path):
        _check(config)
    return config


def _check(config: dict[str, Any]) -> None:
    audio, text = check_part(config, "audio_config"), check_part(config, "text_config")
    for part, key, value in ((config, "projector_hidden_act", "silu"), (audio, "activation_function", "gelu")):
        if part.get(key, value) != value:
            raise CheckpointError(f"{key} is {part[key]!r}, this build implements {value!r}")
    check_sizes(audio, _SIZES, part="audio_config.")
    check_sizes(text, ("hidden_size",), part="text_config.")
    check_sizes(config, ("audio_merge_size",))
    if audio["hidden_size"] % audio["num_attention_heads"]:
        raise CheckpointError("audio_config.hidden_size is no multiple of num_attention_heads")
    if audio["max_source_positions"] % config["audio_merge_size"]:
        raise CheckpointError("max_source_positions is no multiple of audio_merge_size")
    if not isinstance(text.get("rms_norm_eps"), float):
        raise CheckpointError(f"text_config.rms_norm_eps is {text.get('rms_norm_eps')!r}, expected a number")
