"""Output to the terminal: control characters in the texts of records are escaped."""

import typer


def plain(text: str) -> str:
    """Return the text with every non-printable character, except for the end of a line, as an escape."""
    return "".join(
        letter if letter == "\n" or letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def tell(text: str) -> None:
    """Print a line, or several."""
    typer.echo(plain(text))
