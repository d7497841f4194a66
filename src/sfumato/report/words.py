# SPDX-License-Identifier: Apache-2.0
"""What figures mean to people: words for verdicts with their limits, for attacks, and for what nobody tested.

Knows names of attacks and figures; not where they come from. No word here says that something is safe.
"""

from dataclasses import dataclass

KEYPOINTS = "keypoints"
"""The attack by an inverter that is given no descriptor: no recipe hides what it paints, and none leaks less."""
UNCOUNTED = ("oracle", "known-pairs", "key-recovery")
"""Beginnings of the names of attacks that are shown and do not count: an oracle is told the answer, and for known pairs
a holder of the key sealed features of the attacker's."""
KEY_HOLDER = "known-pairs"
"""The attack by who has the key of sealed features, or whom a device that has it obeys."""
ALIGNMENT = "alignment"
"""The attack on sealed features by who has no key."""
ENOUGH_CODES = 16_000
"""Codes of one key that an alignment should have, as many as the reference has; to fail with fewer says nothing."""
TRAINED = ("direct", "decoder")
"""Attacks by a network that was trained on what the very recipe releases."""
TRAINED_ON_IT = "inverter trained on it"
"""What titles of attacks on sealed features end in where an inverter of such readings paints them."""


@dataclass(frozen=True, slots=True)
class Level:
    """A verdict: its word, what it says, and up to which leakage and share recovered within 0.1 it is given."""

    word: str
    says: str
    leakage: float = 1.0
    recovered: float = 1.0


