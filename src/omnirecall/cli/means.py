"""``omnirecall means``."""

from __future__ import annotations

from pathlib import Path

import click

from omnirecall.cli.common import as_json, path


@click.command("means", epilog="Example: omnirecall means uvrb values.csv")
@click.argument("suite")
@click.argument("values", metavar="VALUES.csv", type=path())
@as_json
def command(suite: str, values: Path, as_json: bool) -> None:
    """A suite's means from per-task values: check a table of a paper, or complete it.

    VALUES.csv has task,value on each line, as fractions or as percentages; nothing is rescaled. A mean with a task missing is
    shown as incomplete, never as that mean.
    """
    from omnirecall.results.means import means_of_file
    from omnirecall.sources.load import load_suite

    means = means_of_file(load_suite(suite), values)
    click.echo(means.as_json() if as_json else means.as_text(), nl=False)
