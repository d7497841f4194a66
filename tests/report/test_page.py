# SPDX-License-Identifier: Apache-2.0
"""The page: all figures are on it, nothing on it acts or asks for anything, and it says what it does not know."""

import base64
import re
from html.parser import HTMLParser

import pytest

from sfumato.report.page import figure, make_page, percent, plain_recipe
from sfumato.types.record import Picture

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
        seen("raw", "clear"), seen("raw", "floor"), seen("sub-hybrid-2", "vertex"), seen(recipe, "direct"),
        Picture(shows="matches", content=b"lines", media="image/webp", photo=PHOTO, recipe="sub-hybrid-2"),
        Picture(shows="plot", content=b"<svg/>", media="image/svg+xml"),
    ]  # fmt: skip


def test_the_verdict_comes_first(records, pictures):
    page = make_page(records, pictures, "2026-01-02")
    title = re.search("<h1>(.*?)</h1>", page)
    assert title is not None
    assert (
        title[1] == "Under the default recipe a server still sees 60 % of what clear features give away. Verdict: weak."
    )
    text = read(page).text
    assert "Not tested: a decoder trained to undo this very recipe." in text
    assert "2026-01-02" in text
    assert "contains your photos" in text
    assert "2 of 4 were reduced to 640 pixels" in text


def test_the_strip_shows_the_least_knowing_of_the_strongest(records, pictures):
    tags = read(make_page(records, pictures)).tags
    shown = [attributes["alt"] or "" for tag, attributes in tags if tag == "img"][:5]
    assert [alt.split(", by the attack ")[-1] for alt in shown[1:4]] == ["clear", "vertex", "direct"]
    assert "positions of keypoints alone" in shown[4]


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
    assert "Clear features show the picture to whoever holds them." in text


@pytest.mark.parametrize(("value", "shown"), [(None, ""), (0.123456, "0.1235"), (3, "3"), ("a", "a")])
def test_figures_of_tables(value, shown):
    assert figure(value) == shown


def test_shares_and_recipes_for_people():
    assert [percent(value) for value in (0.9951, 0.0, 1.04)] == ["100 %", "0 %", "104 %"]
    assert plain_recipe("raw") == "clear features"
