# SPDX-License-Identifier: Apache-2.0
"""Records and pictures as one HTML page that needs nothing else: no script, no font, no file beside it.

Everything that comes from outside, names of photos and recipes, is escaped by the template engine. Knows records,
their pictures, and how they are laid out; not how anything was measured.
"""

import base64
import re
from collections.abc import Iterable, Sequence
from importlib import resources

from sfumato.report.verdict import Standing, standings_of
from sfumato.report.words import (
    KEYPOINTS,
    LEVELS,
    NOT_TESTED,
    OPEN,
    OUTLINES,
    attack_words,
    leak_words,
    percent,
    remains_words,
)
from sfumato.types.record import Picture, Record, Value

TEMPLATE = "page.html.jinja"
COLUMNS = {
    "leakage": "leakage", "from": "leakage low", "to": "leakage high", "within 0.02": "within 0.02",
    "within 0.1": "within 0.1", "within 0.3": "within 0.3", "lifted within 0.1": "lifted within 0.1",
    "median distance": "median", "SSIM": "ssim", "PSNR": "psnr", "MAE": "mae",
}  # fmt: skip
"""Titles of the table of attacks, and the scores behind them."""
PRINTED = ("leakage", "within 0.1", "within 0.3", "ssim", "task", "recipe", "attack", "distance", "seed", "seconds")
"""Columns of wide tables that paper has room for; the others are on the screen alone."""


def make_page(records: Sequence[Record], pictures: Iterable[Picture] = (), when: str = "") -> str:
    """Return the page; ``when`` is a date to print.

    Raises InputError if the records hold nothing to report.
    """
    from jinja2 import Environment, StrictUndefined

    standings = standings_of(records)
    album = Album(pictures)
    audit = next((one for one in records if one.task == "audit"), None)
    template = (resources.files("sfumato.report") / "data" / TEMPLATE).read_text(encoding="utf-8")
    engine = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    engine.filters |= {"percent": percent, "leak": leak_words, "figure": figure, "plain": plain_recipe, "leaks": leaks}
    return engine.from_string(template).render(
        standings=standings,
        headline=headline(standings),
        album=album,
        hero=album.hero(standings),
        audit=audit,
        left_out=left_out(records),
        not_run=not_run(records),
        facts=facts(audit, records),
        runs=runs(records),
        when=when,
        columns=used_columns(standings),
        printed=PRINTED,
        levels=LEVELS,
        open_level=OPEN,
        attack_words=attack_words,
        used_attacks=used_attacks(standings),
        not_tested=NOT_TESTED,
        outlines=OUTLINES,
        remains=remains_words(standings[0].bare),
    )


def used_columns(standings: Sequence[Standing]) -> dict[str, str]:
    """Return the columns of the table of attacks in which there is a figure."""
    told = {name for one in standings for attack in one.attacks for name in attack.scores}
    return {title: name for title, name in COLUMNS.items() if name in told}


def used_attacks(standings: Sequence[Standing]) -> list[str]:
    """Return the names of all attacks, each once; the scale that raw is measured on is none."""
    found = (one for each in standings for one in each.attacks if not each.is_clear or one.is_bare)
    return list(dict.fromkeys(one.name for one in found))


