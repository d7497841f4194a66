# SPDX-License-Identifier: Apache-2.0
"""Names of images: which of them text lists can not hold, and which no map should.

Knows texts only. Nothing renames an image inside an archive, on purpose;
so names are looked at before photos are concealed.
"""

import unicodedata
from collections.abc import Iterable

SHOWN = 5

NAME_EARLIER = (
    "photos must get other names before they are concealed for the first time; do not rename and conceal them again "
    "if they were lifted: a second lifting reveals the first"
)
NAME_FIRST = "give the photos other names first"
"""What to say before photos are concealed in a way that gives the same descriptor the same result each time."""


def is_listable(name: str) -> bool:
    """Tell whether a list of hloc's can hold a name: no spaces, and no # in front."""
    return name.split() == [name] and not name.startswith("#")


def unlistable(names: Iterable[str]) -> list[str]:
    """Return the names that hloc's lists can not hold."""
    return [name for name in names if not is_listable(name)]


def fault(name: str) -> str:
    """Return why a name must not go where others take it for a path, or an empty text.

    >>> fault("deep/er/a b.jpg"), fault("a/../b.jpg")
    ('', 'it leaves its folder')
    """
    if name.startswith("/"):
        return "it is absolute"
    if ".." in name.split("/"):
        return "it leaves its folder"
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        return "it holds control characters"
    return ""


def some(names: list[str]) -> str:
    """Return the first of several names, as they may be shown, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(f"{name!r:.80}" for name in names[:SHOWN]) + more
