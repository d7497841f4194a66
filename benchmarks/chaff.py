# SPDX-License-Identifier: Apache-2.0
"""Chaff: sources of it against attackers who tell it from real features, what they then paint, and what chaff costs.

    python benchmarks/chaff.py --only telling painted --json out.json   # needs the photos below SFUMATO_DATA, and torch
    python benchmarks/chaff.py --only boosting --boosted small --json out.json          # needs scikit-learn and torch
    python benchmarks/chaff.py --only cost --json out.json

"telling": the area under the curve of telling real features from chaff, two of chaff to a real one; 0.5 for guesses, 1
for all. It is the mean over photos that nobody learned from (bsds500/val), with its standard error. Attackers know the
method and the bank. They learn on other photos (bsds500/train, imagenet-samples), with chaff that they draw themselves.
Sources: "uniform" positions; "bank", layouts of public photos under bends, mirrors, crops and thinning; "patchwork", of
pieces of many such layouts; "own photos", layouts of photos that nobody else has; "process", a point process with the
spectrum and the near distances of layouts; "noise", features of pictures of noise as they come; "chaff", such features
where the photo has few, which is what the package does. Separators: "network", a UNet over positions; "statistics",
trees over distances to neighbours, twins, borders, fractions of pixels, lines and density; "codes", trees over how near
the nearest codes of the same photo are (sources of positions alone have bits from coin throws); "together", trees over
all of these; "layouts", which looks the layouts of the bank up. "two releases": the photo is released again, with a
device key or without. "matches": what matches another photo of the same place is real. The design accepts that: the
stationary scene becomes the map.

"painted": the outlines that positions alone show, by the bundled inverters of outlines, of all rows and of the third
that "together" takes for real: the correlation with the outlines of the photo. Two controls show what an inverter
paints without any help: places at random, and a single feature.

"boosting": the strongest attack, on the package's chaff with as many features as the default takes: gradient boosting
over plain statistics of positions and bits, such as how positions are rounded, learned from photos of other places
under other keys. "small" photos (the second half of bsds500/val, on which nothing was chosen), and "large" ones:
tourist photos and photos of 6 megapixels, where nobody learns from the place under attack. Outlines are painted as for
"painted".

"cost": an archive, seconds of the processor, matches on planes and a map, with 0 to 4 features of chaff to a real one.
"""

import sys
import tempfile
from pathlib import Path

from chaffs.boosting import boost
from chaffs.cost import cost_of_maps, cost_on_planes
from chaffs.figures import Row
from chaffs.network import network_file
from chaffs.painting import paint
from chaffs.photos import load_photos
from chaffs.sources import RECIPE, SOURCES
from chaffs.telling import tell_matches, tell_plain_layouts, tell_releases, tell_repeats, tell_source
from common import arguments, data_folder, finish, pinned_threads

from sfumato.types.clear import Features

PARTS = ("telling", "painted", "boosting", "cost")
PHOTOS = ("small", "large")


def main() -> int:
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES), metavar="SOURCE")
    parser.add_argument(
        "--boosted", nargs="+", choices=PHOTOS, default=list(PHOTOS), help="photos that boosting attacks"
    )
    parser.add_argument("--photos", type=int, default=40, help="photos under attack")
    parser.add_argument("--painted", type=int, default=20, help="photos that are painted")
    parser.add_argument("--lookups", type=int, default=8, help="photos whose layouts are looked up, or released twice")
    parser.add_argument("--learners", type=int, default=240, help="photos that attackers learn from")
    parser.add_argument("--bank", type=int, default=100, help="photos of the public bank")
    parser.add_argument("--draws", type=int, default=3, help="draws of chaff for each photo that is learned from")
    parser.add_argument("--minutes", type=float, default=5, help="of the processor, for each network")
    parser.add_argument("--rows", type=int, default=150_000, help="features that trees learn from")
    parser.add_argument("--features", type=int, default=2000, help="features of a photo at most")
    parser.add_argument("--map-features", type=int, default=4000, help="features of a photo of a map at most")
    parser.add_argument("--amounts", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="amounts of chaff to pay for")
    parser.add_argument("--work", type=Path, help="keeps the networks that tell sources from run to run")
    parser.add_argument("--inverters", type=Path, help="a folder of inverters of positions instead of the bundled ones")
    args = parser.parse_args()
    folder = None if args.small else data_folder()
    if folder is None:
        args.small, args.minutes, args.draws, args.lookups, args.amounts = True, 0.005, 1, 1, [0, 1]
        args.learners, args.features, args.map_features = 4, 150, 300
    rows = list[Row]()
    with pinned_threads(1), tempfile.TemporaryDirectory(prefix="sfumato-chaff-") as place:
        sources = args.sources if "telling" in args.only else ["chaff"]
        if set(args.only) & {"telling", "painted"}:
            learns = "telling" in args.only or not network_file("chaff", args).exists()
            photos, noise, of_chaff = load_photos(args, folder, learns), dict[int, Features](), None
            for name in sources:
                found, answers = tell_source(name, photos, noise, args)
                rows += found if "telling" in args.only else []
                of_chaff = answers if name == "chaff" else of_chaff
            if "telling" in args.only:
                rows += tell_plain_layouts(photos, args) + tell_releases(photos, args)
                rows += tell_repeats(args, folder) + tell_matches(args, folder)
            if "painted" in args.only and of_chaff is not None:
                rows += paint(of_chaff, args)
        if "boosting" in args.only:
            rows += boost(args, folder)
        if "cost" in args.only:
            rows += cost_on_planes(args, folder, Path(place)) + cost_of_maps(args, folder, Path(place))
    sizes = {name: getattr(args, name) for name in ("photos", "painted", "lookups", "learners", "bank", "draws",
             "minutes", "features", "map_features")}  # fmt: skip
    finish("chaff", args, {"recipe": RECIPE, **sizes}, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
