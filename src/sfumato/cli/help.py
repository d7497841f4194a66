# SPDX-License-Identifier: Apache-2.0
"""The documents of Sfumato in the terminal: a topic is a page, named by its file."""

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

import sfumato
from sfumato.errors import FileError, InputError, suggest

FOLDERS = {
    "tutorials": "Follow step by step",
    "how_to": "Do one thing",
    "explanation": "Understand",
    "reference": "Look up",
}
"""Folders of documents with topics, and what each is for."""


def topic_pages() -> dict[str, Path]:
    """Return the page of each topic: from the installed package, or from the folder docs of a clone.

    Raises FileError where there are no documents.
    """
    package = Path(sfumato.__file__).parent
    for root in (package / "documents", package.parent.parent / "docs"):
        pages = {page.stem: page for folder in FOLDERS for page in sorted((root / folder).glob("*.md"))}
        if pages:
            return pages
    raise FileError(f"{package / 'documents'}: the documents are missing; install sfumato again")


def find_page(topic: str, pages: dict[str, Path]) -> Path:
    """Return the page of a topic, by its name or by the beginning of its name.

    Raises InputError for a topic that is not there, or for the beginning of several.

    >>> pages = {"keys": Path("keys.md"), "threat_model": Path("threat_model.md")}
    >>> find_page("threats", pages).name, find_page("Threat-Model", pages).name
    ('threat_model.md', 'threat_model.md')
    """
    name = topic.lower().replace("-", "_").removesuffix(".md")
    if name in pages:
        return pages[name]
    near = [page for known, page in pages.items() if known.startswith(name) or known.split("_")[0] == name.rstrip("s")]
    if len(near) == 1:
        return near[0]
    names = " or ".join(page.stem for page in near)
    hint = f": {names}?" if near else f"{suggest(name, pages)}; 'sfumato help' lists the topics"
    raise InputError(f"no topic {topic!r}{hint}")


def read_page(page: Path) -> str:
    """Return the text of a page without its remarks to tests and generators, which are HTML comments."""
    return re.sub(r"<!--.*?-->\n?", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def list_topics(pages: dict[str, Path]) -> str:
    """Return the topics with the titles of their pages, folder by folder."""
    width = max(map(len, pages))
    lines = []
    for folder, purpose in FOLDERS.items():
        lines.append(f"\n{purpose}")
        for name, page in pages.items():
            if page.parent.name == folder:
                title = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
                lines.append(f"  {name:{width}}  {title[1] if title else ''}")
    return "\n".join(lines).strip()


def show(text: str) -> None:
    """Print a page: laid out, with a pager, in a terminal; as it is anywhere else."""
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    with console.pager(styles=True):
        console.print(Markdown(text, hyperlinks=False))


def _complete_topic(incomplete: str) -> list[str]:
    return [name for name in topic_pages() if name.startswith(incomplete)]


def help_(
    topic: Annotated[
        str, typer.Argument(help="A topic; without one, the list.", autocompletion=_complete_topic, show_default=False)
    ] = "",
) -> None:
    """Read the documents here: recipes, keys, threats and more; without a topic, the list of them.

    Example: sfumato help recipes

    Example: sfumato help threats
    """
    pages = topic_pages()
    if topic:
        show(read_page(find_page(topic, pages)))
    else:
        print(f"Read a topic with 'sfumato help TOPIC'.\n\n{list_topics(pages)}")
