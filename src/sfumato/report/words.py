# SPDX-License-Identifier: Apache-2.0
"""Words of the report: verdicts with their limits, what nobody tested, and figures for people.

No word here says that something is safe.
"""

from collections.abc import Collection
from dataclasses import dataclass

from sfumato.types.record import ENOUGH_CODES, AttackRole


@dataclass(frozen=True, slots=True)
class Level:
    """Verdict in a word: what it says, and up to which leakage and share recovered within 0.1 it is given."""

    word: str
    says: str
    leakage: float = 1.0
    recovered: float = 1.0


NONE = Level("no protection", "The features themselves are sent: anyone who holds them can reconstruct the photo.")
OPEN = Level(
    "open",
    "The attacks that were run showed little more than keypoints, but none was trained against this recipe: this is no "
    "evidence.",
)
NOTHING_RAN = (
    "Nothing was measured: no attack that counts could be run on these photos. This says nothing about the recipe."
)
FAILED = (
    "No attack showed more than keypoints do: the outlines in the pictures come from keypoints. A better attack may "
    "still succeed."
)
LEVELS = (
    Level("strong", "No attack showed much more than keypoints do.", 0.3, 0.01),
    Level("better", "A server sees an impression of the photo, with much of the detail gone.", 0.5, 0.10),
    Level("weak", "A server can still reconstruct most of the photo.", 0.8, 0.50),
    Level("broken", "A server can reconstruct nearly the same picture as from clear features."),
)
"""From the best to the worst: the first whose limits both figures meet is the verdict."""

RECOVERED = "Descriptors themselves are recovered: a better inverter would show more of the photo than is seen here."
"""Said where the share of recovered descriptors decided the verdict, and not the picture."""

NOT_TESTED = (
    "Inverters that are larger than ours, or know typical pictures (diffusion models): they would fill in more.",
    "Matched features and maps: anyone who sees the same point several times recovers more of it.",
    "Attackers who already know something about the scene, and other releases of the same photos.",
    "Photos at full size, more features per photo, and other descriptors than the one named below.",
)
"""What no audit of this kind runs, whatever the recipe."""

SEALED = (
    "Only a network that reads single codes is ruled out. The authors tried a network that sees all codes and "
    "keypoints of a photo at once, trained under the attacker's own keys: a small one, and it showed no more than "
    "keypoints do. A larger one may do better."
)
"""What might do better on sealed features."""

UNREAD = "No inverter trained on what alignment recovers was run here: it sees more than the usual one."
"""Said of sealed features where no such inverter was there."""

OUTLINES = (
    "Keypoints alone, by position, size and angle, show outlines in which a person may be recognised. Archives of "
    "sealed features omit sizes and angles; the attackers here were given them anyway."
)
REMAINS = (
    "No recipe hides where keypoints are, and they outline the scene. Archives of sealed features hold their positions "
    "only, those of other recipes sizes and angles too; every attacker here is given all three. So 0 % is where the "
    "scale begins, not the least that can be seen."
)


def level_of(leakage: float | None, recovered: float | None, *, trained: bool) -> Level:
    """Return the verdict for the worst leakage and the largest share of descriptors recovered within 0.1.

    Without an attack by a network trained on the recipe nothing better than ``better`` is given; nothing measured is
    open.

    >>> level_of(0.2, 0.0, trained=True).word, level_of(0.2, 0.0, trained=False).word
    ('strong', 'open')
    """
    if leakage is None:
        return OPEN
    level = next((one for one in LEVELS if leakage <= one.leakage and (recovered or 0.0) < one.recovered), LEVELS[-1])
    return OPEN if level is LEVELS[0] and not trained else level


def untested_words(roles: Collection[AttackRole]) -> str:
    """Return what was not tried on a recipe although it might succeed; empty where both networks were tried."""
    if AttackRole.INVERTER not in roles and AttackRole.DECODER not in roles:
        return "Not tested: no network trained on this very recipe was available. It may see more than what is shown."
    if AttackRole.DECODER not in roles:
        return "Not tested: a decoder trained to undo this very recipe."
    return "" if AttackRole.INVERTER in roles else "Not tested: an inverter trained on this very recipe."


def sealed_words(with_pairs: float | None, bare: float | None = None, *, is_read: bool, is_aligned: bool) -> str:
    """Return against whom sealed features do not hold, and what nobody tried.

    ``with_pairs``: the leakage to known pairs; ``bare``: that of keypoints alone; ``is_read``: whether an inverter
    trained on readings painted; ``is_aligned``: whether an alignment ran.
    """
    leak = "was not measured" if with_pairs is None else f"got {leak_words(with_pairs, bare)}"
    words = (
        f"Protects only against attackers who have neither the key nor a photo of what was sealed. The key can be "
        f"recovered from 1,000 to 2,000 known features, for example from a sealed photo the attacker also owns, or "
        f"from his own photo of the same place aligned by its keypoints. Use a key for each place. Looking up the "
        f"nearest of 10,000 known features (known-pairs) {leak}; key-recovery, which sees far more, is not run in "
        f"audits. {SEALED}"
    )
    words = words if is_read else f"{words} {UNREAD}"
    return words if is_aligned else f"{words} No alignment of all sealed features was run either."


def codes_words(codes: int) -> str:
    """Return why an attack on this few codes of a key is no evidence."""
    return (
        f"Here the attack had {codes:,} codes of one key; a server holds those of all photos. With fewer than "
        f"{ENOUGH_CODES:,}, the number in the reference, it often fails for lack of codes: this is no evidence."
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
    """Return a leakage for people; no figure is given for 0 or less, or for no more than keypoints alone show.

    >>> leak_words(0.718), leak_words(-0.09), leak_words(0.05, 0.17), leak_words(None)
    ('72 %', 'no more than keypoints show', 'no more than keypoints show', 'not measured')
    """
    is_less = leakage is not None and leakage <= max(0.0, bare or 0.0)
    return "no more than keypoints show" if is_less else percent(leakage)


def remains_words(bare: float | None) -> str:
    """Return what no recipe hides; ``bare``: what an inverter for keypoints alone shows, where it was run."""
    is_more = bare is not None and bare > 0
    more = f"shows {percent(bare)} here, and no recipe is reported to leak less" if is_more else "sees more"
    return f"{REMAINS} An inverter trained for keypoints alone {more}."


def reference_words(leakage: float | None, attack: str, photos: int, codes: int) -> str:
    """Return what the authors measured, with the numbers of photos and codes where they are known.

    >>> reference_words(0.05, "alignment", 20, 16251)
    'what the authors measured with 20 photos (16,251 codes) under one key: 5 %, by alignment'
    """
    data = f"{photos:,} photos" if photos else "many photos"
    data += f" ({codes:,} codes)" if codes else ""
    return f"what the authors measured with {data} under one key: {leak_words(leakage)}, by {attack}"
