# SPDX-License-Identifier: Apache-2.0
"""Result tables of the documents, made from committed records.

    python scripts/tables.py            # fill the blocks of docs/results/*.md and README.md
    python scripts/tables.py --check    # exit 1 and name the pages that are stale

A block stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; a name is that of a function below, with hyphens.
A csv that begins with ``# transcribed`` holds figures copied from an older page, whose record was not kept. It is
linked and never shown as a table, until ``sfumato evaluate`` writes it anew. A missing record is said to be missing.
"""

import csv
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RECORDS, SHEETS, MACHINE = "benchmarks/results/0.1.0", "docs/results", "--two-core-x86_64--cpu"
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n)(?:(?!<!-- table).)*?(<!-- end -->)", re.DOTALL)
NOTES = {
    "front_end 25d9da6": "Ratios were of square roots: 0.97 is today's 0.94.",
    "pipeline e05df35": "Rules of a release changed a little afterwards; the sets are not held out from them.",
    "released 3f23e97": "Joined from several runs of different sources, which the record names: outlines and known "
    "photos are from before the test of three photos, people from while it changed.",
}
"""Notes by record and commit: a record that is measured again loses its note."""
Row = dict[str, Any]
WORDS: dict[Any, str] = {None: "", True: "yes", False: "no"}


class Record(NamedTuple):
    """Rows of one committed file; of a benchmark also commit and seed."""

    path: str
    rows: list[Row]
    commit: str | None = None
    seed: int | None = None


class NoRecord(Exception):
    """No committed record holds a measurement; the text says so on the page."""


Table = tuple[list[list[str]], Sequence[Record], str]
"""Lines with the titles first, the records they are made from, and the command or the options that make these."""


def benchmarks(root: Path, pattern: str) -> list[Record]:
    """Return the records of benchmarks that fit a pattern such as bandwidth--*; sizes of the run stand in every row."""
    suite, _, part = pattern.partition("--")
    records = []
    for path in sorted((root / RECORDS).glob(f"{suite}{MACHINE}{part and '--' + part}.json")):
        read = json.loads(path.read_text(encoding="utf-8"))
        run = {f"run {key}": value for key, value in {"commit": read["commit"], **read["sizes"]}.items()}
        name, rows = path.relative_to(root).as_posix(), [run | row for row in read["rows"]]
        records.append(Record(name, rows, read["commit"], read["seed"]))
    if not records:
        raise NoRecord(
            f"No record of this measurement is committed: `python benchmarks/{suite}.py --json out.json` makes it."
        )
    return records


