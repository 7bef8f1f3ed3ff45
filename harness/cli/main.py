"""The command line. Commands import modules only when they run, so that help and usage errors are fast."""

import io
import logging
import os
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from adabench.harness.cli.commands_history import history
from adabench.harness.cli.commands_machine import doctor, fetch
from adabench.harness.cli.commands_plugins import check, new
from adabench.harness.cli.commands_policy import accesses, build, check_policy, diff, explain, show_policy
from adabench.harness.cli.commands_predict import predict
from adabench.harness.cli.commands_profile import profile
from adabench.harness.cli.commands_resources import resources
from adabench.harness.cli.commands_results import compare, export, list_, plot, report, show
from adabench.harness.cli.commands_run import plan, run
from adabench.harness.cli.commands_search import search
from adabench.harness.cli.commands_simulate import simulate
from adabench.harness.cli.terminal import plain
from adabench.harness.errors import LauncherError, UsageError
from adabench.results.record import RecordError

app = typer.Typer(
    help="Runs use cases with strategies that signal intent, records every run, and compares the results.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Markup would swallow the brackets of ctr[dim=8].
    rich_markup_mode=None,
)


class Command(TyperCommand):
    """A command that refuses an option given twice, where the first would be forgotten in silence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        order = self.make_parser(ctx).parse_args(args=list(args))[2]
        for option in order:
            several = getattr(option, "multiple", False) or option.param_type_name == "argument"
            if not several and order.count(option) > 1:
                raise UsageError(f"{option.opts[0]} is given {order.count(option)} times: give it once")
        return super().parse_args(ctx, args)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"adabench {version('adabench')}")
        raise typer.Exit


@app.callback()
def _app(
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Runs use cases with strategies that signal intent, records every run, and compares the results."""


data = typer.Typer(help="Download the data of use cases.", no_args_is_help=True)
policy = typer.Typer(help="Build, show and compare policies.", no_args_is_help=True)
app.add_typer(data, name="data")
app.add_typer(policy, name="policy")

_NAMES: dict[Callable[..., None], str] = {list_: "list", show_policy: "show", check_policy: "check"}
_TRAINING = (run, plan, profile)
_RECORDS = (show, compare, history, plot, report, export)
_PLUGINS = (doctor, check, new, list_)
_ESTIMATES = (accesses, resources, simulate, predict, search)
for group, commands in (
    (app, (*_TRAINING, *_RECORDS, *_PLUGINS, *_ESTIMATES)),
    (data, (fetch,)),
    (policy, (build, show_policy, diff, explain, check_policy)),
):
    for command in commands:
        group.command(_NAMES.get(command), cls=Command)(command)


# With one command typer would drop its name; a callback keeps `adabench data fetch`.
@data.callback()
def _data() -> None: ...


def main() -> None:
    """The entry point: a user's mistake ends in one line and exit code 2."""
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode:
        # File names are UTF-8 in records, in every locale; only a new process can switch to UTF-8.
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, sys.orig_argv)
    for stream in (sys.stdout, sys.stderr):
        # File names may contain any bytes.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Matplotlib warns about letters that are missing in the font and about long names. The figure shows both.
    for said in ("Glyph ", "constrained_layout not applied"):
        warnings.filterwarnings("ignore", said)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        _refuse_other_text(sys.argv[1:])
        app()
    except (UsageError, RecordError) as error:
        print(plain(f"error: {error}"), file=sys.stderr)
        sys.exit(2)
    except LauncherError as error:
        print(plain(f"error: {error}"), file=sys.stderr)
        sys.exit(1)


def _refuse_other_text(arguments: list[str]) -> None:
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            shown = argument.encode(errors="surrogateescape")
            raise UsageError(f"{shown!r} is not UTF-8: records can only hold names that are") from error


if __name__ == "__main__":
    main()
