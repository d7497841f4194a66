# SPDX-License-Identifier: Apache-2.0
"""Words of the report: verdicts with their limits, what nobody tested, and figures for people.

No word here says that something is safe.
"""

from collections.abc import Collection
from dataclasses import dataclass

from sfumato.types.record import ENOUGH_CODES, AttackRole


@dataclass(frozen=True, slots=True)
class Level:
    """Verdict in a word: what it says, and up to which leakage, share recovered within 0.1 and outlines it is given."""

    word: str
    says: str
    leakage: float = 1.0
    recovered: float = 1.0
    outlines: float = 1.0


NONE = Level("no protection", "A server paints the photo again.")
OPEN = Level("open", "Too little was tried to tell what a server sees.")
LEVELS = (
    Level("strong", "A server sees vague shapes at most.", 0.1, 0.01, 0.4),
    Level("outlines", "A server sees outlines: what the photo shows may be recognised.", 0.3, 0.10),
    Level("weak", "A server sees what the photo shows, with detail gone.", 0.6, 0.50),
    Level("broken", "A server paints nearly the same picture as from clear features."),
)
"""From the best to the worst: the first whose limits all figures meet is the verdict. Outlines are correlations with
those of the photo: at about 0.5 a person recognises the subject of some photos."""

NOTHING_RAN = "Nothing was measured: no attack could be run on these photos."
RECOVERED = "Attackers recover the features themselves: better software would paint more than is seen here."
"""Said where the share of recovered descriptors decided the verdict, and not the picture."""

RELEASED = "It gets the positions of what several of these photos see, {share} of all: they show what a map shows."
NOTHING_RELEASED = "It gets no position: these photos see nothing in common that a map would need."
"""Said of sealed recipes, whose positions stay home but for these."""

UNTRAINED = "Little is seen here, but no network was trained on this very recipe: this is no evidence."

LIMIT = "Anyone with the key, a sealed photo or a photo of the place can read much of it: take a key for each place."
"""Against whom sealed features do not hold."""

SEALED = (
    "The key can be recovered from 1,000 to 2,000 features that are known together with their sealed bits. A sealed "
    "photo that the attacker also has gives them, and so may his own photo of the same place."
)
"""Why, for who wants to know more."""

SEALED_UNTESTED = (
    "Key recovery, which takes too long for an audit. Large networks that see all bits and positions of a photo at "
    "once, trained under keys of the attacker's own; a small one, tried by the authors, showed no more than positions."
)

NOT_TESTED = (
    "Inverters that are larger than ours, or know typical pictures (diffusion models): they would fill in more.",
    "Matched features and maps: anyone who sees the same point several times recovers more of it.",
    "Attackers who already know something about the scene, and other releases of the same photos.",
    "Photos at full size, more features per photo, and other descriptors than the one named below.",
)
"""What no audit of this kind runs, whatever the recipe."""


def level_of(leakage: float | None, recovered: float | None, *, enough: bool, outlines: float | None = None) -> Level:
    """Return the verdict for the worst leakage, the largest share of descriptors recovered within 0.1, and outlines.

    Without ``enough`` evidence nothing is called strong; nothing measured is open.

    >>> level_of(0.1, 0.0, enough=True).word, level_of(0.1, 0.0, enough=False).word
    ('strong', 'open')
    """
    if leakage is None:
        return OPEN
    fitting = (
        one
        for one in LEVELS
        if leakage <= one.leakage and (recovered or 0.0) < one.recovered and (outlines or 0.0) <= one.outlines
    )
    level = next(fitting, LEVELS[-1])
    return OPEN if level is LEVELS[0] and not enough else level


def untested_words(roles: Collection[AttackRole]) -> str:
    """Return what was not tried on an unsealed recipe although it might succeed; empty where both networks were."""
    networks = {AttackRole.INVERTER: "an inverter", AttackRole.DECODER: "a decoder"}
    missing = [name for role, name in networks.items() if role not in roles]
    return f"{' and '.join(missing)} trained on this very recipe".capitalize() + "." if missing else ""


def codes_words(codes: int) -> str:
    """Return why an attack on this few sealed features of a key is no evidence."""
    return (
        f"Little is seen here, but the attacker had {codes:,} sealed features of one key and needs about "
        f"{ENOUGH_CODES:,}: this is no evidence."
    )


def reference_words(leakage: float | None, photos: int) -> str:
    """Return what the authors measured, with the number of photos where it is known.

    >>> reference_words(0.05, 20)
    'With 20 photos under one key the authors saw 5 % of what clear features show'
    """
    count = f"{photos:,}" if photos else "many"
    return f"With {count} photos under one key the authors saw {percent(leakage)} of what clear features show"


def percent(share: float | None) -> str:
    """Return a share for people; what lies below 0 is 0.

    >>> percent(0.718), percent(0.004), percent(None), percent(-0.03)
    ('72 %', '0.4 %', 'not measured', '0 %')
    """
    if share is None:
        return "not measured"
    if 0 < share < 0.0095:
        return f"{100 * share:.1f} %"
    return f"{round(100 * max(0.0, share))} %"
