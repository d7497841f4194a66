# SPDX-License-Identifier: Apache-2.0
"""Lets ``python -m sfumato.cli`` be the same as ``sfumato``."""

from sfumato.cli import main

if __name__ == "__main__":
    main()
