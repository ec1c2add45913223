"""What several commands share: options and progress bars."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from omnirecall.progress import Progress

LINE_SECONDS = 15.0

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
quiet = click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")


def _named(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for name, equals, value in pairs:
        if not name or not equals:
            raise click.BadParameter(f"{name}{equals}{value}: write KEY=VALUE")
    return {name: value for name, _, value in pairs}


def model_choices(command: Callable[..., None]) -> Callable[..., None]:
    """The options that concern the model."""
    for option in (
        click.option("--device", help="Device for the model, such as cpu or cuda."),
        click.option(
            "--dtype", help="Of weights and arithmetic: float32, bfloat16 or float16.  [default: the family's]"
        ),
        click.option("--revision", help="Branch, tag or commit of the model's repository."),
        click.option(
            "--model-arg",
            "model_args",
            metavar="KEY=VALUE",
            multiple=True,
            callback=_named,
            help="An argument of the model's family; may be given several times.",
        ),
    ):
        command = option(command)
    return command


def table_form(command: Callable[..., None]) -> Callable[..., None]:
    """The option that says how a table is written."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(["table", "markdown", "latex", "csv", "json"]),
        default="table",
        show_default=True,
    )(command)


def path(**kind: Any) -> click.Path:
    """A path argument."""
    return click.Path(path_type=Path, **kind)


def progress(quiet: bool) -> Progress:
    """On standard error: bars on a terminal, else a line now and then for what takes long."""
    from omnirecall.progress import silent

    if quiet:
        return silent
    return _bar if sys.stderr.isatty() else _lines


@contextmanager
def _lines(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A line after LINE_SECONDS, and one each time as many have gone by; none for what is done sooner."""
    begin = said = time.monotonic()
    done = counted = 0

    def advance(steps: int) -> None:
        nonlocal said, done, counted
        if done == 0 and time.monotonic() - begin < 1:
            counted = steps  # what was there before the work began says nothing of its speed
        done += steps
        now = time.monotonic()
        if now - said >= LINE_SECONDS and done > counted:
            said = now
            rate = (done - counted) / (now - begin)
            left = timedelta(seconds=round((total - done) / rate))
            click.echo(f"{what}: {done:,} of {total:,}, {rate:,.1f} a second, {left} left", err=True)

    yield advance


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        """Steps a second."""

        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:,.0f}/s")

    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        bar = bars.add_task(what, total=total)
        yield lambda steps: bars.update(bar, advance=steps)
