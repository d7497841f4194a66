# SPDX-License-Identifier: Apache-2.0
"""The ``sfumato`` command: one verb per command; each parses, calls one function of the library and prints."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command; Ctrl-C during the imports ends it silently."""
    try:
        from sfumato.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
