"""Markdown files outside `docs/` as the body of a page, with links and pictures that lead somewhere."""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token


def rendered(
    file: str, root: Path, output: Path, page_of: Callable[[str], str | None]
) -> tuple[str, list[str]]:
    """Give the body of the page of a Markdown file, and the files that it links to.

    Parameters
    ----------
    file : str
        Its path below `root`.
    root : Path
        The repository.
    output : Path
        Where the pictures go, in folders as below `root`.
    page_of : callable
        The address, seen from this page, of the page that shows a file of the repository; None without one.
    """
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse((root / file).read_text(encoding="utf-8"))
    linked = []
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "table_open":
            token.attrSet("class", "docutils")
        if token.type == "heading_open" and following is not None:
            token.attrSet("id", _anchor(following.content))
    for token in _children(tokens):
        place, _, anchor = str(token.attrs.get("src") or token.attrs.get("href") or "").partition("#")
        other = posixpath.normpath(posixpath.join(posixpath.dirname(file), place))
        if not place or re.match(r"[a-z]+:", place) or not (root / other).is_file():
            continue
        if token.type == "image":
            (output / other).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / other, output / other)
        elif (address := page_of(other)) is not None:
            token.attrSet("href", address + (f"#{anchor}" if anchor else ""))
            linked.append(other)
    return markdown.renderer.render(tokens, markdown.options, {}), linked


def _children(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield from (child for child in token.children or () if child.type in ("link_open", "image"))


def _anchor(title: str) -> str:
    """As forges name it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
