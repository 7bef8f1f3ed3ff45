"""Links to files of the repository lead to a page that shows the file, as where the repository is browsed.

A link such as `[node.cc](../csrc/core/node/node.cc)` is right on a forge, where the text lies beside the
code. In the built pages there is no such file; so every file that some page links to gets a page of its own,
with its lines numbered; Markdown is rendered, and what it links to gets pages, too. A link to
`channel.cc#on_tick` leads to the line where that function or class begins.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from repository_markdown import rendered
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

FOLDER = "files"
"""Where the pages of files lie in the output."""

_SYMBOL = re.compile(r"\]\(([^()#\s]+\.(?:cc|h|py))#(\w+)\)")
_log = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    # Before Sphinx copies what is linked to as a download, and before MyST looks for such a document.
    app.connect("doctree-read", link_to_file_pages, priority=400)
    app.connect("source-read", keep_symbols)
    app.connect("env-purge-doc", forget)
    app.connect("html-collect-pages", pages)
    return {"version": "1", "env_version": 1, "parallel_read_safe": False, "parallel_write_safe": True}


def keep_symbols(app: Sphinx, docname: str, source: list[str]) -> None:
    """Hand on what a link names in a file as the link's title, since MyST drops it from the target."""
    source[0] = _SYMBOL.sub(r'](\1 "#\2")', source[0])


def link_to_file_pages(app: Sphinx, doctree: nodes.document) -> None:
    """Replace each link to a file outside `docs/` by one to that file's page."""
    page = app.env.current_document.docname if hasattr(app.env, "current_document") else app.env.docname
    for node in list(doctree.findall(_is_link)):
        file = _file_of(node, Path(app.srcdir), page)
        if file is None:
            continue
        _linked(app.env).setdefault(page, set()).add(file)
        app.env.note_dependency(str(Path(app.srcdir).parent / file))
        uri = app.builder.get_relative_uri(page, f"{FOLDER}/{file}")
        symbol = node.get("reftitle", "")
        if symbol.startswith("#"):
            line = _line_of(symbol[1:], Path(app.srcdir).parent / file)
            if line is None:
                _log.warning("%s has nothing that is called %s", file, symbol[1:], location=node)
            uri += f"#line-{line}"
        elif node.get("reftargetid"):
            uri += f"#{node['reftargetid']}"
        node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Drop what a page that is read again has linked to."""
    _linked(env).pop(docname, None)


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each linked file: its name, what the template is given, and the template."""
    waiting = sorted(set().union(*_linked(app.env).values()))
    done = set()
    while waiting:
        file = waiting.pop()
        if file in done:
            continue
        done.add(file)
        body, found = _body(app, file)
        waiting += found
        yield f"{FOLDER}/{file}", {"title": file, "body": body, "parents": []}, "page.html"


def _body(app: Sphinx, file: str) -> tuple[str, list[str]]:
    """A file as the body of a page, and the files that it links to."""
    root = Path(app.srcdir).parent

    def page_of(other: str) -> str | None:
        page = f"{FOLDER}/{other}"
        if other.startswith("docs/"):
            page = other.removeprefix("docs/").removesuffix(".md")
            if page not in app.env.found_docs:
                return None
        return app.builder.get_relative_uri(f"{FOLDER}/{file}", page)

    if file.endswith(".md"):
        body, linked = rendered(file, root, Path(app.outdir) / FOLDER, page_of)
        return body, [other for other in linked if not other.startswith("docs/")]
    text = (root / file).read_text(encoding="utf-8")
    try:
        language = get_lexer_for_filename(file, text).aliases[0]
    except ClassNotFound:
        language = "text"
    code = app.builder.highlighter.highlight_block(  # type: ignore[attr-defined]
        text, language, linenos="inline", lineanchors="line"
    )
    return f"<h1 class='file'><code>{html.escape(file)}</code></h1>{code}", []


def _is_link(node: nodes.Node) -> bool:
    return isinstance(node, addnodes.download_reference | addnodes.pending_xref) and "reftarget" in node


def _file_of(node: nodes.Element, source: Path, page: str) -> str | None:
    """The path below the repository's root of the file that a link names, if it is a file outside `docs/`."""
    target = str(node["reftarget"])
    if node.get("refdomain") == "doc":  # MyST takes any Markdown file for a document, and cuts its ending
        target, base = f"{target}.md", source
    else:
        base = (source / page).parent
    file = (base / target).resolve()
    if source in file.parents or source.parent not in file.parents or not file.is_file():
        return None
    return file.relative_to(source.parent).as_posix()


def _line_of(symbol: str, file: Path) -> int | None:
    """Where a function or class is defined: a C++ function begins at the margin, and ends in no semicolon.

    Protocol decisions are members with a macro before them.
    """
    definition = re.compile(
        rf"^\s*(?:async def|def|class|struct|enum class) {symbol}\b"
        rf"|^[A-Za-z].*\b{symbol}\([^;]*$|^\s*ADAPS_DECISION .*\b{symbol}\("
    )
    lines = file.read_text(encoding="utf-8").splitlines()
    return next((number for number, line in enumerate(lines, 1) if definition.match(line)), None)


def _linked(env: BuildEnvironment) -> dict[str, set[str]]:
    if not hasattr(env, "linked_repository_files"):
        env.linked_repository_files = {}  # type: ignore[attr-defined]
    linked: dict[str, set[str]] = env.linked_repository_files  # type: ignore[attr-defined]
    return linked
