"""The directive `commands`: every command of `adabench` with its options, as its parser has them."""

from __future__ import annotations

import re
from typing import Any

import typer.main
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from adabench.harness.cli.main import app


def setup(sphinx: Sphinx) -> dict[str, Any]:
    sphinx.add_directive("commands", Commands)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


class Commands(SphinxDirective):
    """A section per command."""

    def run(self) -> list[nodes.Node]:
        return [self._section(*found) for found in commands()]

    def _section(self, usage: str, text: str, parameters: list[tuple[str, str]]) -> nodes.section:
        title = " ".join(word for word in usage.split() if word[0] not in "[{")
        section = nodes.section("", nodes.title(title, title), ids=[nodes.make_id(title)], names=[title])
        section += _paragraph(text)
        section += nodes.literal_block(usage, usage, language="console")
        listed = nodes.definition_list()
        for name, meaning in parameters:
            term = nodes.term("", "", nodes.literal(name, name))
            listed += nodes.definition_list_item("", term, nodes.definition("", _paragraph(meaning)))
        self.state.document.note_explicit_target(section)
        if listed.children:
            section += listed
        return section


def _paragraph(text: str) -> nodes.paragraph:
    """Text with its options and what it quotes in backticks as code, of which nothing becomes a dash."""
    parts = re.split(r"`([^`]*)`|((?<!\S)--[\w-]+)", text)
    inline = [
        nodes.Text(part) if place % 3 == 0 else nodes.literal(part, part)
        for place, part in enumerate(parts)
        if part
    ]
    return nodes.paragraph(text, "", *inline)


def commands() -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Usage, help, and name and meaning of each argument and option, of each command."""
    group = typer.main.get_command(app)
    return _below(group, group.make_context("adabench", [], resilient_parsing=True))


def _below(command: Any, context: Any) -> list[tuple[str, str, list[tuple[str, str]]]]:
    if hasattr(command, "commands"):
        found = []
        for name in sorted(command.commands):
            below = command.commands[name]
            found += _below(below, below.make_context(name, [], parent=context, resilient_parsing=True))
        return found
    parameters = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    usage = command.get_usage(context).removeprefix("Usage: ")
    return [(usage, command.help, [one for one in parameters if one is not None and one[0] != "--help"])]
