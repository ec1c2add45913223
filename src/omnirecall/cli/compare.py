"""``omnirecall compare``."""

from __future__ import annotations

from pathlib import Path

import click

from omnirecall.cli.common import as_json, path, table_form


@click.command("compare", epilog="Example: omnirecall compare runs/starter/starter-* runs/starter/random_64-*")
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...", type=path())
@click.option("--published", is_flag=True, help="Put the suite's published rows beside the runs.")
@click.option(
    "--model",
    "models",
    metavar="GLOB",
    multiple=True,
    help="Only published rows of models that match; may be given several times.",
)
@click.option("--seed", type=click.IntRange(0), help="Of the tests whose flips are drawn.  [default: 20250601]")
@table_form
@as_json
def command(
    runs: tuple[Path, ...], published: bool, models: tuple[str, ...], seed: int | None, form: str, as_json: bool
) -> None:
    """Compare runs of one suite: values with 95% intervals, differences to the first run, marks of significance, wins and losses.

    Runs of different cards, pools, queries, judgments or measures are refused.
    """
    from omnirecall.results.compare import compare
    from omnirecall.results.compare_tables import render
    from omnirecall.results.paired import SEED
    from omnirecall.results.published import published_beside
    from omnirecall.results.stored import open_run

    opened = [open_run(run) for run in runs]
    columns = published_beside(opened[0], models) if published or models else []
    compared = compare(opened, columns, seed=SEED if seed is None else seed)
    click.echo(render(compared, "json" if as_json else form), nl=False)
