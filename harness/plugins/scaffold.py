"""Writes packages with a backend or a use case that work as they are."""

import keyword
import re
from pathlib import Path

from adabench.harness.errors import UsageError
from adabench.harness.plugins.registry import names

_TEMPLATES = Path(__file__).parents[1] / "templates"


def write_package(kind: str, name: str, parent: Path) -> Path:
    """Write the package ``adabench-NAME`` into a new folder of that name in `parent`.

    Parameters
    ----------
    kind : str
        Kind of the plugin: ``backend`` or ``usecase``.
    name : str
        Name of small letters, digits and single hyphens.
    parent : Path
        Folder for the new folder.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise UsageError(
            f"{name!r} is no name for a plugin: use small letters, digits and hyphens, as in my-strategy"
        )
    taken = names("backend" if kind == "backend" else "usecase")
    if name in taken:
        raise UsageError(f"there is a {kind} {name!r} already ({taken[name]}): choose another name")
    module = f"adabench_{name.replace('-', '_')}"
    folder = parent / f"adabench-{name}"
    words = {
        "@NAME@": name,
        "@MODULE@": module,
        "@CLASS@": "".join(part.capitalize() for part in name.split("-")),
        "@KIND@": kind,
    }
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise UsageError(f"{folder} exists already: choose another name or folder") from error
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}") from error
    for template, target in (("pyproject.toml.in", "pyproject.toml"), (f"{kind}.py.in", f"{module}.py")):
        text = (_TEMPLATES / template).read_text(encoding="utf-8")
        for placeholder, word in words.items():
            text = text.replace(placeholder, word)
        (folder / target).write_text(text, encoding="utf-8")
    return folder
