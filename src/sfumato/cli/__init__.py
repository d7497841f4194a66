# SPDX-License-Identifier: Apache-2.0
"""The ``sfumato`` command: one verb a command, each parses, makes one library call and says what it did."""

from sfumato.cli.app import main

__all__ = ["main"]
