# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from sfumato.cli import help as topics
from sfumato.errors import FileError, InputError

ROOT = Path(__file__).resolve().parents[2]


def test_without_a_topic_all_are_listed(run_sfumato):
    shown = run_sfumato("help").stdout
    pages = [page for folder in topics.FOLDERS for page in (ROOT / "docs" / folder).glob("*.md")]
    assert len(pages) > 15
    for page in pages:
        assert f"  {page.stem} " in shown
        assert page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") in shown


def test_a_topic_is_the_document_without_remarks(run_sfumato):
    shown = run_sfumato("help", "recipes").stdout
    assert shown.startswith("# ")
    assert "<!--" not in shown
    assert "sub-hybrid-2" in shown


@pytest.mark.parametrize("topic", ["threat_model", "threat-model", "threats", "threat_model.md", "Threat"])
def test_topics_have_short_names(topic: str):
    assert topics.find_page(topic, topics.topic_pages()).name == "threat_model.md"


def test_what_is_no_topic_is_refused_with_the_nearest(run_sfumato):
    with pytest.raises(InputError, match="recipes"):
        topics.find_page("recipse", topics.topic_pages())
    with pytest.raises(InputError, match="first_audit or first_map"):
        topics.find_page("first", topics.topic_pages())
    assert run_sfumato("help", "recipse", code=1).stderr.startswith("error: no topic")


def test_missing_documents_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topics.sfumato, "__file__", str(tmp_path / "src" / "sfumato" / "__init__.py"))
    with pytest.raises(FileError, match="documents"):
        topics.topic_pages()


def test_the_installed_documents_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topics.sfumato, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "documents" / "how_to").mkdir(parents=True)
    (tmp_path / "documents" / "how_to" / "keys.md").write_text("# Keys\n", encoding="utf-8")
    assert topics.topic_pages() == {"keys": tmp_path / "documents" / "how_to" / "keys.md"}


def test_messages_name_topics_that_are_there():
    """A message points to 'sfumato help TOPIC', never to a file of the repository, which users may not have."""
    import re

    pages = topics.topic_pages()
    for path in (ROOT / "src").rglob("*.py"):
        for topic in re.findall(r"'sfumato help (\w+)'", path.read_text(encoding="utf-8")):
            assert topic == "TOPIC" or topic in pages, f"{path}: {topic}"
