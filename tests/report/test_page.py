# SPDX-License-Identifier: Apache-2.0
"""The page: all figures are on it, nothing on it acts or asks for anything, and it says what it does not know."""

import base64
import html
import re
from html.parser import HTMLParser

import pytest

from sfumato.report.page import figure, left_out, make_page, not_run, plain_recipe
from sfumato.report.words import OUTLINES, UNREAD
from sfumato.report.words import SEALED as SEALED_WORDS
from sfumato.types.record import Picture, Record, Score

PHOTO = '"><script>alert(1)</script>.jpg'


class Reader(HTMLParser):
    """Collects tags with their attributes, and checks that what is opened is closed."""

    EMPTY = frozenset({"meta", "img", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert not reader.stack
    return reader


@pytest.fixture
def pictures():
    def seen(recipe, attack, photo=PHOTO):
        return Picture(shows="seen", content=b"x", media="image/webp", photo=photo, recipe=recipe, attack=attack)

    recipe = "ninja-mine@0123456789ab"
    return [
        Picture(shows="photo", content=b"original", media="image/webp", photo=PHOTO),
        seen("raw", "clear"), seen("raw", "floor"), seen("sub-hybrid-2", "vertex"),
        seen("sub-hybrid-2", "vertex+decoys"), seen(recipe, "direct"),
        Picture(shows="matches", content=b"lines", media="image/webp", photo=PHOTO, recipe="sub-hybrid-2"),
        Picture(shows="plot", content=b"<svg/>", media="image/svg+xml"),
    ]  # fmt: skip


def test_the_verdict_comes_first(records, pictures):
    page = make_page(records, pictures, "2026-01-02")
    title = re.search("<h1>(.*?)</h1>", page)
    assert title is not None
    assert (
        title[1]
        == "Under the default recipe a server still sees 60 % of what clear features add to keypoints. Verdict: weak."
    )
    text = read(page).text
    assert "Not tested: a decoder trained to undo this very recipe." in text
    assert "2026-01-02" in text
    assert "contains your photos" in text
    assert "2 of 4 were downscaled to 640 pixels" in text


def test_the_strip_shows_the_attack_that_the_card_names(records, pictures):
    page = make_page(records, pictures)
    tags = read(page).tags
    assert "The strongest attack, <b>vertex+decoys</b>, shows 100 %." in page
    assert "<b>vertex</b>: 97 %" in page
    shown = [attributes["alt"] or "" for tag, attributes in tags if tag == "img"][:5]
    named = [shown[1], *shown[3:]]
    assert [alt.split(", by the attack ")[-1] for alt in named] == ["direct", "vertex+decoys", "clear"]
    assert "from keypoints with a mean descriptor" in shown[2]


def test_what_keypoints_alone_show_stands_beside_the_default(records, pictures, make_attack):
    page = make_page(records, pictures)
    assert "The zero of the scale</b>keypoints with a mean descriptor" in page
    assert "From keypoints alone" not in page
    assert "positions alone" not in page
    seen = Picture(shows="seen", content=b"blind", media="image/webp", photo=PHOTO, recipe="raw", attack="keypoints")
    page = make_page([*records, make_attack("raw", "keypoints", 0.17)], [*pictures, seen])
    strip = page[page.index('class="strip"') : page.index("<h2>Verdict")]
    assert "From keypoints alone</b>no descriptor: what no recipe hides" in strip
    assert "zero of the scale" not in strip
    assert base64.b64encode(b"blind").decode() in strip
    text = read(page).text
    assert "shows 17 % here" in text
    assert "keypoints: an inverter trained to paint from keypoints alone, without any descriptor" in text
    assert "no descriptor: what no recipe hides, mean 17 %" in text


def test_an_attack_that_shows_less_than_keypoints_is_not_given_a_figure_below_its_picture(make_attack):
    recipe = "sealed-512@330fa2794d6c"
    seen = Picture(shows="seen", content=b"x", media="image/webp", photo="a", recipe=recipe, attack="alignment")
    photo = Picture(shows="photo", content=b"x", media="image/webp", photo="a")
    records = [sealed_audit(), make_attack("raw", "keypoints", 0.17), make_attack(recipe, "alignment", 0.05, 0.0)]
    page = make_page(records, [photo, seen])
    text = read(page).text
    assert title(page) == "Under the default recipe no attack showed more than keypoints do. Verdict: open."
    assert "picture that leaks 17 %, from keypoints" in text
    assert "alignmentmean: no more than keypoints show" in text
    assert "0.05" in text


def test_no_picture_is_said_to_show_nothing(make_attack):
    recipe = "sealed-512@330fa2794d6c"
    seen = Picture(shows="seen", content=b"x", media="image/webp", photo="a", recipe=recipe, attack="alignment")
    photo = Picture(shows="photo", content=b"x", media="image/webp", photo="a")
    text = read(make_page([sealed_audit(), make_attack(recipe, "alignment", -0.09)], [photo, seen])).text
    assert "attack: alignment, no more than keypoints show" in text
    assert "alignmentmean: no more than keypoints show" in text
    assert OUTLINES in text
    assert not [words for words in ("got nothing", "leaks nothing", "got anything", "gave nothing") if words in text]


def test_nothing_acts_and_nothing_is_asked_for(records, pictures):
    page = make_page(records, pictures)
    reader = read(page)
    assert not {"script", "link", "iframe", "object", "embed", "form"} & {tag for tag, _ in reader.tags}
    for _, attributes in reader.tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("src") or "data:image/").startswith("data:image/")
        assert "href" not in attributes
    assert "url(" not in page
    assert "@import" not in page
    assert "http://" not in page
    assert "https://" not in page


def test_every_picture_says_what_it_is_and_is_whole(records, pictures):
    images = [attributes for tag, attributes in read(make_page(records, pictures)).tags if tag == "img"]
    assert images
    for attributes in images:
        assert attributes["alt"]
        assert base64.b64decode((attributes["src"] or "").split("base64,")[1])


def test_names_are_escaped(records, pictures):
    page = make_page(records, pictures)
    assert "<script>" not in page
    assert "broken<b>" not in page
    assert "broken&lt;b&gt;.jpg: it is cut off" in page


def test_every_figure_parameter_and_version_is_on_it(records, pictures):
    text = read(make_page(records, pictures)).text
    for wanted in ("0.97", "1.3", "a slow one", "9.9", "abc", "oracle-sphere *", "75 %"):
        assert wanted in text, wanted
    assert text.count("vertex+decoys") >= 3


def test_records_alone_make_a_page(records):
    reader = read(make_page(records[1:]))
    assert not [tag for tag, _ in reader.tags if tag == "img"]
    assert "contains your photos" not in reader.text
    assert "Under ninja-mine a server still sees 60 %" in reader.text


def test_clear_features_alone_make_a_page(make_attack):
    text = read(make_page([make_attack("raw", "clear", 1.0)])).text
    assert "Clear features show the photo" in text


@pytest.mark.parametrize(("value", "shown"), [(None, ""), (0.123456, "0.1235"), (3, "3"), ("a", "a")])
def test_figures_of_tables(value, shown):
    assert figure(value) == shown


def test_recipes_for_people():
    assert plain_recipe("raw") == "clear features"


SEALED = "sealed-512@330fa2794d6c"


def sealed_audit(*dropped: str) -> Record:
    counts = tuple(Score(name, 1, samples=1) for name in ("photos", "reduced", "left out"))
    return Record("audit", counts, {"default": SEALED, "side": 640}, dropped=dropped)


def title(page: str) -> str:
    found = re.search("<h1>(.*?)</h1>", page)
    assert found is not None
    return found[1]


def test_a_failed_attack_is_not_0_percent_and_its_figure_stays_in_the_table(make_attack):
    page = make_page([sealed_audit(), make_attack(SEALED, "alignment", -0.09, 0.0, features=900.0)])
    assert title(page) == "Under the default recipe no attack showed more than keypoints do. Verdict: open."
    text = read(page).text
    assert "picture that leaks no more than keypoints show" in text
    assert "-0.09" in text


def test_a_title_claims_no_more_than_the_verdict(make_attack):
    page = make_page([sealed_audit(), make_attack(SEALED, "alignment", 0.1, 0.0, features=900.0)])
    assert "attacks got 10 % of what clear features add to keypoints: no evidence yet. Verdict: open." in title(page)


def test_the_page_says_which_figure_decided_and_shows_both(make_attack, make_reference):
    records = [sealed_audit(), make_attack(SEALED, "alignment", -0.09, 0.0), make_reference(SEALED, 0.234)]
    page = make_page(records)
    assert "still sees 23 %" in title(page)
    text = read(page).text
    assert "measured with 200 photos under one key: 23 %, by alignment. Your 3 photos alone gave no more than" in text
    assert "alignment, by the authors" in text
    assert "0.234" in text
    assert "-0.09" in text
    assert text.count("reference") == 0, "it is no run of this audit"


def test_the_gap_of_sealed_recipes_is_on_the_page(make_attack):
    text = read(make_page([make_attack(SEALED, "alignment", 0.1), make_attack(SEALED, "known-pairs", 0.48)])).text
    assert text.count(SEALED_WORDS) == 2
    assert "(known-pairs) got 48 %; key-recovery" in text
    assert "for known-pairs a holder of the key sealed features" in text
    assert "An oracle: shown" not in text


def test_what_could_not_be_run_is_told_apart_from_photos_left_out(make_match, make_attack):
    params = {"recipe": SEALED, "attack": "alignment", "descriptor": "sift", "inverter": "patch"}
    nothing = Record("leakage", (), params, dropped=("square.png: alignment needs 64 codes",))
    matched = [make_match("raw", 12.0, "p-to-p"), make_match(SEALED, 12.0, "p-to-p")]
    records = [sealed_audit(), *matched, make_attack("raw", "clear", 1.0), nothing]
    assert (left_out(records), not_run(records)) == (
        [],
        ["sealed-512, alignment: square.png: alignment needs 64 codes"],
    )
    page = make_page(records)
    text = read(page).text
    assert "Left out" not in text
    assert "Could not be run (1)" in text
    assert "Nothing was measured" in text
    assert "got little" not in text
    assert title(page).startswith("What a server sees under the default recipe could not be measured on these photos.")
    assert '<p class="untested">Protects only against' in page


def test_the_note_of_a_card_is_short_and_the_rest_is_folded_but_printed(make_attack):
    page = make_page([sealed_audit(), make_attack(SEALED, "alignment", 0.1), make_attack(SEALED, "known-pairs", 0.48)])
    card = page[page.index('<section class="card">') : page.index("</section>")]
    assert re.search('<p class="untested">Protects only against [^.]*[.]</p>', card)
    folded = card[card.index("<details>") : card.index("</details>")]
    assert SEALED_WORDS in html.unescape(folded)
    assert "The strongest here was <b>alignment</b>" in folded
    assert len(card[card.index("<p>") : card.index("</p>")]) < 400
    assert "details::details-content { content-visibility: visible" in page[page.index("@media print") :]


def test_the_default_is_answered_first(records, pictures):
    cards = re.findall("<header><h3>(.*?)</h3>", make_page(records, pictures))
    assert cards == ["ninja-mine (the default)", "sub-hybrid-2", "clear features"]


def test_titles_with_an_inverter_are_explained_and_have_their_picture(make_attack):
    name = "told-alignment, inverter trained on it"
    seen = Picture(shows="seen", content=b"x", media="image/webp", photo="a", recipe=SEALED, attack=name)
    photo = Picture(shows="photo", content=b"x", media="image/webp", photo="a")
    attack = make_attack(SEALED, "told-alignment", 0.27, inverter="inverter trained on it")
    page = make_page([sealed_audit(), attack], [photo, seen])
    assert f"from sealed-512, by the attack {name}" in page
    assert page.count("painted by an inverter trained on such readings") == 2
    assert UNREAD not in page


def test_the_reference_says_what_its_attacker_knew(make_attack, make_reference):
    records = [make_attack(SEALED, "told-alignment", -0.09, knows="public, told")]
    page = make_page([*records, make_reference(SEALED, 0.234, attack="told-alignment")])
    assert 'told-alignment, by the authors</td><td class="extra">public, told</td>' in page


def test_shares_of_matches_are_said_to_be_means_of_pairs(records):
    text = read(make_page(records)).text
    assert "share correct, mean of pairs" in text
    assert "per pair and then averaged" in text


def test_a_page_that_stands_alone_points_nowhere(records, pictures, make_attack, make_reference):
    audit = Record(records[0].task, records[0].scores, {**records[0].params, "reference points": 8})
    page = make_page([audit, *records[1:], make_attack(SEALED, "unheard-of", 0.1)], pictures)
    assert "8 grey dots" in page
    assert "docs/" not in page


def test_captions_say_that_figures_are_means(records, pictures):
    text = read(make_page(records, pictures)).text
    assert "vertex+decoysmean: leaks 100 %" in text
    assert "figures are means over all" in text


def test_wide_tables_say_that_they_go_on_and_print_in_a_size_to_read(records, pictures):
    page = make_page(records, pictures)
    assert "swipe sideways" in page
    printed = page[page.index("@media print") :]
    size = re.search(r"table { font-size: ([0-9.]+)pt", printed)
    assert size is not None
    assert float(size[1]) >= 8
    assert ".extra { display: none; }" in printed
    assert 'class="extra">knows' in page
