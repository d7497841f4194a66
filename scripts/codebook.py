# SPDX-License-Identifier: Apache-2.0
"""Make the codebooks that come with the package (src/sfumato/matching/data) from its decoys.

    python scripts/codebook.py                                    # the two that are shipped
    python scripts/codebook.py --decoys mine.safetensors --output folder  # of another database

Takes some seconds. Decoys are public, and so are these.
"""

import argparse
import sys
from pathlib import Path

from sfumato.codebooks import codebook_of
from sfumato.concealment.decoys import as_rootsift, load_decoys
from sfumato.matching.codebook import SIZE, save_codebook

FOLDER = Path(__file__).resolve().parent.parent / "src" / "sfumato" / "matching" / "data"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--decoys", type=Path, help="a decoys file; by default the one of the package")
    parser.add_argument("--output", type=Path, default=FOLDER, help="the folder to write to")
    parser.add_argument("--words", type=int, default=SIZE)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    decoys = load_decoys(args.decoys)
    for kind in [decoys, as_rootsift(decoys)] if decoys.extractor.name == "sift" else [decoys]:
        codebook = codebook_of(kind, size=args.words, seed=args.seed)
        path = args.output / f"codebook-{kind.extractor.name}-{len(codebook)}.safetensors"
        save_codebook(path, codebook)
        print(f"{path}: {codebook!r}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
