# SPDX-License-Identifier: Apache-2.0
"""What figures mean to people: words for verdicts with their limits, for attacks, and for what nobody tested.

Knows names of attacks and figures; not where they come from. No word here says that something is safe.
"""

from dataclasses import dataclass

UNCOUNTED = ("oracle", "known-pairs")
"""Beginnings of the names of attacks that no attacker without help can make."""
"""Attacks of this name know the answer: they are shown and do not count."""
TRAINED = ("direct", "decoder")
"""Attacks by a network that was trained on what the very recipe releases."""


@dataclass(frozen=True, slots=True)
class Level:
    """A verdict: its word, what it says, and up to which leakage and share recovered within 0.1 it is given."""

    word: str
    says: str
    leakage: float = 1.0
    recovered: float = 1.0


NONE = Level("no protection", "The features themselves are sent: whoever holds them can paint the picture.")
OPEN = Level("open", "The attacks at hand got little, but none was trained against it: this is no evidence.")
LEVELS = (
    Level("strong", "No attack in this audit got far beyond what the positions of keypoints show.", 0.3, 0.01),
    Level("better", "A server sees an impression of the picture, with much of the detail gone.", 0.5, 0.10),
    Level("weak", "A server can still paint most of the picture.", 0.8, 0.50),
    Level("broken", "A server can paint nearly the same picture as from clear features."),
)
"""From the best to the worst: the first whose limits both figures keep is the verdict."""

RECOVERED = "Descriptors themselves come back: a better inverter would show more of the picture than is seen here."
"""Said where the share of recovered descriptors decided the verdict, and not the picture."""


def level_of(leakage: float | None, recovered: float | None, *, trained: bool) -> Level:
    """Return the verdict for the worst leakage and the largest share of descriptors recovered within 0.1.

    What nobody attacked with a network trained on it gets no better word than ``better``; nothing measured is open.

    >>> level_of(0.2, 0.0, trained=True).word, level_of(0.2, 0.0, trained=False).word
    ('strong', 'open')
    """
    if leakage is None:
        return OPEN
    met = next((one for one in LEVELS if leakage <= one.leakage and (recovered or 0.0) < one.recovered), LEVELS[-1])
    return OPEN if met is LEVELS[0] and not trained else met


ATTACK_WORDS = {
    "clear": "the inverter for clear features",
    "floor": "keypoint positions alone, one constant descriptor: the floor",
    "vertex": "searches the corners of the subspace; knows only that SIFT is a histogram: never negative, clamped",
    "vertex+decoys": "searches the corners of the subspace, and has the decoy database",
    "bounded": "knows that the network's last layer is bounded",
    "bounded+decoys": "knows that the network's last layer is bounded, and has the decoy database",
    "density": "has descriptors of other people's photos, and looks for the likeliest point of the subspace",
    "density+decoys": "looks for the likeliest point of the subspace, and has the decoy database",
    "decoys": "has the decoy database, strikes its entries out, and looks for what is left",
    "clusters": "has descriptors of other people's photos, and gathers those near the subspace",
    "nearest": "has descriptors of other people's photos, and takes the nearest",
    "nearest-projected": "has descriptors of other people's photos, and projects the nearest on the subspace",
    "nearest-sphere": "has descriptors of other people's photos, and projects the nearest on the subspace's sphere",
    "nearest-base": "has descriptors of other people's photos, and takes encoded ones for clear",
    "regression": "has descriptors of other people's photos, and undoes the encoder by least squares",
    "intersection": "has a second, independent release of the same photo",
    "decoder": "a network trained to undo this very recipe, on other people's photos",
    "direct": "an inverter trained on what this very recipe releases, on other people's photos",
    "alignment": "has descriptors of other people's photos, and lays all sealed features at once over them",
    "known-pairs": "had thousands of features of its own sealed by a holder of the key: shown, not counted",
    "oracle": "is told which of the nearest public descriptors is the best: shown, not counted",
    "oracle-projected": "is told which of the nearest, projected on the subspace, is the best: shown, not counted",
    "oracle-sphere": "is told which of the nearest, projected on the subspace's sphere, is best: shown, not counted",
    "oracle-base": "compares encoded with clear descriptors, and is told the best: shown, not counted",
    "oracle-encoded": "answers with encoded descriptors, and is told the best: shown, not counted",
}
"""What each attacker does and knows, beside the recipe and the released features, which all of them know."""

STAGES = {
    "decoder": "a decoder trained on the encoder takes that back to clear descriptors",
    "inverter": "an inverter trained on the encoder paints that",
    "nothing": "there was nothing to undo the encoder with",
}
"""What follows an attack on a lifting after an encoder."""


def attack_words(name: str) -> str:
    """Return what an attacker does and knows, for any way of attacking.

    >>> attack_words("clusters then inverter").split("; ")[1]
    'an inverter trained on the encoder paints that'
    """
    plain, _, network = name.partition(", ")
    first, _, then = plain.partition(" then ")
    said = ATTACK_WORDS.get(first, "is explained in docs/attacks.md")
    said = f"{said}, in the encoder's space; {STAGES.get(then, then)}" if then else said
    return f"{said} ({network})" if network else said


NOT_TESTED = (
    "Inverters larger than ours, or that know typical pictures (diffusion models): they would fill in more.",
    "Matched features and maps: who sees the same point several times recovers more of it (docs/threats.md).",
    "People who already know something of the scene, and other releases of the same photos.",
    "Photos at full size, more features a photo, and other descriptors than the one named below.",
)
"""What no audit of this kind runs, whatever the recipe."""

ALIGNMENT = "alignment"
"""The attack on sealed features by who has no key."""
SEALED = (
    "Holds against those without the key. Whoever has it, or a device that has it and does as told, sees as much as "
    "from clear features; with more photos than here an attacker without it may see more, too."
)

REMAINS = (
    "Positions, sizes and angles of keypoints stay visible under every recipe. They outline the scene; the floor shows "
    "how much that alone gives away."
)


def untested_words(attacks: set[str], *, sealed: bool = False) -> str:
    """Return what was not tried on a recipe although it might succeed; empty where both networks were there."""
    if sealed:
        return SEALED if ALIGNMENT in attacks else f"{SEALED} Not tested: an alignment of all sealed features."
    missing = [name for name in TRAINED if name not in attacks]
    if len(missing) == len(TRAINED):
        return "Not tested: no network trained on this very recipe was at hand. It may see more than what is shown."
    if "decoder" in missing:
        return "Not tested: a decoder trained to undo this very recipe."
    return "Not tested: an inverter trained on this very recipe." if missing else ""
