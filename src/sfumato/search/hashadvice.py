# SPDX-License-Identifier: Apache-2.0
"""How many symbols K to a key and how many tables S, from Theorem 2.3, or that no choice will do.

Knows the chances p1 and p2 and the number of entries n. The theorem's procedure looks at no more than 3 S entries. It
fails if the near entry shares no key (chance at most 1 / e), or if more than 3 S far ones do (at most 1 / 3).
"""

import math
from dataclasses import dataclass

from sfumato.errors import InputError
from sfumato.search.hashchances import Chances

FAILURE_BOUND = 1 / 3 + 1 / math.e
LARGEST_KEY = 100_000
"""Symbols to a key beyond which nobody builds a table: hashing one entry costs that many inner products."""
LARGEST_TABLES = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HashAdvice:
    """``verdict``: "possible", "slower than a scan" or "impossible", and the ``reason`` in words.

    ``key_length`` K and ``tables`` S are None where they are impossible; ``cap`` is 3 S. ``failure_bound`` is that of
    the theorem, ``miss`` the exact chance that an entry at distance R shares no key with the query.
    """

    verdict: str
    reason: str
    key_length: int | None = None
    tables: int | None = None
    cap: int | None = None
    miss: float | None = None
    failure_bound: float = FAILURE_BOUND


def advise(found: Chances, entries: int) -> HashAdvice:
    """Return K = ceil(log n / log(1 / p2)) and S = ceil(1 / p1^K), at most n^rho / p1, for n entries (Theorem 2.3).

    Raises InputError for fewer than 2 entries.

    >>> advise(Chances(differ1=0.05, differ2=0.5, near=(0.1,), far=(1.0,)), 1000).key_length
    10
    """
    if entries < 2:
        raise InputError(f"entries: expected 2 or more, got {entries}")
    if found.differ2 <= 0:
        drawn = ", in any of the draws" if found.error else ""
        return HashAdvice(verdict="impossible", reason=f"not even far pairs ever differ in a bit{drawn}")
    if not found.differ1 < found.differ2 or found.differ1 >= 1:
        return HashAdvice(
            verdict="impossible",
            reason=f"near pairs agree no more often than far ones (p1 = {found.p1:.6g}, p2 = {found.p2:.6g})",
        )
    per_symbol = -math.log1p(-found.differ2) if found.differ2 < 1 else math.inf
    exact_length = max(1.0, math.log(entries) / per_symbol)
    if exact_length > LARGEST_KEY:
        return HashAdvice(
            verdict="impossible",
            reason=f"far pairs differ in a share of {found.differ2:.2g} of the bits: a key needs {exact_length:.2g} of "
            f"them, and each costs an inner product",
        )
    length = math.ceil(exact_length - 1e-9)
    log_tables = -length * math.log1p(-found.differ1)
    if log_tables > math.log(LARGEST_TABLES):
        return HashAdvice(
            verdict="impossible",
            reason=f"a near pair shares one key in {math.exp(min(log_tables, 700)):.2g}: that many tables are needed",
        )
    tables = math.ceil(math.exp(log_tables) - 1e-9)
    miss = math.exp(tables * math.log1p(-math.exp(-log_tables))) if log_tables > 0 else 0.0
    slow = tables * length + 3 * tables >= entries
    return HashAdvice(
        verdict="slower than a scan" if slow else "possible",
        reason=f"{tables * length} hash functions and up to {3 * tables} candidates a query, of {entries} entries "
        f"(rho = {found.rho:.3f})",
        key_length=length,
        tables=tables,
        cap=3 * tables,
        miss=miss,
    )
