# SPDX-License-Identifier: Apache-2.0
"""What a curious server learns of what is sent: of bits, of released positions, of both with a photo of the place.

    python benchmarks/released.py --json out.json                      # needs SFUMATO_DATA; hours
    python benchmarks/released.py --only outlines --sheet sheet.jpg    # one part; the file keeps those of the others

- bits: what rows without positions tell of a photo, by gradient boosting that saw other photos under other keys.
- outlines: what the painter of outlines makes of released positions: its correlation with the photo's outlines.
- transient: the share of positions that lie on people and vehicles, marked by eye, and on people pasted into photos.
- known: the server has a photo of the place. The pairs it gets, the key from them, what is read with it.
- painted: released positions with the descriptors that a recovered key reads.
- reading: what the key itself gives whoever has more patience, public descriptors and starts.
- alignment: what is read without a known pair, by the number of codes under one key.

Archives are made by the default's ``conceal``, ``match`` and ``release`` and kept in --work, with descriptors that were
extracted. A row is one figure. ``low`` and ``high`` are an interval of 95 % where the part gives one, and else the
least and the most of single photos. The sheets hold photos: they stay out of the repository.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common import arguments, data_folder, finish, pinned_threads
from releaseds.material import Material, full_material, small_material

Rows = Iterator[dict[str, Any]]


def bits(material: Material) -> Rows:
    """What rows without positions tell."""
    from releaseds.bits import bit_rows

    return bit_rows(material)


def outlines(material: Material) -> Rows:
    """What released positions tell."""
    from releaseds.outlines import outline_rows

    return outline_rows(material.sets, material.seed, material.sheet("outlines"))


def transient(material: Material) -> Rows:
    """Positions on people and vehicles."""
    from releaseds.transient import annotated_rows, pasted_rows

    yield from annotated_rows(material.sets)
    yield from pasted_rows(
        material.scene, material.people, material.work / "pasted", material.seed, 1 if material.small else None
    )


def known(material: Material) -> Rows:
    """What a photo of the place opens."""
    from releaseds.known import known_rows

    return known_rows(material)


def painted(material: Material) -> Rows:
    """What released positions show with the descriptors that a key reads."""
    from releaseds.known import painted_rows

    return painted_rows(material)


def reading(material: Material) -> Rows:
    """What a patient reader gets from bits with the key itself."""
    from releaseds.reading import patient_rows

    return patient_rows(material)


def alignment(material: Material) -> Rows:
    """What many codes tell without a pair."""
    from releaseds.alignment import alignment_rows

    return alignment_rows(material)


PARTS: dict[str, Callable[[Material], Rows]] = {
    "bits": bits, "outlines": outlines, "transient": transient, "known": known, "painted": painted, "reading": reading,
    "alignment": alignment,
}  # fmt: skip


def earlier(file: Path | None, parts: list[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the figures and sizes of other parts that a file has already."""
    if file is None or not file.is_file():
        return [], {}
    kept = json.loads(file.read_text())
    sizes = {part: size for part, size in kept["sizes"].items() if part not in parts}
    return [row for row in kept["rows"] if row["part"] not in parts], sizes


def main() -> int:
    """Run the parts that were asked for."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--work", type=Path, help="keep archives and descriptors in this folder, and find them there")
    parser.add_argument("--sheets", type=Path, help="a folder for pictures to look at")
    parser.add_argument("--most", type=int, default=10**6, help="codes of the largest alignment")
    args = parser.parse_args()
    folder = data_folder()
    with tempfile.TemporaryDirectory(prefix="sfumato-released-") as place, pinned_threads(1):
        work = args.work or Path(place)
        small = args.small or folder is None
        make = small_material if small else full_material
        material = make(work, args.seed, args.sheets, args.most, folder)
        rows, sizes = earlier(None if small else args.json, args.only)
        for part in args.only:
            rows += PARTS[part](material)
            sizes[part] = material.sizes(part)
    rows.sort(key=lambda row: list(PARTS).index(row["part"]))
    finish("released", args, sizes, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
