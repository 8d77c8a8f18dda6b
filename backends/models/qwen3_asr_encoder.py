"""The audio encoder of Qwen3-ASR: log-mel frames -> states that stand in the decoder's prompt.

Frames are cut into chunks of 1 s, which three convolutions reduce to 13 tokens each, by themselves; layers then attend
inside windows of 8 chunks. So a window knows nothing of any other, of its own clip or of another one, and is what this
encoder computes. Two linears at the end take its states to the decoder's width. Weights load under their published
names (``model.audio_tower.*``, ``model.multi_modal_projector.*``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backends.checkpoint_files import read_tensors
from backends.encoder.metrics import EncoderMetrics
from backends.encoder.pass_graphs import PassGraphs
from backends.errors import CheckpointError
from backends.json_file import read_json
from backends.models.config_errors import check_part, check_sizes, config_errors
from backends.models.named_linears import NamedLinears
from backends.models.named_tensors import NamedTensors, RandomTensors
from backends.models.qwen3_asr import MODEL_TYPE, check_config

_PREFIXES = ("model.audio_tower.", "model.multi_modal_projector.")
_SIZES = (
    "num_mel_bins", "d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "n_window",
    "n_window_infer", "downsample_hidden_size", "output_dim", "max_position_embeddings",
)  # fmt: skip
_EPS = 1e-5
_MAX_TIMESCALE = 10_000.0


def token_count(frames: int, chunk: int = 100) -> int:
    """States of a clip of ``frames`` mel frames: 13 for each whole chunk of 100, and what three halvings, each rounded
    up, leave of the rest.
    """
    whole, rest = divmod(frames, chunk)
    return whole * _halved(chunk) + _halved(rest)


class _Layer(nn.Module):
    def __init__(self, config: dict[str, Any], tensors: NamedTensors, index: int) -> None:
        super().__init__()
        take = NamedLinears(tensors, f"model.audio_tower.layers.{index}", config["d_model"])
        self.heads = config["encoder_attention_heads"]
        self.norm1, self.norm2 = take.norm("self_attn_layer_norm"), take.norm("final_layer_norm")
        self.qkv, self.out = take.fused("self_attn", key_bias=True), take.one("self_attn.out_proj")
        self.fc1 = take.one("fc1", out=config["encoder_ffn_dim"])
        self.fc2 = take.one("fc2", into=config["encoder_ffn_dim"])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """``x`` [windows, tokens, width], ``mask`` bool [windows, 1, 1, tokens]: what may be seen -> like ``x``."""
        windows, tokens, width = x.shape
        qkv = self.qkv(F.layer_norm(x, (width,), *self.norm1, _EPS))
        q, k, v = qkv.view(windows, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(windows, tokens, width)
        x = x + self.out(mixed)
        return x + self.fc2(F.gelu(self.fc1(F.layer_norm(x, (width,), *self.norm2, _EPS))))


class Qwen3ASREncoder(nn.Module):
    """Encodes clips together and each as if it were alone, to the bit.

    A pass computes ``pass_windows`` windows of equally many chunks, at one shape for each number of chunks (1 ... 8): a
    last chunk is padded with silent frames to its second and the tokens of these are masked, and a pass that is not
    full is filled with empty windows. So a window's sums depend on its own frames and on its number of chunks. The
    price is the filling: at most 12 tokens a clip, and up to ``pass_windows`` - 1 windows for each number of chunks
    that a call contains. One window a pass, the default, fills nothing and is right for a CPU.
    """

    def __init__(self, config: dict[str, Any], tensors: NamedTensors, pass_windows: int = 1) -> None:
        """``config`` as in ``config.json``; takes the encoder's tensors."""
        super().__init__()
        if pass_windows < 1:
            raise ValueError(f"pass_windows: {pass_windows} is below 1")
        audio = config["audio_config"]
        self.device, self.dtype, self.pass_windows = tensors.device, tensors.dtype, pass_windows
        self.mels, self.width = audio["num_mel_bins"], audio["d_model"]
        self.chunk = 2 * audio["n_window"]
        self.window = audio["n_window_infer"] // self.chunk
        channels, tower = audio["downsample_hidden_size"], "model.audio_tower"
        # cuDNN computes channels-last, and converts every input and output of another order.
        self.order = torch.channels_last if self.device.type == "cuda" else torch.contiguous_format
        self.convs = [
            (
                tensors.take(f"{tower}.conv2d{index}.weight", channels, channels if index > 1 else 1, 3, 3).contiguous(
                    memory_format=self.order
                ),
                tensors.take(f"{tower}.conv2d{index}.bias", channels),
            )
            for index in (1, 2, 3)
        ]
        take = NamedLinears(tensors, tower, self.width)
        self.conv_out = take.one("conv_out", into=channels * _halved(self.mels), bias=False)
        self.layers = nn.ModuleList(_Layer(audio, tensors, index) for index in range(audio["encoder_layers"]))
        self.norm = take.norm("ln_post")
        project = NamedLinears(tensors, "model.multi_modal_projector", self.width)
        self.linear_1, self.linear_2 = project.one("linear_1"), project.one("linear_2", out=audio["output_dim"])
        self.graphs: PassGraphs | None = None
        self.places = _sinusoids(audio["max_position_embeddings"], self.width).to(self.device, self.dtype)

    @classmethod
    def load(cls, folder: Path, device: torch.device, dtype: torch.dtype, pass_windows: int = 1) -> Qwen3ASREncoder:
        """The encoder of ``folder`` on ``device``. Raises CheckpointError when it does not fit this architecture."""
        config = _read(folder)
        tensors = NamedTensors(read_tensors(folder, _PREFIXES), str(folder), device, dtype)
        encoder = cls(config, tensors, pass_windows)
        tensors.finish()
        return encoder.eval()

    @classmethod
    def dummy(
        cls, folder: Path, device: torch.device, dtype: torch.dtype, pass_windows: int = 1, seed: int = 0
    ) -> Qwen3ASREncoder:
        """The encoder that ``config.json`` of ``folder`` describes, with seeded random weights: for benchmarks."""
        config = _read(folder)
        return cls(config, RandomTensors(seed, device, dtype), pass_windows).eval()

    def forward(self, clips: Sequence[Tensor]) -> list[Tensor]:
        """Each of ``clips`` float [mel bins, frames] -> its states [:func:`token_count`, decoder width].

        Raises ValueError for another number of bins, or no frames.
        """
        return self.begin(clips)()

    def begin(self, clips: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        """Start :meth:`forward`: on a GPU all passes are queued when this returns, and the result waits for them."""
        for clip in clips:
            if clip.ndim != 2 or clip.shape[0] != self.mels or not clip.shape[1]:
                raise ValueError(f"clip {list(clip.shape)}: {self.mels} mel bins and at least one frame are needed")
        # Windows by their number of chunks, each with its place: (clip, number in it).
        sizes: dict[int, list[tuple[int, int, Tensor]]] = {}
        for index, clip in enumerate(clips):
            for number, frames in enumerate(clip.split(self.window * self.chunk, dim=1)):
                sizes.setdefault(-(-frames.shape[1] // self.chunk), []).append((index, number, frames))
        passes = []
        for chunks, windows in sizes.items():
            for start in range(0, len(windows), self.pass_windows):
                part = windows[start : start + self.pass_windows]
                passes.append((part, self._pass(chunks, [frames for _, _, frames in part])))
        done: torch.cuda.Event | None = None
        if self.device.type == "cuda":
            done = torch.cuda.Event(blocking=True)  # it need not spin: the host is ahead
            done.record(torch.cuda.current_stream(self.device))

        def end() -> list[Tensor]:
            if done is not None:
                done.synchronize()
            found: list[dict[int, Tensor]] = [{} for _ in clips]
            for part, states in passes:
                for (index, number, frames), own in zip(part, states, strict=False):
                    found[index][number] = own[: token_count(frames.shape[1], self.chunk)]
            return [torch.cat([parts[number] for number in range(len(parts))]) for parts in found]

        return end

    def _pass(self, chunks: int, windows: list[Tensor]) -> Tensor:
        """Up to ``pass_windows`` windows of ``chunks`` chunks -> [pass_windows, tokens of all chunks, output width].

        On a GPU: float32, on the host, where one copy brings all of them, some time later.
        """
        on_gpu = self.device.type == "cuda"
        mels = torch.zeros(self.pass_windows, self.mels, chunks * self.chunk, pin_memory=on_gpu)
        counts = [token_count(window.shape[1], self.chunk) for window in windows]
        counts += [1] * (self.pass_windows - len(windows))  # an empty window sees its first token
        for row, window in enumerate(windows):
            mels[row, :, : window.shape[1]] = window
        lengths = torch.tensor(counts)
        if not on_gpu:
            return self._compute(mels, lengths)
        lengths = lengths.pin_memory()
        states = self.graphs.replay(chunks, mels, lengths) if self.graphs is not None else None
        if states is None:
            states = self._compute(mels.to(self.device, non_blocking=True), lengths.to(self.device, non_blocking=True))
        host = torch.empty(states.shape, pin_memory=True)
        host.copy_(states.float(), non_blocking=True)
        return host

    def capture(self, metrics: EncoderMetrics, min_free: int) -> None:
        """Make CUDA graphs of all passes, for the calling thread; ``min_free``: bytes that must stay free."""
        self.graphs = PassGraphs(self.device, metrics)

        def inputs(chunks: int) -> tuple[Tensor, Tensor]:
            mels = torch.zeros(self.pass_windows, self.mels, chunks * self.chunk, device=self.device)
            return mels, torch.ones(self.pass_windows, dtype=torch.int64, device=self.device)

        self.graphs.capture(self._compute, range(self.window, 0, -1), inputs, min_free)

    def _compute(self, mels: Tensor, lengths: Tensor) -> Tensor:
        """A pass on the device. ``mels`` float32 [pass_windows, mel bins, frames of all chunks]; ``lengths`` int64
        [pass_windows], tokens that may be seen.
        """
        chunks = mels.shape[2] // self.chunk
        x = mels.to(self.dtype).view(self.pass_windows, self.mels, chunks, self.chunk)
        x = x.transpose(1, 2).reshape(-1, 1, self.mels, self.chunk).contiguous(memory_format=self.order)
        # cuDNN divides the sums of some images of a batch and not those of others (H200: of most sizes that a pass can
        # have), so that a window's bits would depend on its place. By itself each has the same shape.
        x = torch.cat([self._reduce(window) for window in x.split(chunks)]) if x.is_cuda else self._reduce(x)
        x = self.conv_out(x) + self.places[: x.shape[1]]
        x = x.reshape(self.pass_windows, -1, self.width)
        seen = torch.arange(x.shape[1], device=self.device) < lengths[:, None]
        mask = seen[:, None, None]
        for layer in self.layers:
            x = layer(x, mask)
        x = F.layer_norm(x, (self.width,), *self.norm, _EPS)
        return self.linear_2(F.gelu(self.linear_1(x)))

    def _reduce(self, x: Tensor) -> Tensor:
        """Chunks [N, 1, mel bins, frames] -> what the convolutions leave of them, [N, tokens, channels x bins]."""
        for weight, bias in self.convs:
            x = F.gelu(F.conv2d(x, weight, bias, stride=2, padding=1))
        return x.permute(0, 3, 1, 2).flatten(2)


def _halved(count: int) -> int:
    """What three convolutions of stride 2 leave of ``count``."""
    for _ in range(3):
        count = -(-count // 2)
    return count


def _sinusoids(length: int, width: int) -> Tensor:
    """Positions as sines, then cosines, of ``width`` / 2 frequencies (Vaswani et al. 2017): [length, width]."""
    step = torch.log(torch.tensor(_MAX_TIMESCALE)) / (width // 2 - 1)
    angles = torch.arange(length)[:, None] * torch.exp(-step * torch.arange(width // 2))
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def _read(folder: Path) -> dict[str, Any]:
    """``config.json``, checked: what is not implemented is refused by the name of the key."""
    path = folder / "config.json"
    config = read_json(path)
    check_config(config, folder, (MODEL_TYPE,))
    with config_errors(path):
        _check(check_part(config, "audio_config"))
    return config


def _check(audio: dict[str, Any]) -> None:
    implemented = {"activation_function": "gelu", "scale_embedding": False}
    for key, value in implemented.items():
        if audio.get(key, value) != value:
            raise CheckpointError(f"{key} is {audio[key]!r}, this build implements {value!r}")
    check_sizes(audio, _SIZES, part="audio_config.")
    if audio["d_model"] % audio["encoder_attention_heads"]:
        raise CheckpointError("audio_config.d_model is no multiple of encoder_attention_heads")
    if audio["n_window_infer"] % (2 * audio["n_window"]):
        raise CheckpointError("n_window_infer is no multiple of twice n_window")
    if audio["max_position_embeddings"] < _halved(2 * audio["n_window"]):
        raise CheckpointError("max_position_embeddings is below the tokens of one chunk")
