# SPDX-License-Identifier: Apache-2.0
"""Extractor of a descriptor: the program that made it, with every setting. Public: it stays with what is concealed."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sfumato.errors import InputError

Setting = str | int | float | bool | None

GENERIC_EXTRACTORS = ("unknown", "hloc")
"""Names of extractors that do not say what a descriptor is."""


@dataclass(frozen=True, slots=True)
class Extractor:
    """The kind of a descriptor and how it was made.

    Two descriptors can be compared, and a decoy can stand in for a descriptor, when ``name`` is the same;
    ``settings`` say how many there are and where they sit. ``unknown`` stands for plain arrays.

    >>> Extractor("sift", {"max_features": 8000}).name
    'sift'
    """

    name: str = "unknown"
    settings: Mapping[str, Setting] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not is_label(self.name):
            raise InputError(f"extractor name must be a short, non-empty text, got {self.name!r:.80}")
        if not isinstance(self.settings, Mapping):
            raise InputError(f"extractor settings must be a mapping, got {type(self.settings).__name__}")
        for key, value in self.settings.items():
            if not is_label(key) or not _is_setting(value):
                raise InputError(
                    f"extractor setting {key!r:.80} must be a short text, finite number, truth value or None"
                )
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))

    def to_json(self) -> str:
        """Return the one text form: sorted keys, no spaces."""
        return json.dumps(
            {"name": self.name, "settings": dict(self.settings)},
            sort_keys=True,
            separators=(",", ":"),
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, text: str) -> "Extractor":
        """Read what ``to_json`` wrote; anything else is an InputError."""
        try:
            data: Any = json.loads(text)
        except (ValueError, RecursionError) as cause:
            raise InputError("extractor is not valid JSON") from cause
        if not isinstance(data, dict) or set(data) != {"name", "settings"}:
            raise InputError("extractor must have exactly the keys name and settings")
        return cls(data["name"], data["settings"])

    def __repr__(self) -> str:
        return f"Extractor({self.name!r}, {len(self.settings)} settings)"

    def matches(self, other: "Extractor") -> bool:
        """Tell whether descriptors of the two live in one space, as far as anyone can know."""
        return "unknown" in (self.name, other.name) or self.name == other.name


def is_label(text: Any) -> bool:
    """Tell whether this is a short text that can be shown on a terminal as it is."""
    return isinstance(text, str) and bool(text.strip()) and len(text) <= 200 and text.isprintable()


def _is_setting(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= 4096 and value.isprintable()
    if isinstance(value, int):
        return abs(value) < 2**63
    return value is None or (isinstance(value, float) and math.isfinite(value))
