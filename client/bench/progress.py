"""Progress of a level on stderr: one line that rewrites itself on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import asyncio
import sys
from typing import TextIO

from client.bench.load import Load


class LoadProgress:
    """Watches a load. ``label`` begins the line."""

    def __init__(self, label: str, load: Load, out: TextIO | None = None) -> None:
        self._label = label
        self._load = load
        self._out = out if out is not None else sys.stderr
        self._live = self._out.isatty()

    async def watch(self) -> None:
        """Show the load again and again, until cancelled."""
        while True:
            await asyncio.sleep(0.5 if self._live else 10.0)
            self.show()

    def show(self, last: bool = False) -> None:
        """Show it now; ``last`` ends the rewriting line."""
        begin, end = ("\r\x1b[K", "\n" if last else "") if self._live else ("", "\n")
        self._out.write(f"{begin}{self.line()}{end}")
        self._out.flush()

    def line(self) -> str:
        """``c=4: 12 done, 1 error, 4 inside, 3.2 s``."""
        records = self._load.records
        done = sum(record.ok for record in records)
        errors = len(records) - done
        inside = self._load.started - len(records)
        parts = [f"{done} done", f"{errors} error{'' if errors == 1 else 's'}" if errors else "", f"{inside} inside"]
        parts += [f"{self._load.skipped} skipped" if self._load.skipped else "", f"{self._load.now:.1f} s"]
        return f"{self._label}: {', '.join(part for part in parts if part)}"
