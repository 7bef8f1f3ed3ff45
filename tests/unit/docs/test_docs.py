"""Every document and section that code cites or documents link to exists."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]

DOCUMENT = re.compile(r"(?<![\w./*<{-])[\w.-]+(?:/[\w.-]+)*\.md\b")
SECTION = re.compile(r",? section (?:\"([^\"]+)\"|(\w+))")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]+)(?: \"[^\"]*\")?\)")
CODE = re.compile(r"^(`{3,}|~{3,})(?!\{).*?^\1|`[^`\n]+`", re.MULTILINE | re.DOTALL)

CODE_FILES = (".cc", ".h", ".py")


def tracked(*patterns: str) -> list[Path]:
    """The files of the repository, including those not committed yet."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in found if path.is_file() and not path.is_symlink()]


def sources() -> list[Path]:
    code = tracked(
        "*.py", "*.pyi", "*.cc", "*.h", "*.css", "*.toml", "*.txt", "*.yml", "*.sh", "Makefile", ".ci/*"
    )
    return [path for path in code if path != Path(__file__) and path.suffix != ".md"]


def citations(text: str) -> Iterator[tuple[str, str | None]]:
    """Documents that a text names, each with the section that it names, if any."""
    for match in DOCUMENT.finditer(text):
        section = SECTION.match(text, match.end())
        yield match[0], None if section is None else section[1] or section[2]


def problem(document: str, section: str | None) -> str | None:
    """A description of the error in a citation, or None."""
    path = ROOT / document
    if not path.is_file():
        return f"{document}, which is no file: name it by its path from the top of the repository"
    if section is None:
        return None
    titles = HEADING.findall(path.read_text(encoding="utf-8"))
    if any(
        title == section or title.startswith(f"{section}. ") or title.split()[0] == section
        for title in titles
    ):
        return None
    return f"{document}, section {section}, which it does not have"


def remarks(path: Path) -> Iterator[str]:
    """The comments and docstrings of a file, each as one line."""
    text = path.read_text(encoding="utf-8")
    if ".md" not in text:  # most files, which need not be parsed
        return
    if path.suffix in (".py", ".pyi"):
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments = {
            token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT
        }
        for node in ast.walk(ast.parse(text)):
            # including attribute docstrings, which are expressions
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield " ".join(node.value.value.split())
    else:
        sign = re.compile(
            r"//(.*)" if path.suffix in (".cc", ".h") else r"/\*(.*)" if path.suffix == ".css" else r"#(.*)"
        )
        lines = enumerate(text.splitlines(), 1)
        comments = {number: found[1].strip() for number, line in lines if (found := sign.search(line))}
    for _, block in groupby(enumerate(sorted(comments)), lambda item: item[1] - item[0]):
        yield " ".join(comments[number] for _, number in block)


def anchors(path: Path) -> set[str]:
    """The link targets of a document: its headings in the anchor format of forges and MyST."""
    text = CODE.sub(
        lambda match: match[0] if match[0].startswith("`") and not match[0].startswith("```") else "",
        path.read_text(encoding="utf-8"),
    )
    return {
        re.sub(r"[^\w\- ]", "", title.lower().replace("`", "")).replace(" ", "-")
        for title in HEADING.findall(text)
    }


def test_every_document_that_a_comment_cites_is_there_with_its_section() -> None:
    wrong = []
    cited = set()
    for path in sources():
        for remark in remarks(path):
            for document, section in citations(remark):
                cited.add((document, section))
                if (found := problem(document, section)) is not None:
                    wrong.append(f"{path.relative_to(ROOT)} cites {found}")
    assert wrong == []
    # checks that the searches for comments and sections still find something
    assert {
        ("docs/concepts/protocol.md", "4"),
        ("docs/concepts/protocol.md", "7a"),
        ("docs/concepts/statistics.md", None),
    } <= cited


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("see protocol.md", "no file"),
        ("see docs/design/nowhere.md, section 3", "no file"),
        ("see docs/concepts/protocol.md, section 77", "does not have"),
        ('see docs/concepts/protocol.md, section "Nothing"', "does not have"),
    ],
)
def test_a_citation_of_nothing_is_found(text: str, said: str) -> None:
    ((document, section),) = citations(text)
    assert said in str(problem(document, section))


@pytest.mark.parametrize("path", tracked("*.md"), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    wrong = []
    for target in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        place = path.parent / file if file else path
        if not place.exists():
            wrong.append(target)
        elif anchor and place.suffix == ".md" and anchor not in anchors(place):
            wrong.append(f"{target}: no such heading")
        elif (
            anchor
            and place.suffix in CODE_FILES
            and not re.search(rf"\b{anchor}\b", place.read_text("utf-8"))
        ):
            wrong.append(f"{target}: no such function or class")
    assert wrong == []


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{citation["version"]}"' in project
    assert f'license = "{citation["license"]}"' in project
