"""Triton's log: read line by line, kept for the last words, shown in part, and searched for what it alone tells."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections import deque
from typing import IO

#: Lines kept to explain a failure.
KEPT = 50

_LEVEL = re.compile(r"^(?P<level>[IWEF])\d{4} \d\d:\d\d:\d\d")
_LOADED = re.compile(r"successfully loaded '(?P<name>[^']+)'")
_FAILED = re.compile(r"failed to load '(?P<name>[^']+)' version \d+: (?P<why>.*)")
_POLL = re.compile(r"Poll failed for model directory '(?P<name>[^']+)': (?P<why>.*)")
_ENSEMBLE = re.compile(r"(?P<why>(?:in )?ensemble '?(?P<name>[^' ]+)'?.*)")
_STATUS = re.compile(
    r"^(?:Internal|Invalid argument|Unavailable|Unknown|Not found|Unsupported|TritonModelException)(?: -|:) "
)
_FILE = re.compile(r"\s+At:\s.*", re.DOTALL)
#: A failure to load that the launch's last sentence tells in full, and what only repeats it.
_TOLD = re.compile(
    r"(?:Failed to create instance|failed to load '[^']+' version \d+):.* "
    r"(?:(?:INVALID_ARG|INVALID_CHECKPOINT|UNAVAILABLE|INTERNAL) |Stub process '[^']+' is not healthy)"
    r"|depends on '[^']+' which has no loaded version"
)
_LAST_WORDS = "error: creating server: "
#: What Triton says on every machine without a GPU, and what needs no attention there.
_NOISE = (
    "CUDA driver version is insufficient",
    "CudaDriverHelper has not been initialized",
    "pinned system memory",
    "Failed to initialize NVML",
)


class TritonLog:
    """Reads ``stream`` on a thread of its own. ``show_all`` passes every line on; else only warnings and errors."""

    def __init__(self, stream: IO[str], show_all: bool) -> None:
        self.loaded: set[str] = set()
        self.failed: dict[str, str] = {}
        #: What a stage's process said when it ended before Triton knew it. Triton logs it as mere information.
        self.stub_error: str | None = None
        self.address_in_use: str | None = None
        #: True once Triton, asked to end, has said that no request is in flight.
        self.drained = False
        self.last: deque[str] = deque(maxlen=KEPT)
        self._show_all = show_all
        self._thread = threading.Thread(target=self._read, args=(stream,), name="triton-log", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait until the stream has ended, so that the last words are in."""
        self._thread.join(seconds)

    def last_error(self) -> str | None:
        """The last line that Triton marked as an error, without time and file; None where there is none."""
        for line in reversed(self.last):
            if line[:1] in "EF" and _LEVEL.match(line):
                return clean(line)
        return None

    def _read(self, stream: IO[str]) -> None:
        ending = False
        for line in stream:
            line = line.rstrip("\n")
            self._note(line)
            ending = ending or line.startswith(_LAST_WORDS)  # then it repeats all its errors, over many lines
            if self._show_all or (not ending and _worth_showing(line)):
                print(line, file=sys.stderr, flush=True)

    def _note(self, line: str) -> None:
        self.last.append(line)
        level = _LEVEL.match(line)
        if level is None:
            return
        if loaded := _LOADED.search(line):
            self.loaded.add(loaded["name"])
        elif "Failed to preinitialize Python stub" in line:
            self.stub_error = first_sentence(clean(line))
        elif "Found 0 model versions that have in-flight inferences" in line:
            self.drained = True
        elif level["level"] in "EF":
            text = clean(line)
            if "already in use" in text:
                self.address_in_use = text
            for pattern in (_FAILED, _POLL, _ENSEMBLE):
                if failed := pattern.search(text):
                    self.failed.setdefault(failed["name"], first_sentence(failed["why"]))
                    break


def clean(line: str) -> str:
    """``E0102 03:04:05.678 9 file.cc:1] "some \\"text\\""`` → ``some "text"``, without a status word in front."""
    text = line.split("] ", 1)[-1].strip()
    if text.startswith('"') and text.endswith('"'):
        try:
            text = json.loads(text)
        except ValueError:
            text = text[1:-1]
    return text


def first_sentence(text: str) -> str:
    """What a stage's exception says: no status words, no wrapping exception, no traceback, one line."""
    text = _FILE.sub("", text)
    while status := _STATUS.match(text):
        text = text[status.end() :]
    return " ".join(text.split())


def _worth_showing(line: str) -> bool:
    level = _LEVEL.match(line)
    if level is not None:
        return level["level"] != "I" and not _TOLD.search(line) and not any(noise in line for noise in _NOISE)
    # Neither tables nor Triton's greeting of a signal; anything else comes from a stage.
    return bool(line.strip()) and line[0] not in "+|" and not line.startswith("Signal (")