class Album:
    """Pictures by what they show, as addresses that hold them whole."""

    def __init__(self, pictures: Iterable[Picture]) -> None:
        self._held: dict[tuple[str, str, str, str], str] = {}
        for one in pictures:
            text = base64.b64encode(one.content).decode("ascii")
            self._held[one.shows, one.photo, one.recipe, one.attack] = f"data:{one.media};base64,{text}"

    @property
    def photos(self) -> list[str]:
        """The names of the photos that are shown."""
        return [photo for shows, photo, _, _ in self._held if shows == "photo"]

    @property
    def pairs(self) -> list[str]:
        """The names of the photos whose matches are shown."""
        return list(dict.fromkeys(photo for shows, photo, _, _ in self._held if shows == "matches"))

    def find(self, shows: str, photo: str = "", recipe: str = "", attack: str = "") -> str:
        """Return the address of a picture; empty where there is none."""
        return self._held.get((shows, photo, recipe, attack), "")

    def from_keypoints(self, photo: str) -> str:
        """Return the address of what keypoints alone show of a photo, under whatever recipe that was painted."""
        held = self._held.items()
        return next((address for key, address in held if key[:2] == ("seen", photo) and key[3] == KEYPOINTS), "")

    def hero(self, standings: Sequence[Standing]) -> str:
        """Return the first photo of which there is a picture under every recipe; empty where there is none."""
        for photo in self.photos:
            if all(one.worst is None or self.find("seen", photo, one.recipe, one.worst.name) for one in standings):
                return photo
        return ""


def headline(standings: Sequence[Standing]) -> str:
    """Return the verdict in one sentence: about the default recipe, or the one that leaks least."""
    concealed = [one for one in standings if not one.is_clear]
    chosen = next(iter(concealed), None)
    if chosen is None:
        return "Clear features show the picture to whoever holds them."
    name, word = "the default recipe" if chosen.is_default else plain_recipe(chosen.recipe), chosen.level.word
    if chosen.leakage is None:
        return f"What a server sees under {name} could not be measured on these photos. Verdict: {word}."
    if chosen.is_of_keypoints:
        return f"Under {name} no attack at hand showed more than keypoints do. Verdict: {word}."
    seen = f"{percent(chosen.leakage)} of what clear features add to keypoints"
    if chosen.level is OPEN:
        return f"Under {name} attacks got {seen}: no evidence yet. Verdict: {word}."
    return f"Under {name} a server still sees {seen}. Verdict: {word}."


def left_out(records: Sequence[Record]) -> list[str]:
    """Return the photos that took no part at all, with the reason, each once."""
    return list(dict.fromkeys(line for record in records if record.task == "audit" for line in record.dropped))


def not_run(records: Sequence[Record]) -> list[str]:
    """Return what could not be run on photos that did take part: recipe, attack or matching, photo and reason."""
    found = []
    for record in records:
        told = record.params
        what = str(told.get("attack")) if record.task == "leakage" else "matching"
        recipe = plain_recipe(str(told.get("recipe")))
        found += [] if record.task == "audit" else [f"{recipe}, {what}: {line}" for line in record.dropped]
    return list(dict.fromkeys(found))


def facts(audit: Record | None, records: Sequence[Record]) -> dict[str, Value]:
    """Return what a figure needs to be made again: settings, seed, code, machine."""
    first = audit or records[0]
    found: dict[str, Value] = {"seed": first.seed, "code": first.commit, "photos (digest)": first.data}
    found |= dict(first.params) if audit is not None else {}
    found["seconds"] = round(sum(one.seconds for one in records) if audit is None else audit.seconds, 1)
    return found | dict(first.machine)


def runs(records: Sequence[Record]) -> list[dict[str, Value]]:
    """Return the parameters of every run that differ between runs, with seed and seconds."""
    measured = [one for one in records if one.task not in ("audit", "reference")]
    names = list(dict.fromkeys(name for one in measured for name in one.params))
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


def leaks(leakage: float | None, bare: float | None = None) -> str:
    """Return what an attack showed, as said below its picture.

    >>> leaks(0.718), leaks(-0.09), leaks(None)
    ('leaks 72 %', 'no more than keypoints show', 'not measured')
    """
    said = leak_words(leakage, bare)
    return f"leaks {said}" if said.endswith("%") else said


def plain_recipe(recipe: str) -> str:
    """Return a recipe without the checksums of its encoders.

    >>> plain_recipe("ninja-sift-2.5@e7f384f586b5+random-2")
    'ninja-sift-2.5+random-2'
    """
    return "clear features" if recipe == "raw" else re.sub("@[0-9a-f]+", "", recipe)
