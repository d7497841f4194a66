# SPDX-License-Identifier: Apache-2.0
"""The page: all figures are on it, nothing on it acts or asks for anything, and it says what it does not know."""

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from sfumato.report.page import figure, left_out, make_page, not_run, plain_recipe
from sfumato.report.words import LIMIT, NOTHING_RAN, SEALED_UNTESTED
from sfumato.types.record import Picture, Record, Score

PHOTO = '"><script>alert(1)</script>.jpg'
DEFAULT = "ninja-mine@0123456789ab"
SEALED = "sealed-512@330fa2794d6c"


class Reader(HTMLParser):
    """Collects tags with their attributes, the text, and what of it is seen first: not folded away."""

    EMPTY = frozenset({"meta", "img", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.text = ""
        self.first = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text += data
        self.first += "" if {"details", "style"} & set(self.stack) else data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert not reader.stack
    return reader


def title(page: str) -> str:
    heading = re.search("<h1>(.*?)</h1>", page)
    assert heading is not None
    return heading[1]


def alts(page: str, css: str) -> list[str]:
    """The alternative texts of the pictures in the first element of a class."""
    part = page[page.index(f'class="{css}"') :]
    return [
        attributes["alt"] or "" for tag, attributes in read(part[: part.index("</div>")] + ">").tags if tag == "img"
    ]


@pytest.fixture
def pictures():
    def seen(recipe, attack, photo=PHOTO):
        return Picture(shows="seen", content=b"x", media="image/webp", photo=photo, recipe=recipe, attack=attack)

    return [
        Picture(shows="photo", content=b"other", media="image/webp", photo="other.jpg"),
        Picture(shows="photo", content=b"original", media="image/webp", photo=PHOTO),
        seen("raw", "clear"), seen("raw", "floor"), seen("raw", "clear", "other.jpg"), seen("sub-hybrid-2", "vertex"),
        seen("sub-hybrid-2", "vertex+decoys"), seen(DEFAULT, "direct"), seen(DEFAULT, "oracle"),
        *(Picture(shows="matches", content=b"lines", media="image/webp", photo=PHOTO, recipe=recipe)
          for recipe in ("raw", "sub-hybrid-2", DEFAULT)),
        Picture(shows="plot", content=b"<svg/>", media="image/svg+xml"),
    ]  # fmt: skip


# --- what is seen first


def test_the_first_row_is_the_photo_what_is_sent_today_and_the_default(records, pictures):
    page = make_page(records, pictures, "2026-01-02")
    assert title(page) == "Under the default recipe a server still sees 60 % of what clear features show."
    photo, clear, default = alts(page, "row big")
    assert "script" in photo, "the first photo of which the default has a picture"
    assert "from clear features" in clear
    assert default.endswith("from ninja-mine, by the attack direct")
    captions = re.findall("<figcaption><b>(.*?)</b>", page)
    assert captions[:3] == ["The photo", "What programs send today", "What the default sends"]
    assert "2026-01-02" in page


def test_more_photos_and_the_published_recipes_follow(records, pictures):
    page = make_page(records, pictures)
    assert alts(page, "row more")[0] == "The photo, other.jpg"
    assert [one.split(" from ")[1] for one in alts(page, "others")] == ["sub-hybrid-2, by the attack vertex+decoys"]
    order = ["row big", "row more", "Published recipes", "Does matching", "<h2>Details"]
    places = [page.index(one) for one in order]
    assert places == sorted(places)


def test_sealed_recipes_are_not_called_published(records, pictures, make_attack):
    assert "Other recipes" in make_page([*records, make_attack(SEALED, "positions", 0.7)], pictures)


@pytest.mark.parametrize(
    ("leakage", "within", "words"),
    [(0.05, 0.0, "vague"), (0.2, 0.0, "outlines"), (0.5, 0.0, "50 %"), (0.9, 0.0, "90 %"), (0.05, 0.5, "themselves")],
)
def test_the_title_follows_the_verdict(make_attack, leakage, within, words):
    assert words in title(make_page([make_attack("random-2", "direct", leakage, within)]))


def test_the_title_claims_no_more_than_the_verdict(make_attack, make_match):
    few = title(make_page([sealed_audit(), make_attack(SEALED, "alignment", 0.01, 0.0, features=900.0)]))
    assert "too little was tried" in few
    nothing = title(make_page([sealed_audit(), make_match("raw", 12.0, "p-to-p"), make_match(SEALED, 12.0, "p-to-p")]))
    assert "could not be measured" in nothing
    assert "Clear features" in title(make_page([make_attack("raw", "clear", 1.0)]))


def test_only_raw_and_the_default_are_matched_before_the_fold(records, pictures):
    page = make_page(records, pictures)
    assert [one.split(" under ")[1] for one in alts(page, "pairs")] == ["clear features", "ninja-mine"]
    text = read(page).first
    assert "keeps 95 % of the correct matches of clear features" in text
    assert "60 of 100" in text


def test_the_limit_of_a_key_stands_before_the_fold_for_sealed_recipes_alone(make_attack, records):
    assert LIMIT in read(make_page([make_attack(SEALED, "positions", 0.1)])).first
    assert LIMIT not in read(make_page(records)).text


def test_no_jargon_stands_before_the_fold(records, pictures, make_attack, make_reference):
    seals = [make_attack(SEALED, "told-alignment", 0.1, counts=False), make_attack(SEALED, "positions", 0.05)]
    page = make_page([*records, *seals, make_reference(SEALED, 0.08)], pictures)
    words = read(page).first.lower()
    jargon = ("keypoint", "descriptor", "oracle", "alignment", "inverter", "codes", "ssim")
    assert not [one for one in jargon if one in words]


def test_what_the_authors_measured_is_told_where_it_decided(make_attack, make_reference):
    photo = Picture(shows="photo", content=b"x", media="image/webp", photo="a")
    attack = make_attack(SEALED, "alignment", -0.09, 0.0)
    text = read(make_page([sealed_audit(), attack, make_reference(SEALED, 0.234)], [photo])).first
    assert "With 200 photos under one key the authors saw 23 %" in text
    assert "The 3 photos here gave 0 %" in text
    text = read(make_page([sealed_audit(), attack, make_reference(SEALED, -0.2)], [photo])).first
    assert "authors" not in text


# --- details


def sealed_audit(*dropped: str) -> Record:
    counts = tuple(Score(name, 1, samples=1) for name in ("photos", "reduced", "left out"))
    return Record("audit", counts, {"default": SEALED, "side": 640}, dropped=dropped)


def test_verdicts_are_folded_where_there_are_pictures_and_else_come_first(records, pictures):
    with_pictures, alone = read(make_page(records, pictures)), read(make_page(records))
    assert "picture that leaks" in with_pictures.text
    assert "picture that leaks" not in with_pictures.first
    assert "picture that leaks" in alone.first
    cards = re.findall("<header><h3>(.*?)</h3>", make_page(records, pictures))
    assert cards == ["ninja-mine (the default)", "sub-hybrid-2", "clear features"]


def test_what_is_folded_is_printed(records):
    page = make_page(records)
    assert "details::details-content { content-visibility: visible" in page[page.index("@media print") :]


def test_attackers_with_help_are_shown_apart(records, pictures):
    page = make_page(records, pictures)
    counted, helped = page.index("Pictures of every attack"), page.index("Attackers who get help")
    assert counted < page.index("as painted by direct from ninja-mine") < helped
    assert helped < page.index("as painted by oracle from ninja-mine")
    assert page.count("as painted by oracle from ninja-mine") == 1


def test_a_leakage_below_0_is_0_percent_and_its_figure_stays_in_the_table(make_attack):
    text = read(make_page([sealed_audit(), make_attack(SEALED, "alignment", -0.09, 0.0)])).text
    assert "picture that leaks 0 %" in text
    assert "-0.09" in text
    assert "-9 %" not in text


def test_the_reference_is_a_row_of_figures_and_no_run(make_attack, make_reference):
    text = read(make_page([make_attack(SEALED, "alignment", -0.09, 0.0), make_reference(SEALED, 0.234)])).text
    assert "alignment, by the authors" in text
    assert "0.234" in text
    assert "reference" not in text


def test_what_could_not_be_run_is_told_apart_from_photos_left_out(make_match, make_attack):
    params = {"recipe": SEALED, "attack": "alignment", "descriptor": "sift", "inverter": "patch"}
    nothing = Record("leakage", (), params, dropped=("square.png: alignment needs 64 codes",))
    matched = [make_match("raw", 12.0, "p-to-p"), make_match(SEALED, 12.0, "p-to-p")]
    records = [sealed_audit(), *matched, make_attack("raw", "clear", 1.0), nothing]
    assert left_out(records) == []
    assert not_run(records) == ["sealed-512, alignment: square.png: alignment needs 64 codes"]
    text = read(make_page(records)).text
    assert "Left out" not in text
    assert "Could not be run (1)" in text
    assert NOTHING_RAN in text


def test_a_recipe_without_a_picture_keeps_its_verdict_in_the_row(make_match, make_attack):
    photo = Picture(shows="photo", content=b"x", media="image/webp", photo="a")
    page = make_page([sealed_audit(), make_match(SEALED, 12.0), make_attack("raw", "clear", 1.0)], [photo])
    assert alts(page, "row big") == ["The photo, a"]
    assert NOTHING_RAN in read(page).first


def test_attackers_and_what_was_not_tested_are_told(records, pictures, make_attack):
    seal = make_attack(SEALED, "positions", 0.27, inverter="inverter trained on it")
    text = read(make_page([*records, seal], pictures)).text
    assert "positions, inverter trained on it: an inverter trained to paint from positions alone" in text
    assert "oracle: an oracle picks" in text
    assert SEALED_UNTESTED in text
    assert "ninja-mine: A decoder trained on this very recipe." in text


def test_every_figure_parameter_and_version_is_on_it(records, pictures):
    text = read(make_page(records, pictures)).text
    for part in ("0.97", "1.3", "a slow one", "9.9", "abc", "oracle-sphere *", "75 %", "2 of 4 were downscaled to 640"):
        assert part in text, part
    assert text.count("vertex+decoys") >= 3
    assert "contains your photos" in text


# --- a page that stands alone


def test_nothing_acts_and_nothing_is_asked_for(records, pictures):
    page = make_page(records, pictures)
    reader = read(page)
    assert page.startswith("<!doctype html>")
    assert "default-src 'none'" in page
    assert not {"script", "link", "iframe", "object", "embed", "form"} & {tag for tag, _ in reader.tags}
    for _, attributes in reader.tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("src") or "data:image/").startswith("data:image/")
        assert "href" not in attributes
    for part in ("url(", "@import", "http://", "https://", "docs/"):
        assert part not in page, part


def test_every_picture_says_what_it_is_and_is_whole(records, pictures):
    images = [attributes for tag, attributes in read(make_page(records, pictures)).tags if tag == "img"]
    assert len(images) > len(pictures)
    for attributes in images:
        assert attributes["alt"]
        assert base64.b64decode((attributes["src"] or "").split("base64,")[1])


def test_names_are_escaped(records, pictures):
    page = make_page(records, pictures)
    assert "<script>" not in page
    assert "broken<b>" not in page
    assert "broken&lt;b&gt;.jpg: it is cut off" in page


def test_records_alone_make_a_page(records):
    reader = read(make_page(records[1:]))
    assert not [tag for tag, _ in reader.tags if tag == "img"]
    assert "contains your photos" not in reader.text
    assert "Under ninja-mine a server still sees 60 %" in reader.text


def test_dots_of_the_plot_are_counted(records, pictures):
    audit = replace(records[0], params={**records[0].params, "reference points": 8})
    assert "8 grey dots" in make_page([audit, *records[1:]], pictures)
    assert "grey dots" not in make_page(records, pictures)


def test_wide_tables_say_that_they_go_on_and_print_in_a_size_to_read(records, pictures):
    page = make_page(records, pictures)
    assert "swipe sideways" in page
    printed = page[page.index("@media print") :]
    size = re.search(r"table { font-size: ([0-9.]+)pt", printed)
    assert size is not None
    assert float(size[1]) >= 8
    assert ".extra { display: none; }" in printed
    assert 'class="extra">knows' in page


@pytest.mark.parametrize(("value", "shown"), [(None, ""), (0.123456, "0.1235"), (3, "3"), ("a", "a")])
def test_figures_of_tables(value, shown):
    assert figure(value) == shown


def test_recipes_for_people():
    assert plain_recipe("raw") == "clear features"
    assert plain_recipe(SEALED) == "sealed-512"
