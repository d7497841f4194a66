# SPDX-License-Identifier: Apache-2.0
"""What commands show: progress bars, sizes for people, what became of the images; nothing that acts on a terminal."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

from sfumato.device import Outcome


def progress_bar(
    title: str, total: int | None, *, quiet: bool = False, unit: str | None = None
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a wrapper that shows a bar on a terminal while what it wraps is worked through; ``unit`` a second too."""

    def wrapped(items: Iterable[Any]) -> Iterator[Any]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
        from rich.text import Text

        class Rate(TextColumn):
            def render(self, task: Task) -> Text:
                return Text(f"{task.finished_speed or task.speed or 0:.1f} {unit}/s")

        rate = () if unit is None else (Rate(""),)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *rate, TimeRemainingColumn())
        console = Console(stderr=True)
        count = len(items) if total is None and isinstance(items, Sized) else total
        with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar:
            yield from bar.track(items, total=count, description=title)

    return wrapped


def human_size(count: float) -> str:
    """Return bytes in a form for people: 1.5 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def printable(text: object) -> str:
    """Return a text from a file or a name as it may be shown on a terminal: nothing in it acts."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def tell(line: str, facts: dict[str, Any], *, as_json: bool) -> None:
    """Print one line for a person, or the facts as JSON for a program."""
    print(json.dumps(facts, indent=2, sort_keys=True) if as_json else line)


def warn_about(outcome: Outcome) -> None:
    """Name what could not be used, on standard error."""
    for name, reason in outcome.unreadable.items():
        print(printable(f"skipped {name}: {reason}"), file=sys.stderr)
    for name in outcome.featureless:
        print(printable(f"no features in {name}"), file=sys.stderr)


def outcome_facts(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as plain values."""
    return {
        "images": outcome.images,
        "features": outcome.features,
        "skipped": outcome.skipped,
        "featureless": outcome.featureless,
        "unreadable": outcome.unreadable,
    }
