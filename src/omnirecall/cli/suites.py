"""``omnirecall suites``."""

from __future__ import annotations

import click

from omnirecall.cli.common import as_json


@click.command("suites", epilog="Example: omnirecall suites starter")
@click.argument("suite", required=False)
@as_json
def command(suite: str | None, as_json: bool) -> None:
    """What a suite contains: tasks, sizes, measures, means, sources and how sure each fact is. Without SUITE, the list."""
    from omnirecall import catalogue

    if suite is None:
        click.echo(catalogue.suites_json() if as_json else catalogue.suites_text(), nl=False)
    else:
        click.echo(catalogue.suite_json(suite) if as_json else catalogue.suite_text(suite), nl=False)
