# SPDX-License-Identifier: Apache-2.0
"""Telling of real rows from chaff: by all separators, by a lookup, by two releases and by matches."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import note

import sfumato
from chaffs.figures import Row, row
from chaffs.lookup import SCALES, look_up
from chaffs.network import learn_network, network_answers
from chaffs.photos import Photo, Photos, plane_pictures, repeating_photos, reserve_of
from chaffs.separators import area_under_curve, code_statistics, learn_trees, statistics_of
from chaffs.sources import RECIPE, SOURCES, Mixture, Stock, from_plain_bank, mix
from sfumato.concealment.lifting import with_chaff
from sfumato.types.clear import Features

Floats = np.ndarray


@dataclass
class Answers:
    """Mixtures of the photos under attack, what the separators together say of their rows, and what others say."""

    mixtures: list[Mixture]
    scores: list[Floats]
    others: dict[str, list[Floats]] = field(default_factory=dict)


def tell_source(name: str, photos: Photos, noise: dict[int, Features], args: Any) -> tuple[list[Row], Answers]:
    """Set all separators at one source."""
    note(f"{name}: drawing")
    rng, source = np.random.default_rng(args.seed + 1), SOURCES[name]
    stock = Stock(photos.bank, photos.learners, noise)
    reserve = reserve_of(args)
    first = [mix(photo, source, stock, rng, number < reserve) for number, photo in enumerate(photos.learners)]
    coded, others = first[:reserve], first[reserve:]
    more = [mix(one.photo, source, stock, rng, with_codes=False) for one in others for _ in range(args.draws - 1)]
    attacked = [mix(one, source, Stock(photos.bank, photos.own), rng, with_codes=True) for one in photos.attacked]
    network = learn_network([*others, *more], name, args)
    note(f"{name}: trees")

    def answers(mixture: Mixture) -> Floats:
        return np.column_stack(
            [network_answers(network, mixture), statistics_of(mixture), code_statistics(mixture)]
        )  # fmt: skip

    separators = {
        "statistics": (statistics_of, learn_trees(first, statistics_of, args)),
        "codes": (code_statistics, learn_trees(coded, code_statistics, args)),
        "together": (answers, learn_trees(coded, answers, args)),
    }
    scores = {key: [trees.score(columns(one)) for one in attacked] for key, (columns, trees) in separators.items()}
    scores = {"network": [network_answers(network, one) for one in attacked], **scores}
    rows = [
        row("telling", name, key, [area_under_curve(s, one.is_real) for s, one in zip(found, attacked, strict=True)])
        for key, found in scores.items()
    ]
    rows.append(row("telling", name, "layouts", lookup_areas(name, attacked[: args.lookups], photos.bank)))
    return rows, Answers(attacked, scores["together"])


def lookup_areas(name: str, attacked: list[Mixture], bank: list[Photo]) -> list[float] | None:
    """Return the areas for an attacker who looks layouts up; None where there is no bank."""
    scales = {"bank": SCALES, "patchwork": SCALES[:1]}.get(name)
    if scales is None:
        return None
    return [area_under_curve(look_up(one, bank, scales), one.is_real) for one in attacked]


def tell_plain_layouts(photos: Photos, args: Any) -> list[Row]:
    """Look up layouts of the bank that are only mirrored and thinned: an attack must break what is weak."""
    rng, areas = np.random.default_rng(args.seed + 1), list[float]()
    for photo in photos.attacked[: args.lookups]:
        mixture = mix(photo, from_plain_bank, Stock(photos.bank, []), rng, with_codes=False)
        areas.append(area_under_curve(look_up(mixture, photos.bank, SCALES[:1]), mixture.is_real))
    return [row("telling", "bank, not bent or cropped", "layouts", areas)]


def tell_releases(photos: Photos, args: Any) -> list[Row]:
    """Tell by two releases of one photo: rows that return are taken for real."""
    key, found = sfumato.new_key(), dict[str, list[float]]()
    for photo in photos.attacked[: args.lookups]:
        for name, secret in (("with a device key", key), ("for two places", key), ("without a key", None)):
            one, is_real = with_chaff(photo.features, RECIPE, secret=secret)
            if name == "for two places":
                other = sfumato.conceal(photo.features, RECIPE, secret=key, place="another").keypoints
            else:
                other = with_chaff(photo.features, RECIPE, secret=secret)[0].keypoints
            known = {place.tobytes() for place in other[:, :2]}
            returns = np.array([float(place.tobytes() in known) for place in one.keypoints[:, :2]])
            found.setdefault(f"two releases, {name}", []).append(area_under_curve(returns, is_real))
    return [row("telling", "chaff", name, areas) for name, areas in found.items()]


APART = 3.0
"""Pixels between two rows of which one tells of the other."""


def tell_repeats(args: Any, folder: Path | None) -> list[Row]:
    """Tell by codes that are alike, in photos that repeat themselves: whatever has a repeat is taken for real."""
    photos, rng = repeating_photos(args, folder), np.random.default_rng(args.seed + 2)
    rows = list[Row]()
    for name in ("chaff", "noise"):
        areas = dict[str, list[float]]()
        for case, photo in photos:
            mixture = mix(photo, SOURCES[name], Stock([], []), rng, with_codes=True)
            assert mixture.codes is not None
            bits = 2 * np.unpackbits(mixture.codes.packed, axis=1).astype(np.float32) - 1
            alike = np.empty(len(bits))
            for start in range(0, len(bits), 1000):
                stop = start + 1000
                near = bits[start:stop] @ bits.T
                away = np.square(mixture.places[start:stop, None] - mixture.places).sum(axis=2)
                alike[start:stop] = np.where(away < APART**2, -np.inf, near).max(axis=1)
            areas.setdefault(case, []).append(area_under_curve(alike, mixture.is_real))
        rows += [row("telling", name, f"repeats, {case}", values) for case, values in areas.items()]
    return rows


def tell_matches(args: Any, folder: Path | None) -> list[Row]:
    """Tell by matches with another photo of the same place, and with five."""
    key, figures = sfumato.new_key(), dict[str, list[float]]()
    for pictures in plane_pictures(args, folder):
        mixed, kinds = zip(*(with_chaff(one, RECIPE, secret=key) for one in pictures), strict=True)
        codes = [sfumato.conceal(one, "sealed-512", secret=key) for one in mixed]
        matched = np.zeros(len(codes[0]), bool)
        for number, other in enumerate(codes[1:], 1):
            matched[sfumato.match(codes[0], other, threads=1).indices[:, 0]] = True
            if number in (1, len(codes) - 1):
                name = f"matches with {number} more of the place"
                figures.setdefault(name, []).append(area_under_curve(matched.astype(float), kinds[0]))
                figures.setdefault(f"{name}: real rows matched", []).append(float(matched[kinds[0]].mean()))
                figures.setdefault(f"{name}: chaff rows matched", []).append(float(matched[~kinds[0]].mean()))
    return [row("telling", "chaff", name, values) for name, values in figures.items()]