NONE = Level("no protection", "The features themselves are sent: whoever holds them can paint the picture.")
OPEN = Level(
    "open", "The attacks at hand showed little but keypoints, and none was trained against it: this is no evidence."
)
NOTHING_RAN = (
    "Nothing was measured: no attack that counts could be run on these photos. This says nothing about the recipe."
)
FAILED = (
    "No attack at hand showed more than keypoints do: the outlines in what they painted come from keypoints. That they "
    "failed does not mean that a better one would."
)
LEVELS = (
    Level("strong", "No attack got far beyond what keypoints show.", 0.3, 0.01),
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
    "floor": "the inverter for clear features, given keypoints with one mean descriptor for all: the zero of the scale",
    "keypoints": "an inverter trained to paint from keypoints alone, without any descriptor: what no recipe hides",
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
    "told-alignment": "lays all sealed features over others and is told how, which no attacker is: counted, as a bound",
    "known-pairs": "had thousands of features of its own sealed by a holder of the key: shown, not counted",
    "key-recovery": "works the key itself out of such features, and reads all others with it: shown, not counted",
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
    said = ATTACK_WORDS.get(first, "an attack that this page has no words for")
    said = f"{said}, in the encoder's space; {STAGES.get(then, then)}" if then else said
    if network == TRAINED_ON_IT:
        return f"{said}; painted by an inverter trained on such readings"
    return f"{said} ({network})" if network else said


NOT_TESTED = (
    "Inverters larger than ours, or that know typical pictures (diffusion models): they would fill in more.",
    "Matched features and maps: who sees the same point several times recovers more of it.",
    "People who already know something of the scene, and other releases of the same photos.",
    "Photos at full size, more features a photo, and other descriptors than the one named below.",
)
"""What no audit of this kind runs, whatever the recipe."""

SEALED = (
    "Only a network on one code alone is ruled out. The authors tried a network over all codes of a photo and their "
    "keypoints at once, trained under keys of the attacker's own: a small one, which painted no more than keypoints "
    "show. A larger one may do better."
)
"""What might do better on sealed features."""
UNREAD = "No inverter trained on what alignment gives was run here: it sees more than the usual one."
"""Said of sealed features where no such inverter was at hand."""

OUTLINES = (
    "Keypoints alone, by place, size and angle, give outlines in which a person may be recognised. Archives of sealed "
    "features leave sizes and angles out; the attackers here were given them all the same."
)
REMAINS = (
    "No recipe hides where keypoints are, and they outline the scene. Archives of sealed features hold their positions "
    "only, those of other recipes sizes and angles too; every attacker here is given all three. That 0 % is a zero to "
    "measure from, not the least that can be seen."
)


def untested_words(attacks: set[str]) -> str:
    """Return what was not tried on a recipe although it might succeed; empty where both networks were there."""
    missing = [name for name in TRAINED if name not in attacks]
    if len(missing) == len(TRAINED):
        return "Not tested: no network trained on this very recipe was at hand. It may see more than what is shown."
    if "decoder" in missing:
        return "Not tested: a decoder trained to undo this very recipe."
    return "Not tested: an inverter trained on this very recipe." if missing else ""


def sealed_words(attacks: set[str], with_key: float | None, bare: float | None = None) -> str:
    """Return against whom sealed features do not hold and what nobody tried.

    ``attacks`` are titles, with the inverters that painted; ``with_key`` is what known pairs got, ``bare`` what
    keypoints alone show.
    """
    got = "was not measured" if with_key is None else f"got {leak_words(with_key, bare)}"
    told = (
        f"Holds only against those who have neither the key nor a photo of what was sealed. The key comes out of a "
        f"thousand or two of known features: of a sealed photo that the attacker has too, or of one of the same place "
        f"that he lays over it by its keypoints. Take a key for each place. Looking up near ones of 10,000 known "
        f"features ({KEY_HOLDER}) {got}; key-recovery, which sees far more, is not run in audits. {SEALED}"
    )
    if not any(one.endswith(f", {TRAINED_ON_IT}") for one in attacks):
        told = f"{told} {UNREAD}"
    aligned = any(one.split(",")[0] == ALIGNMENT for one in attacks)
    return told if aligned else f"{told} Nor was an alignment of all sealed features run."


def few_codes_words(codes: int) -> str:
    """Return why an attack on so few codes of a key is no evidence."""
    return (
        f"Here the attack had {codes:,} codes of one key; a server holds those of all photos. With fewer than "
        f"{ENOUGH_CODES:,}, as many as the reference has, it often fails for want of codes: this is no evidence."
    )


def percent(share: float | None) -> str:
    """Return a share for people.

    >>> percent(0.718), percent(0.004), percent(None), percent(-0.03)
    ('72 %', '0.4 %', 'not measured', '-3 %')
    """
    if share is None:
        return "not measured"
    if 0 < abs(share) < 0.0095:
        return f"{100 * share:.1f} %"
    return f"{round(100 * share)} %"


def leak_words(leakage: float | None, bare: float | None = None) -> str:
    """Return a leakage for people: of no more than 0, or than keypoints alone show, is said no figure.

    >>> leak_words(0.718), leak_words(-0.09), leak_words(0.05, 0.17), leak_words(None)
    ('72 %', 'no more than keypoints show', 'no more than keypoints show', 'not measured')
    """
    is_less = leakage is not None and leakage <= max(0.0, bare or 0.0)
    return "no more than keypoints show" if is_less else percent(leakage)


def remains_words(bare: float | None) -> str:
    """Return what no recipe hides; ``bare`` is what an inverter made for keypoints alone shows, where it was run."""
    is_more = bare is not None and bare > 0
    more = f"shows {percent(bare)} here, and no recipe is said to leak less" if is_more else "sees more"
    return f"{REMAINS} An inverter made for keypoints alone {more}."


def reference_words(leakage: float | None, attack: str, photos: int, codes: int) -> str:
    """Return what the authors measured, with how many photos and codes where that is known.

    >>> reference_words(0.05, "alignment", 20, 16251)
    'what the authors measured with 20 photos (16,251 codes) under one key: 5 %, by alignment'
    """
    given = f"{photos:,} photos" if photos else "many photos"
    given += f" ({codes:,} codes)" if codes else ""
    return f"what the authors measured with {given} under one key: {leak_words(leakage)}, by {attack}"
