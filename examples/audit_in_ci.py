# SPDX-License-Identifier: Apache-2.0
"""Audit for continuous integration: fails when a recipe leaks more of your photos than a limit.

    python examples/audit_in_ci.py --recipe default --limit 0.1
    python examples/audit_in_ci.py photos/ --recipe sub-hybrid-2 --limit 0.3 -o audit/

Leakage is the share of the picture that the strongest attack paints: 0 is about a grey picture, 1 is what clear
features give away. The exit code is 0 within the limit and 1 beyond it, and 1 where too little was tried to tell,
because a check without evidence must not pass (--allow-open lets it pass). Errors, such as a recipe that does not
exist, exit with 2. audit.yml is a workflow that calls this file. The attacks need: pip install 'sfumato[audit]'.
"""

import argparse
import re
import sys
from pathlib import Path

import sfumato
from sfumato.auditing import load_records
from sfumato.images import sample_paths
from sfumato.report import RecipeVerdict, verdicts_of


def audit(photos: Path, recipe: str, folder: Path, *, side: int, max_features: int) -> RecipeVerdict:
    """Audit a recipe, write its page into a folder, and return the verdict.

    The records are beside the page. Each recipe and size has a page of its own, so they are about this recipe and raw,
    which everything is compared with and which comes last.
    """
    name = re.sub(r"[^\w.-]+", "-", f"{recipe}-{side}px-{max_features}")
    page = sfumato.audit(photos, folder / f"{name}.html", recipes=[recipe], side=side, max_features=max_features)
    return verdicts_of(load_records(page.with_name(f"{name}-data")))[0]


def judge(verdict: RecipeVerdict, limit: float, *, allow_open: bool = False) -> int:
    """Print what leaks and how well matching works, and return the exit code."""
    print(f"{verdict.name}: {verdict.level.word}. {verdict.says}")
    if verdict.worst is not None:
        print(f"the strongest attack: {verdict.worst.name} ({verdict.worst.about})")
    if "correct 3 px / raw" in verdict.matching:
        print(f"correct matches: {verdict.matching['correct 3 px / raw']:.0%} of those of clear features")
    leakage = verdict.leakage
    is_within = leakage is not None and leakage <= limit
    passed = is_within and (allow_open or verdict.level.word != "open")
    amount = "an unknown share" if leakage is None else f"{leakage:.2f}"
    why = " (too little was tried)" if is_within and not passed else ""
    word = "passed" if passed else "failed"
    print(f"shown: {verdict.name} leaks {amount} of the picture, the limit is {limit:.2f}: {word}{why}")
    return 0 if passed else 1


def main(arguments: list[str] | None = None) -> int:
    """Read the arguments, audit and judge."""
    parser = argparse.ArgumentParser(description="Fail when a recipe leaks more than a limit.")
    parser.add_argument("photos", type=Path, nargs="?", help="a photo, or a folder of photos; default: a sample photo")
    parser.add_argument("--recipe", default="default", help="the recipe to audit; default: the default recipe")
    parser.add_argument("--limit", type=float, required=True, help="largest leakage allowed, from 0 to 1")
    parser.add_argument("--allow-open", action="store_true", help="pass where too little was tried to tell")
    parser.add_argument("--max-features", type=int, default=200, help="features of each photo; default: 200")
    parser.add_argument("--side", type=int, default=240, help="photos are reduced to this many pixels; default: 240")
    parser.add_argument("-o", "--output", type=Path, default=Path("audit"), help="folder of the page; default: audit/")
    options = parser.parse_args(arguments)
    photos = options.photos or sample_paths()["coffee"]
    try:
        verdict = audit(photos, options.recipe, options.output, side=options.side, max_features=options.max_features)
    except sfumato.SfumatoError as problem:
        print(problem, file=sys.stderr)
        return 2
    return judge(verdict, options.limit, allow_open=options.allow_open)


if __name__ == "__main__":
    sys.exit(main())
