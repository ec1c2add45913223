"""``omnirecall export``."""

from __future__ import annotations

from pathlib import Path

import click

from omnirecall.cli.common import as_json, path


@click.command(
    "export",
    epilog="Example: omnirecall export runs/mmeb-v2/mine-1a2b3c4d5e6f --to mmeb --out mine.json    "
    "For trec_eval: omnirecall export runs/starter/starter-1a2b3c4d5e6f --to trec --out trec",
)
@click.argument("run", type=path())
@click.option(
    "--to", type=click.Choice(["mmeb", "trec"]), required=True, help="The MMEB leaderboard's JSON, or TREC files."
)
@click.option("--out", type=path(), required=True, help="File (mmeb) or folder (trec) to write.")
@click.option(
    "--tasks", metavar="GLOB", multiple=True, help="trec: only the tasks that match; may be given several times."
)
@click.option("--measures", help="trec: what the files must give, separated by commas.  [default: what they can give]")
@click.option(
    "--meta",
    metavar="KEY=VALUE",
    multiple=True,
    help="mmeb: what the leaderboard shows of the model, such as url; may be given several times.",
)
@as_json
def command(
    run: Path, to: str, out: Path, tasks: tuple[str, ...], measures: str | None, meta: tuple[str, ...], as_json: bool
) -> None:
    """Write a finished run for other tools.

    TREC run and qrels files score to the values of --tie-break docno; measures deeper than the stored lists are refused.
    """
    from omnirecall.results.export import Request, export
    from omnirecall.results.stored import open_run
    from omnirecall.score import parse_measures

    wanted = None if measures is None else tuple(parse_measures(measures))
    text, data = export(open_run(run), Request(to, out, tasks, wanted, meta))
    click.echo(data if as_json else text, nl=False)
