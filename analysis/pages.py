"""Sections of documentation pages that scripts write."""

from pathlib import Path


def write_section(page: Path, name: str, script: str, text: str) -> None:
    """Replace a page's text between the marks of a section.

    Parameters
    ----------
    page : Path
        Markdown page that has both marks.
    name : str
        Name of the section in its marks.
    script : str
        Path of the script that writes the section, as in the first mark.
    text : str
        New text of the section.
    """
    begin, end = f"<!-- {name}: written by {script} -->", f"<!-- end of {name} -->"
    before, rest = page.read_text(encoding="utf-8").split(begin)
    after = rest.split(end)[1]
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