def sheet(root: Path, name: str) -> list[Record]:
    """Return the record of an evaluation; its figures are texts, and None where there is none."""
    lines = (root / SHEETS / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    if lines[0].startswith("# transcribed"):
        raise NoRecord(f"No record of this measurement is committed, so no table stands here. `{SHEETS}/{name}.csv` "
                       "holds the rounded figures of an earlier page and the command that makes a record.")  # fmt: skip
    rows = [{key: text or None for key, text in row.items()} for row in csv.DictReader(lines)]
    return [Record(f"{SHEETS}/{name}.csv", rows)]


def show(value: Any, form: str = "") -> str:
    """Return a value as text, without fingerprints; a form is digits and perhaps a unit, % or mm (of metres)."""
    if value is None or isinstance(value, bool) or (isinstance(value, str) and not form):
        return re.sub(r"@[0-9a-f]{12}", "", WORDS.get(value, str(value))).replace("|", "\\|")
    digits, unit = form.rstrip("%m"), form.lstrip("0123456789")
    scaled = float(value) * {"%": 100, "mm": 1000}.get(unit, 1)
    text = f"{scaled:,.{digits}f}" if digits else f"{scaled:g}"
    return (text if re.search("[1-9]", text) else text.lstrip("-")) + (unit and f" {unit}")


def cell(row: Row, text: str) -> str:
    """Return a text with each {key:form} replaced; nothing where the first key has no value."""
    keys = re.findall(r"\{([^{}:]+)", text)
    filled = re.sub(r"\{([^{}:]+):?(\w*%?)\}", lambda match: show(row.get(match[1]), match[2]), text)
    return "" if keys and row.get(keys[0]) is None else re.sub(r" \(\)| ± (?=$|[,(])", "", filled)


def grid(records: Sequence[Record], command: str, columns: str, rows: Iterable[Row] | None = None) -> Table:
    """Return a table with a line for each row. Columns are separated by | and are key:form, or title = {key:form}."""
    pairs = [column.partition(" = ")[::2] for column in columns.split(" | ")]
    texts = [text or f"{{{title}}}" for title, text in pairs]
    titles = [title if text else title.partition(":")[0].replace("_", " ") for title, text in pairs]
    every = [row for record in records for row in record.rows] if rows is None else rows
    return [titles, *([cell(row, text) for text in texts] for row in every)], records, command


def crossed(records: Sequence[Record], command: str, down: str, across: str, text: str, rows: Iterable[Row]) -> Table:
    """Return a table with a line for each text of ``down`` and a column for each of ``across``."""
    cells = {(cell(row, down), cell(row, across)): cell(row, text) for row in rows}
    names, titles = (list(dict.fromkeys(pair[i] for pair in cells)) for i in (0, 1))
    return [["", *titles], *([name, *(cells.get((name, at), "") for at in titles)] for name in names)], records, command


DATA = "$SFUMATO_DATA/"
SCENES = f"{DATA}unordered/sceaux-castle {DATA}posed/fountain-P11"
AGAIN = " --json out.json` and `python benchmarks/{}.py "
FACES = "--recipes raw,sealed-2048:1,random-2,hybrid-2,adversarial-4 --seeds 3 -o results/"
LFW, UTK = f"{DATA}faces/lfw_arcface_folds_0-4.npz", f"{DATA}faces/utkface_arcface.npz"
FRONTIER = (
    f"sfumato evaluate frontier reported/ --limit 20 --keyed --pairs {DATA}homography --posed {DATA}posed/fountain-P11 "
    "--recipes default,sealed-512,sub-hybrid-2,sub-hybrid-4,sub-hybrid-2-generated,compress-48,"
    "compress-48+sub-hybrid-2-generated,ninja-sift-1.0,ninja-sift-2.5,ninja-sift-2.5+sub-hybrid-2,subset-4:eps=15 "
    f"--public public.safetensors --models models/ --train-photos {DATA}photos/bsds500/train "
    f"--train-photos {DATA}photos/imagenet-samples --decoder-form direct -o frontier/"
)


README = (
    "matching | {share:2} correct, {correct:0} per pair | plane scenes, within 3 px. Clear SIFT: {raw share:2}, "
    "{raw correct:0} by mutual nearest, {ratio share:2}, {ratio correct:0} with the ratio test | "
    "`sfumato evaluate homography`",
    "leakage | {leakage:2}; oracle {leakage, oracle:2} | pictures by the strongest attack that can be run, and by one "
    "that knows what nobody knows; 0 = keypoints only, 1 = raw SIFT | `sfumato evaluate frontier`",
    "positions that leave | {released} of all rows | {sets}: what three photos see, for a map. None of photos that "
    "share no place | `python benchmarks/pipeline.py`",
    "maps | {points} of COLMAP's points, all {images:0} photos | the same places, beside plain COLMAP. "
    "Localized: {found:0} of 11, {position:1mm} (clear {clear position:1mm}) | `pipeline.py`, `evaluate localize`",
    "time, photos to map | {times} times COLMAP's | processor time of all steps, the same photos and cores | "
    "`python benchmarks/pipeline.py`",
    "time of matching | {bits:2}, {planes:2} | sealed bits, lifted planes; 8,000 features; 1 = faiss on clear SIFT | "
    "`python benchmarks/matching.py`",
    "lifted pairs a second | {rate:1} on two cores | internet photos, {rows:0} features each. The paper: 14 on an RTX "
    "2080 Ti, features not stated | `python benchmarks/pairs.py`",
    "face login | {accuracy:3} | accuracy on LFW, thief with the key; clear embeddings {clear face:3} | "
    "`sfumato evaluate faces`",
)


def readme(root: Path) -> Table:
    sheets = ("homography-default", "frontier", "localize-colmap", "face-verification")
    records = [one for name in sheets for one in sheet(root, name)]
    records += [part for name in ("matching", "pairs", "pipeline") for part in benchmarks(root, name)]
    planes, points, poses, faces, times, pairs, ways = (record.rows for record in records)
    by_recipe = [{show(one["recipe"]): one for one in rows} for rows in (planes, points, poses, reversed(faces))]
    worst = {one["case"]: one for one in sorted(times, key=lambda one: one["times_faiss"]) if one["method"] == "ours"}
    shared = next(one for one in pairs if one["method"] == "sub-hybrid-2")
    ours = [one for one in ways if one["way"] == "default" and one["set"] in PLACES]
    figures = {"points": "points of COLMAP's", "times": "time of COLMAP's", "released": "released", "sets": "set"}
    forms = {"points": "2", "times": "1", "released": "0%", "sets": ""}
    lists = {name: ", ".join(show(one[key], forms[name]) for one in ours) for name, key in figures.items()}
    row = by_recipe[1][DEFAULT] | lists | {"images": sum(one["registered"] for one in ours)}
    row |= {"rate": shared["pairs_per_second"], "rows": shared["rows_per_photo"]}
    row |= {"bits": worst["sealed-512"]["times_faiss"], "planes": worst["subspace-to-subspace m=2"]["times_faiss"]}
    row |= {"found": 11 * float(by_recipe[2]["default"]["localized"])}
    row |= {name: by_recipe[2][recipe]["position [m]"] for name, recipe in POSITIONS}
    for name, recipe in (("", DEFAULT), ("raw ", "raw"), ("ratio ", "raw, ratio 0.8")):
        row |= {f"{name}share": by_recipe[0][recipe]["3 px"], f"{name}correct": by_recipe[0][recipe]["correct 3 px"]}
    row |= {"accuracy": by_recipe[3][FACE]["accuracy"], "clear face": by_recipe[3]["raw"]["accuracy"]}
    lines = ([cell(row, text) for text in line.split(" | ")] for line in README)
    return [["", "figure", "meaning", "command"], *lines], records, "python scripts/tables.py"


DEFAULT, FACE, POSITIONS = "sealed-512", "sealed-2048:1", (("position", "default"), ("clear position", "raw"))
PLACES = ("fountain-P11", "entry-P10", "sceaux-castle")
"""Sets of photos that plain COLMAP maps whole: a share of its points says something."""


def homography(root: Path) -> Table:
    columns = ("recipe | distance | accuracy, 1 px = {1 px:2} | 3 px = {3 px:2} | 5 px = {5 px:2} | matches:0 | "
               "correct, 3 px = {correct 3 px:0} | accuracy / raw = {accuracy 3 px / raw:2} | "
               "correct / raw = {correct 3 px / raw:2}")  # fmt: skip
    options = "--recipes raw,default,sub-hybrid-2 --distance s-to-s --max-features 2000"
    command = f"sfumato evaluate homography {DATA}homography {options} -o results/"
    return grid(sheet(root, "homography-default"), command, columns)


def frontier(root: Path) -> Table:
    columns = ("recipe | accuracy / raw:3 | correct / raw:3 | leakage, practical = {leakage:2}, {leakage by} | "
               "leakage, oracle:2 | within 0.1, practical = {within 0.1:1%} | within 0.1, oracle:1% | "
               "within 0.1, two releases:1% | maps, photos = {registered, fountain-P11:0}, {registered, room:0} | "
               "maps, error = {position error [m], fountain-P11:1mm} | reaches the aims")  # fmt: skip
    return grid(sheet(root, "frontier"), FRONTIER, columns)


def matching_baselines(root: Path) -> Table:
    records = benchmarks(root, "front_end")
    rows = [row | {"share": row["matches"] and row["correct"] / row["matches"]} for row in records[0].rows]
    hard = "{verified pairs} of {of pairs} pairs, {verified:0} matches"
    rows = [row | {"text": cell(row, "{correct:0} of {matches:0} ({share:2})") or cell(row, hard)} for row in rows]
    rows = [row for row in rows if row["front end"] == "colmap" and row["pairs"]]
    return crossed(records, "--recipes clear,default", "{recipe}, ratio {ratio}", "{pairs}", "{text}", rows)


def seal_keys(root: Path) -> Table:
    records = benchmarks(root, "sealkey")
    columns = ("known to the attacker = {case} | photos laid over = {registered} | pairs:0 | true:0% | bits "
               "foretold = {bits:0%} | within 0.1:1% | leakage:2")  # fmt: skip
    rows = [row for row in records[0].rows if row["bits"] is not None and not row.get("chaff")]  # gone since
    return grid(records, "--quick", columns, rows)


def people(root: Path) -> Table:
    return grid(benchmarks(root, "people"), "", "attack | ssim:3 | leakage:2 | outlines:2")


def pipeline(root: Path) -> Table:
    columns = ("set | photos | way | registered | points:0 | points of COLMAP's:2 | time of COLMAP's:2 | conceal [s] = "
               "{conceal cpu s:1} | match [s] = {match cpu s:1} | release [s] = {release cpu s:1} | map [s] = "
               "{map cpu s:1} | MB:0 | released:0% | without need:0%")  # fmt: skip
    return grid(benchmarks(root, "pipeline"), "", columns)


def released(root: Path) -> Table:
    records = benchmarks(root, "released")
    silent = {row["of"] for row in records[0].rows if row["figure"] == "share released" and not row["value"]}
    rows = [row for row in records[0].rows if row["figure"] in TELLING and row["of"] not in silent]
    return grid(records, "", "part | of | figure | value:3 | low:3 | high:3 | count:0", rows)


TELLING = (
    "area under the curve, all", "correlation with y", "released: painter", "all positions: painter",
    "of released rows on people", "of released rows on either", "bits foretold", "read within 0.3", "found first",
)  # fmt: skip
"""Figures of the record that are shown; sets that release nothing are left out."""


def mapping(root: Path) -> Table:
    records = benchmarks(root, "mapping")
    columns = "scene | recipe | mapper | seed | registered | images | points:0 | explained:3 | error deg:2 | in doubt"
    return grid(records, cell(records[0].rows[0], "--features {run features} --seeds {run seeds}"), columns)


def maps_colmap(root: Path) -> Table:
    columns = "scene | recipe | images | points:0 | points / COLMAP:2 | track:2 | rotation [deg]:2 | doubt | all [s]:0"
    command = f"sfumato evaluate map {SCENES} --recipes raw,default,sub-hybrid-2 -o results/"
    return grid(sheet(root, "map-colmap"), command, columns)


def localization_colmap(root: Path) -> Table:
    columns = "scene | recipe | localized:2 | false:0 | rotation [deg]:3 | position [scene]:4 | position [m]:4"
    command = f"sfumato evaluate localize {DATA}posed/fountain-P11 --recipes raw,default,sub-hybrid-2 -o results/"
    return grid(sheet(root, "localize-colmap"), command, columns)


def shortlists(root: Path) -> Table:
    columns = "recipe | remark | recall_at_5:2 | recall_at_10:2 | recall_at_20:2 | seconds_an_image:3"
    return grid(benchmarks(root, "retrieval"), "", columns)


def matching_speed(root: Path) -> Table:
    records = benchmarks(root, "matching")
    rows = sorted(records[0].rows, key=lambda row: row["times_faiss"])  # of several pairs the slowest stays
    rows = [row | {"rate": 1 / row["seconds"]} for row in rows if row["method"] != "ours unpruned"]
    worst = {(row["case"], row["method"], row["features"]): row for row in rows}
    columns = "case | method | features:0 | seconds:3 | pairs a second = {rate:1} | times_faiss:2 | times_binary_flat:2"
    return grid(records, "", columns, [worst[key] for key in sorted(worst)])


def image_pairs(root: Path) -> Table:
    columns = "set | method | rows_per_photo:0 | pairs_per_second:2 | times_faiss:2 | threads"
    records = benchmarks(root, "pairs")
    return grid(records, "", columns, [row for row in records[0].rows if "+chaff" not in row["method"]])  # gone since


def localization_speed(root: Path) -> Table:
    columns = "map_images | landmarks:0 | method | seconds:2 | times_faiss_flat:2 | localized | queries"
    return grid(benchmarks(root, "localize"), "", columns)


def service(root: Path) -> Table:
    columns = "case | clients | answered | refused | lost | localized | p50_seconds:2 | p95_seconds:2 | engine_mb:0"
    return grid(benchmarks(root, "service"), "", columns)


def face_verification(root: Path) -> Table:
    rates = ("TAR at FAR 0.01", "TAR at FAR 0.001, all strangers", "TAR at FAR 0.0001, all strangers")
    columns = "".join(f" | {rate} = {{{rate}:3}} ({{{rate} low:3}} to {{{rate} high:3}})" for rate in rates)
    columns = f"recipe | distance | accuracy = {{accuracy:3}} ± {{accuracy deviation:3}}{columns}"
    command = f"sfumato evaluate faces {LFW} --decoys {UTK} --strangers 200000 {FACES}"
    return grid(sheet(root, "face-verification"), command, columns)


def face_protection(root: Path) -> Table:
    columns = ("recipe | keys | linkable:2 | TAR at FAR 0.001:3 | accuracy, 10 renewals:3 | lowest:3 | "
               "revoked accepted:3 | face from database:3 | face from two:3 | face with key:3 | "
               "master probe with key:3 | from rows:3")  # fmt: skip
    return grid(sheet(root, "face-protection"), f"sfumato evaluate protection {LFW} --decoys {UTK} {FACES}", columns)


def face_attributes(root: Path) -> Table:
    records = sheet(root, "face-attributes")
    rows = [row | {"name": f"{row['recipe']} {row['attacker'] or ''}".strip()} for row in records[0].rows]
    command = f"sfumato evaluate attributes {UTK} {FACES.replace(' --seeds', ',hybrid-labels-2 --seeds')}"
    return crossed(records, command, "{name}", "{attribute}", "{leakage:3} (majority {majority:3})", rows)


def face_seals(root: Path) -> Table:
    records = benchmarks(root, "faceseals")
    rows = [row for row in records[0].rows if (row["case"], row["folds"], row["waves"]) == ("size", "3-4", "odd")]
    text = "{accuracy:3}, {true accepts:3}, {master probe:3}, {messages:3}"
    return crossed(records, "", "{bits} bits", "bandwidth {bandwidth}", text, rows)


def face_tries(root: Path) -> Table:
    records = benchmarks(root, "faceseals")
    columns = (
        "tries | faces of other LFW people = {strangers:3} | faces of UTKFace = {public:3} | chosen faces = {chosen:3}"
    )
    return grid(records, "", columns, [row for row in records[0].rows if row["case"] == "tries"])


def face_centres(root: Path) -> Table:
    records = benchmarks(root, "faceseals")
    columns = ("length of the common part = {common:1} | cosine of strangers = {cosine:2} | true accepts:3 | one "
               "master probe = {master probe:3} | once the mean is subtracted = {mean subtracted:3}")  # fmt: skip
    return grid(records, "", columns, [row for row in records[0].rows if row["case"] == "common part"])


def identify(root: Path) -> Table:
    columns = "recipe | people:0 | run threads | probes | sfumato ms:1 | faiss ms:1 | faiss binary ms:1 | same"
    records = benchmarks(root, "identify") + benchmarks(root, "identify--sealed")
    options = "--recipes hybrid-2{0}--recipes sealed-2048:1 --people 1000000 --threads 2 --probes 1 64"
    return grid(records, options.format(AGAIN.format("identify")), columns)


def search(root: Path) -> Table:
    records, usual = benchmarks(root, "search"), re.compile(r"exact|inverted 0\.(15|45)|faiss.*")
    rows = [row for row in records[0].rows if row["ms_single"] and "bits" not in row["queries"]]
    columns = ("entries:0 | queries | search | recall_1:3 | right = {recall_1_true:3} | recall_10:3 | ms alone = "
               "{ms_single:2} ({faster_single:1}) | ms in a batch = {ms_batch:2} ({faster_batch:1})")  # fmt: skip
    options = "--entries 100000 200000 1000000 --keep scratch/"
    return grid(records, options, columns, [row for row in rows if usual.fullmatch(row["search"])])


def search_bits(root: Path) -> Table:
    records, flags = benchmarks(root, "search--bits"), "--bits-only --entries 1000000 --codes 1000000 3000000 10000000"
    columns = "entries:0 | queries | search | recall_1:3 | ms alone = {ms_single:1} | ms in a batch = {ms_batch:2}"
    return grid(records, flags, columns, [row for row in records[0].rows if row["ms_single"]])


TABLES = {name.replace("_", "-"): make for name, make in list(globals().items())
          if getattr(make, "__annotations__", {}) == {"root": Path, "return": Table}}  # fmt: skip


def render(table: Table, page: str) -> str:
    """Return a table as Markdown for a page, below it records, notes and command, which the README has in its rows."""
    (titles, *lines), records, command = table
    body = "".join(f"| {' | '.join(line)} |\n" for line in (titles, ["---"] * len(titles), *lines))
    if page == "README.md":
        return body
    names, folder = [Path(one.path).stem.replace(MACHINE, "") for one in records], os.path.dirname(page)
    if not command.startswith(("sfumato", "python")):
        command = " ".join(f"python benchmarks/{names[0].partition('--')[0]}.py {command} --json out.json".split())
    sources = [f"`{one.path}` (commit {one.commit}, seed {one.seed})" if one.path.endswith("json") else
               f"[{Path(one.path).name}]({os.path.relpath(one.path, folder)})" for one in records]  # fmt: skip
    notes = [NOTES.get(f"{name} {one.commit}", "") for name, one in zip(names, records, strict=True)]
    return "\n".join([body, f"Record: {', '.join(sources)}.", f"Command: `{command}`.", *filter(None, notes), ""])


def table_text(name: str, page: str, root: Path) -> str:
    """Return the text of a block: a table, or that there is no record of it."""
    try:
        return render(TABLES[name](root), page)
    except NoRecord as problem:
        return f"{problem}\n"


def fill(text: str, page: str, root: Path = ROOT) -> str:
    """Return the text of a page with its blocks filled; ends the program at an unknown name or a block without end."""
    names = [block[2] for block in BLOCK.finditer(text)]
    if len(names) != text.count("<!-- table"):
        sys.exit(f"{page}: a table block has no name or no end")
    if unknown := sorted(set(names) - set(TABLES)):
        sys.exit(f"{page}: unknown table {', '.join(unknown)}; known are {', '.join(TABLES)}")
    return BLOCK.sub(lambda block: block[1] + table_text(block[2], page, root) + block[3], text)


def stale_pages(root: Path = ROOT) -> dict[str, str]:
    """Return the pages whose blocks differ from the records, with the text that they should have."""
    paths = [root / "README.md", *sorted((root / SHEETS).glob("*.md"))]
    texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    return {page: filled for page, text in texts.items() if (filled := fill(text, page, root)) != text}


def main(argv: Sequence[str]) -> int:
    stale = stale_pages()
    for page, text in stale.items():
        print(f"{page}: {'stale: run python scripts/tables.py' if '--check' in argv else 'written'}")
        if "--check" not in argv:
            (ROOT / page).write_text(text, encoding="utf-8")
    return int("--check" in argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
