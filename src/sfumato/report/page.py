# SPDX-License-Identifier: Apache-2.0
"""Page of a report: records and pictures as one HTML file that needs no script, font or other file.

The template engine escapes everything that comes from outside, such as names of photos and recipes.
"""

import base64
import re
from collections.abc import Iterable, Sequence
from importlib import resources

from sfumato.report.verdict import RecipeVerdict, verdicts_of
from sfumato.report.words import LEVELS, LIMIT, NOT_TESTED, OPEN, RECOVERED, SEALED, percent
from sfumato.types.record import AttackFacts, Picture, Record, Value

TEMPLATE = "page.html.jinja"
COLUMNS = {
    "leakage": "leakage", "from": "leakage low", "to": "leakage high", "within 0.02": "within 0.02",
    "within 0.1": "within 0.1", "within 0.3": "within 0.3", "lifted within 0.1": "lifted within 0.1",
    "median distance": "median", "SSIM": "ssim", "PSNR": "psnr", "MAE": "mae",
}  # fmt: skip
"""Titles of the table of attacks, and the scores behind them."""
PRINTED = ("leakage", "within 0.1", "within 0.3", "ssim", "task", "recipe", "attack", "distance", "seed", "seconds")
"""Columns of wide tables that fit on paper; the others are on the screen alone."""

FACTS = tuple(AttackFacts(title="").params)
"""Parameters that describe an attack: the list of attackers has them, the table of runs does not."""


def make_page(records: Sequence[Record], pictures: Iterable[Picture] = (), when: str = "") -> str:
    """Return the page; ``when`` is a date to print.

    Raises InputError if the records hold nothing to report.
    """
    from jinja2 import Environment, StrictUndefined

    verdicts = verdicts_of(records)
    lead = next((one for one in verdicts if not one.is_clear), None)
    audit = next((one for one in records if one.task == "audit"), None)
    template = (resources.files("sfumato.report") / "data" / TEMPLATE).read_text(encoding="utf-8")
    engine = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    engine.filters |= {"percent": percent, "figure": figure, "plain": plain_recipe}
    return engine.from_string(template).render(
        verdicts=verdicts,
        lead=lead,
        clear=next((one for one in verdicts if one.is_clear), None),
        headline=headline(lead),
        album=Album(pictures, [one for one in verdicts if one.is_clear or one is lead]),
        audit=audit,
        left_out=left_out(records),
        not_run=not_run(records),
        facts=facts(audit, records),
        runs=runs(records),
        when=when,
        columns=used_columns(verdicts),
        printed=PRINTED,
        levels=LEVELS,
        open_level=OPEN,
        used_attacks=used_attacks(verdicts),
        limit=LIMIT,
        sealed=SEALED,
        not_tested=NOT_TESTED,
    )


def used_columns(verdicts: Sequence[RecipeVerdict]) -> dict[str, str]:
    """Return the columns of the table of attacks in which there is a figure."""
    measured = {name for one in verdicts for attack in one.attacks for name in attack.scores}
    return {title: name for title, name in COLUMNS.items() if name in measured}


def used_attacks(verdicts: Sequence[RecipeVerdict]) -> dict[str, str]:
    """Return what the attackers do and have, by the names of all attacks; the ends of the scale are not among them."""
    attacks = (one for verdict in verdicts for one in verdict.attacks if not one.is_scale)
    return {one.name: one.about for one in attacks}


