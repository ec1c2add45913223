"""``omnirecall report``."""

from __future__ import annotations

from pathlib import Path

import click

from omnirecall.cli.common import as_json, path, table_form


@click.command("report", epilog="Example: omnirecall report runs/starter/starter-1a2b3c4d5e6f --format latex")
@click.argument("run", type=path())
@table_form
@as_json
def command(run: Path, form: str, as_json: bool) -> None:
    """Show a finished run as a table, with 95% intervals. RUN is the folder that `omnirecall run` named."""
    from omnirecall.results.stored import open_run, with_intervals

    click.echo(with_intervals(open_run(run)).table("json" if as_json else form), nl=False)
