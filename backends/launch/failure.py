"""The one way in which a launch ends badly: a sentence for the user and an exit code for the shell."""

from __future__ import annotations

#: The command line or a configuration is wrong: nothing was started.
USAGE = 2
#: What was started, or what it met, failed.
RUNTIME = 1


class LaunchError(Exception):
    """``str(error)`` is one sentence. ``exit_code`` is ``USAGE`` or ``RUNTIME``."""

    def __init__(self, sentence: str, exit_code: int = RUNTIME) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
