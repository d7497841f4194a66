# SPDX-License-Identifier: Apache-2.0
"""The ``sfumato`` command: one verb a command, each parses, makes one library call and says what it did."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command; Ctrl-C while it is still being loaded ends it without a word."""
    try:
        from sfumato.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
