# SPDX-License-Identifier: Apache-2.0
"""The ``sfumato`` command: one verb per command; each parses, calls one function of the library and prints."""

import signal
import sys
from types import FrameType

__all__ = ["main"]


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends a command as Ctrl-C does, with what is unfinished cleared away, and exit code 143."""


def main() -> None:
    """Run the command; Ctrl-C and SIGTERM end it with one line, during the imports too."""
    signal.signal(signal.SIGTERM, terminate)
    try:
        from sfumato.cli.app import main as run

        run()
    except KeyboardInterrupt as stop:
        print("interrupted: nothing was begun", file=sys.stderr)
        sys.exit(exit_code(stop))


def terminate(number: int, frame: FrameType | None) -> None:
    """Raise Terminated; a second SIGTERM ends the process at once."""
    signal.signal(number, signal.SIG_DFL)
    raise Terminated


def exit_code(stop: KeyboardInterrupt) -> int:
    """Return the exit code of a command that was stopped: 128 and the number of the signal."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)