class Album:
    """Pictures by what they show, as data addresses; ``first`` are the recipes that stand in the first rows."""

    def __init__(self, pictures: Iterable[Picture], first: Sequence[RecipeVerdict]) -> None:
        self._first = first
        self._addresses: dict[tuple[str, str, str, str], str] = {}
        for one in pictures:
            text = base64.b64encode(one.content).decode("ascii")
            self._addresses[one.shows, one.photo, one.recipe, one.attack] = f"data:{one.media};base64,{text}"

    @property
    def photos(self) -> list[str]:
        """The names of the photos that are shown, those with a picture under each of the first recipes before others.

        Where an attack could not be run on a photo, there is no picture.
        """
        names = [photo for shows, photo, _, _ in self._addresses if shows == "photo"]
        return sorted(names, key=lambda photo: not all(self.worst(photo, one) for one in self._first))

    @property
    def pairs(self) -> list[str]:
        """The names of the photos whose matches are shown."""
        return list(dict.fromkeys(photo for shows, photo, _, _ in self._addresses if shows == "matches"))

    def find(self, shows: str, photo: str = "", recipe: str = "", attack: str = "") -> str:
        """Return the address of a picture; empty where there is none."""
        return self._addresses.get((shows, photo, recipe, attack), "")

    def worst(self, photo: str, verdict: RecipeVerdict) -> str:
        """Return the address of what shows most of a photo under a recipe; empty where there is none."""
        return "" if verdict.telling is None else self.find("seen", photo, verdict.recipe, verdict.telling.name)


def headline(lead: RecipeVerdict | None) -> str:
    """Return the verdict in one sentence: about the default recipe, or the one that leaks least."""
    if lead is None:
        return "Clear features show the photos to anyone who holds them."
    name = "the default recipe" if lead.is_default else plain_recipe(lead.recipe)
    if lead.leakage is None:
        return f"What a server sees under {name} could not be measured on these photos."
    if lead.says == RECOVERED:
        return f"Under {name} attackers recover the features themselves."
    sentences = {
        "strong": "a server sees vague shapes at most",
        "outlines": "a server sees outlines: what the photos show may be recognised",
        "open": "little is seen of the photos, but too little was tried to rely on it",
    }
    share = f"a server still sees {percent(lead.leakage)} of what clear features show"
    return f"Under {name} {sentences.get(lead.level.word, share)}."


def left_out(records: Sequence[Record]) -> list[str]:
    """Return the photos that took no part at all, with the reason, each once."""
    return list(dict.fromkeys(line for record in records if record.task == "audit" for line in record.dropped))


def not_run(records: Sequence[Record]) -> list[str]:
    """Return what could not be run on photos that did take part: recipe, attack or matching, photo and reason."""
    lines = []
    for record in records:
        step = str(record.params.get("attack")) if record.task == "leakage" else "matching"
        recipe = plain_recipe(str(record.params.get("recipe")))
        lines += [] if record.task == "audit" else [f"{recipe}, {step}: {line}" for line in record.dropped]
    return list(dict.fromkeys(lines))


def facts(audit: Record | None, records: Sequence[Record]) -> dict[str, Value]:
    """Return what a figure needs to be made again: settings, seed, code, machine."""
    first = audit or records[0]
    values: dict[str, Value] = {"seed": first.seed, "code": first.commit, "photos (digest)": first.data}
    values |= dict(first.params) if audit is not None else {}
    values["seconds"] = round(sum(one.seconds for one in records) if audit is None else audit.seconds, 1)
    return values | dict(first.machine)


def runs(records: Sequence[Record]) -> list[dict[str, Value]]:
    """Return the parameters of every run that differ between runs, with seed and seconds."""
    measured = [one for one in records if one.task not in ("audit", "reference")]
    names = [name for name in dict.fromkeys(name for one in measured for name in one.params) if name not in FACTS]
    varied = [name for name in names if len({str(one.params.get(name)) for one in measured}) > 1]
    return [
        {"task": one.task, **{name: one.params.get(name) for name in varied}, "seed": one.seed,
         "seconds": round(one.seconds, 1)}
        for one in measured
    ]  # fmt: skip


def figure(value: Value) -> str:
    """Return a value of a table: figures with four digits, long digests shortened, nothing for None.

    >>> figure("a45a7b022ab10d7a9bd82ea2e34b6c56")
    'a45a7b022ab1…'
    """
    if value is None:
        return ""
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{24,}", value):
        return f"{value[:12]}…"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def plain_recipe(recipe: str) -> str:
    """Return a recipe without the checksums of its encoders.

    >>> plain_recipe("ninja-sift-2.5@e7f384f586b5+random-2")
    'ninja-sift-2.5+random-2'
    """
    return "clear features" if recipe == "raw" else re.sub("@[0-9a-f]+", "", recipe)
