# SPDX-License-Identifier: Apache-2.0
"""The ``sfumato`` command: one verb per command; each parses, calls one function of the library and prints."""

import signal
import sys
from types import FrameType

__all__ = ["main"]


_terminations: list[int] = []
"""SIGTERM, once it was received. Libraries may turn an exception into another, so no class tells."""


def main() -> None:
    """Run the command; Ctrl-C and SIGTERM end it with one line, during the imports too."""
    signal.signal(signal.SIGTERM, terminate)
    try:
        from sfumato.cli.app import main as run

        run()
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and not _terminations:  # where no command runs yet click makes an exit of it
            raise
        print("interrupted: nothing was begun", file=sys.stderr)
        sys.exit(exit_code())


def terminate(number: int, frame: FrameType | None) -> None:
    """End a command as Ctrl-C does, with what is unfinished cleared away; a second SIGTERM ends it at once."""
    signal.signal(number, signal.SIG_DFL)
    _terminations.append(number)
    raise KeyboardInterrupt


def exit_code() -> int:
    """Return the exit code of a command that was stopped: 128 and the number of the signal."""
    return 128 + (_terminations.pop() if _terminations else signal.SIGINT)
