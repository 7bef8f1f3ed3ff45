"""What goes to the terminal: texts of records as they are, and never as commands to the terminal."""

from __future__ import annotations

import typer

__all__ = ["plain", "tell"]


def plain(text: str) -> str:
    """The text with every character that does not print, but for the end of a line, written as an escape."""
    return "".join(
        letter if letter == "\n" or letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def tell(text: str) -> None:
    """Print a line, or several."""
    typer.echo(plain(text))
