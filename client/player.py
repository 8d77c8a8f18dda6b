"""Playing audio while it arrives, through whichever common player is installed."""

from __future__ import annotations

import contextlib
import shutil
import subprocess

import numpy as np

from client.chunk import as_int16
from client.errors import SpeechError

# In the order of preference. All read little-endian 16-bit PCM from stdin; {rate} is the sample rate.
_LAYOUT = ("-ch_layout", "stereo")
PLAYERS: dict[str, tuple[str, ...]] = {
    "ffplay": (
        "-loglevel",
        "error",
        "-nodisp",
        "-autoexit",
        "-f",
        "s16le",
        "-sample_rate",
        "{rate}",
        *_LAYOUT,
        "-i",
        "-",
    ),
    "aplay": ("-q", "-t", "raw", "-f", "S16_LE", "-r", "{rate}", "-c", "{channels}", "-"),
    "paplay": ("--raw", "--format=s16le", "--rate={rate}", "--channels={channels}"),
    "play": ("-q", "-t", "raw", "-r", "{rate}", "-e", "signed-integer", "-b", "16", "-c", "{channels}", "-"),
}


class PlayerError(SpeechError):
    """No player is installed, or the one that is stopped early."""

    code = "PLAYER"


def find_player() -> str:
    """Name of the first player found in PATH. Raises PlayerError when there is none."""
    for name in PLAYERS:
        if shutil.which(name):
            return name
    raise PlayerError(f"There is no player on this machine. Install one of {', '.join(PLAYERS)}, or leave out --play")


class Player:
    """A running player. ``write`` blocks while the player's buffer is full, that is: at the speed of playback."""

    def __init__(self, name: str, sample_rate: int, channels: int = 1) -> None:
        self.name = name
        # ffplay takes raw audio for mono, and older ones do not know how to be told so.
        arguments = [argument for argument in PLAYERS[name] if channels > 1 or argument not in _LAYOUT]
        command = [name, *(argument.format(rate=sample_rate, channels=channels) for argument in arguments)]
        # A process group of its own: Ctrl-C is ours to handle, and stop() ends the player.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def write(self, audio: np.ndarray) -> None:
        """Play ``audio`` [n], int16 or float in -1…1. Raises PlayerError when the player has gone."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(as_int16(audio).tobytes())
            stdin.flush()
        except BrokenPipeError:
            raise PlayerError(
                f"{self.name} stopped before the end (exit code {self._process.wait()}). Is there a sound device?"
            ) from None

    def close(self) -> None:
        """Let the player play what it has, and wait for it. Raises PlayerError when it failed."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()
        if self._process.returncode:
            raise PlayerError(f"{self.name} failed with exit code {self._process.returncode}. Is there a sound device?")

    def stop(self) -> None:
        """End the player now. Does nothing when it has ended."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
