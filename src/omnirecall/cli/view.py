"""``omnirecall view``."""

from __future__ import annotations

from pathlib import Path

import click

from omnirecall.cli.common import as_json, path, progress, quiet


@click.command("view", epilog="Example: omnirecall view runs")
@click.argument("runs", nargs=-1, required=True, type=path())
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="0 takes any that is free."
)
@click.option("--browser/--no-browser", default=True, show_default=True, help="Open the page in a browser.")
@click.option(
    "--data", type=path(), metavar="DIR", multiple=True, help="Where the data of a run lie now, if they were moved."
)
@click.option(
    "--card", type=path(), metavar="FILE", multiple=True, help="The card of a run made from a card file of your own."
)
@click.option(
    "--export", "out", type=path(), metavar="DIR", help="Write the pages as files for any web server instead."
)
@click.option(
    "--export-queries",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="With --export: the queries of each task, those of greatest loss first.",
)
@quiet
@as_json
def command(
    runs: tuple[Path, ...],
    port: int,
    browser: bool,
    data: tuple[Path, ...],
    card: tuple[Path, ...],
    out: Path | None,
    export_queries: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """A page of the runs below RUNS: leaderboard, tasks, and every query with its media. It is served to this machine only."""
    from omnirecall.view.main import Choices, export, show

    choices = Choices(runs, data, card)
    if out is not None:
        click.echo(export(choices, out, export_queries, progress(quiet)).said(as_json), nl=False)
        return
    show(choices, port, browser, lambda started: None if quiet else click.echo(started.said(as_json), nl=False))
