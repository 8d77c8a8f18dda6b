"""What a clip may be. Read from the codec's config alone: no weights, no torch, and no NumPy for ``serve.py``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.checkpoint import channel_count
from backends.errors import CheckpointError, InvalidArgument
from backends.json_file import read_json

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Codecs whose encoder is implemented, by ``model_type``.
ENCODERS = ("moss-audio-tokenizer",)


def no_encoder(folder: Path) -> str | None:
    """Why clips cannot be encoded with the codec in ``folder``, as a sentence's end; None where they can."""
    kind = read_json(folder / "config.json").get("model_type")
    if kind in ENCODERS:
        return None
    return f"the codec of this checkpoint ({kind}) only decodes here; clips need {' or '.join(ENCODERS)}"


@dataclass(frozen=True, slots=True)
class ClipLimits:
    """``sampling_rate`` in Hz, ``hop`` in samples a frame and channel; a clip has 1 ... ``max_frames`` whole frames,
    which ``max_seconds`` hold.
    """

    sampling_rate: int
    hop: int
    max_seconds: float
    channels: int = 1

    @property
    def max_frames(self) -> int:
        """Frames of the longest clip."""
        return frames_of(self.max_seconds, self.sampling_rate, self.hop)

    @property
    def frame_samples(self) -> int:
        """Samples of one frame, all channels together."""
        return self.hop * self.channels

    @classmethod
    def load(cls, folder: Path, max_seconds: float) -> ClipLimits:
        """For the codec in ``folder``. CheckpointError where its config does not say what is needed."""
        config = read_json(folder / "config.json")
        try:
            rate = int(config["sampling_rate"] if "sampling_rate" in config else config["sample_rate"])
            hop = int(config["downsample_rate"])
        except KeyError as error:
            raise CheckpointError(f"{error.args[0]} is missing from {folder / 'config.json'}") from None
        return cls(rate, hop, max_seconds, channel_count(config))

    def check(self, audio: NDArray[Any]) -> None:
        """InvalidArgument unless ``audio`` is float32 [1, samples], whole frames within the limit, all finite;
        the samples of two channels stand in turns."""
        if audio.dtype != "float32" or audio.ndim != 2 or audio.shape[0] != 1:
            shown = f"{audio.dtype} of shape {list(audio.shape)}"
            raise InvalidArgument("audio", f"{shown} is not float32 [1, samples]: one clip a request")
        samples = audio.shape[1]
        if samples == 0:
            raise InvalidArgument("audio", f"has 0 samples; one frame of {self.frame_samples} is the least")
        frames, rest = divmod(samples, self.frame_samples)
        if rest:
            raise InvalidArgument(
                "audio",
                f"{samples} samples are not a whole number of frames of {self.frame_samples}: pad it with zeros",
            )
        if frames > self.max_frames:
            raise InvalidArgument(
                "audio",
                f"{frames * self.hop / self.sampling_rate:.2f} s ({frames} frames) is above "
                f"{self.max_frames * self.hop / self.sampling_rate:.2f} s ({self.max_frames} frames), the longest clip",
            )
        import numpy as np  # not at the top: serve.py reads limits, and no clips

        finite = np.isfinite(audio[0])
        if not finite.all():
            at = int(np.argmin(finite))
            raise InvalidArgument("audio", f"sample {at} is {audio[0, at]}, not a finite number")


def frames_of(seconds: float, sampling_rate: int, hop: int) -> int:
    """Whole frames that ``seconds`` hold, one at least."""
    return max(1, int(seconds * sampling_rate / hop))
