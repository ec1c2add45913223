"""The command line: one file per command, no logic of its own."""

from __future__ import annotations

import importlib
import os
import sys
import warnings

import click

from omnirecall._version import __version__
from omnirecall.errors import RunError, UserError

COMMANDS = {
    "run": "Measure a model on a suite, or on a folder of your own data.",
    "score": "Vectors and judgments in, measures out.",
    "fetch": "Fetch a suite's data from the Hugging Face hub.",
    "check": "Audit a suite's data before a model is run.",
    "report": "Show a finished run as a table.",
    "compare": "Compare runs, and published rows, in one table.",
    "export": "A run for the MMEB leaderboard or for trec_eval.",
    "view": "A page of runs: leaderboard, tasks, every query with its media.",
    "means": "A suite's means from per-task values.",
    "suites": "What each suite contains.",
    "store": "The vectors that runs have stored: list, verify, prune.",
    "models": "Which models there are, and what each can embed.",
    "frames": "The frames of a video that a model would see.",
}


class Commands(click.Group):
    """Imports a command's file only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order a newcomer meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"omnirecall.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Example: omnirecall run starter --model starter",
)
@click.version_option(__version__, prog_name="omnirecall")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def app(debug: bool) -> None:
    """Measure how well an embedding model retrieves across text, image, video, audio and their combinations."""


def main() -> None:
    """Run the command line: exit code 0 done, 1 the run failed, 2 the user's mistake."""
    debug = "--debug" in sys.argv
    warnings.filterwarnings("ignore", module=r"PIL\.")  # what it says of a damaged picture is no sentence of ours
    try:
        app(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        _fail(_usage_sentence(error), 2)
    except (KeyboardInterrupt, click.Abort):
        _fail("stopped by the keyboard; what was embedded is kept", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except UserError as error:
        if debug:
            raise
        _fail(str(error), 2)
    except (RunError, OSError, MemoryError) as error:
        if debug:
            raise
        _fail(f"the run failed: {str(error) or type(error).__name__}", 1)
    except Exception as error:  # a model's own error may be anything
        if debug:
            raise
        _fail(f"the run failed: {type(error).__name__}: {error}; `omnirecall --debug ...` shows where", 1)


def _usage_sentence(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "omnirecall"
    return f"{error.format_message().rstrip('.')}; see `{command} --help`"


def _fail(sentence: str, code: int) -> None:
    click.echo(f"omnirecall: {_one_line(sentence)}", err=True)
    sys.exit(code)


def _one_line(text: str) -> str:
    """Line breaks and control characters, which an id may hold, written as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
