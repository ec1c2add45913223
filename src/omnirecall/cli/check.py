"""``omnirecall check``."""

from __future__ import annotations

from pathlib import Path

import click

from omnirecall.cli.common import as_json, path, progress, quiet


@click.command("check", epilog="Example: omnirecall check uvrb --data /data --tasks 'CRB-*'")
@click.argument("suite")
@click.option("--data", type=path(), help="Folder with the suite's data.")
@click.option("--tasks", metavar="GLOB", multiple=True, help="Only the tasks that match; may be given several times.")
@click.option("--quick", is_flag=True, help="Only see whether media are there; decode none.")
@click.option("--journal", type=path(), help="File that keeps what was found.  [default: DIR/.omnirecall-check.jsonl]")
@as_json
@quiet
def command(
    suite: str, data: Path | None, tasks: tuple[str, ...], quick: bool, journal: Path | None, as_json: bool, quiet: bool
) -> None:
    """Audit the data of SUITE: counts, missing or broken media, repeated items, bad judgments.

    Ends with code 1 if something would change a score. What was looked at is kept, so that a stopped check goes on where it was.
    """
    from omnirecall.files import pretty_json
    from omnirecall.sources.audit import as_text, audit
    from omnirecall.sources.load import choose_tasks, data_root, load_suite

    loaded = load_suite(suite)
    found = audit(
        loaded,
        choose_tasks(loaded, tasks),
        data_root(loaded, data),
        progress=progress(quiet or as_json),
        journal=journal,
        quick=quick,
    )
    if as_json or not quiet:
        click.echo(pretty_json(found) if as_json else as_text(found), nl=False)
    if found.fails:
        raise SystemExit(1)
