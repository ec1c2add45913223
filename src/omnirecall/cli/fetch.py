"""``omnirecall fetch``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from omnirecall.cli.common import as_json, path, progress, quiet


@click.command("fetch", epilog="Example: omnirecall fetch uvrb --tasks 'CRB-*' --data /data")
@click.argument("suite")
@click.option("--data", type=path(), required=True, help="Folder for the data.")
@click.option("--tasks", metavar="GLOB", multiple=True, help="Only the tasks that match; may be given several times.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask first.")
@click.option("--dry-run", is_flag=True, help="Only say what would be fetched.")
@click.option("--keep-archives", is_flag=True, help="Keep archives after they are unpacked.")
@click.option("--save-space", is_flag=True, help="Remove each part of an archive as soon as it is read.")
@as_json
@quiet
def command(
    suite: str,
    data: Path,
    tasks: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    keep_archives: bool,
    save_space: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Fetch the data of SUITE from the Hugging Face hub.

    Says licence, size and free disk, and asks. Files are verified and archives unpacked. Run again, it goes on where it stopped.
    """
    from omnirecall.errors import UserError
    from omnirecall.files import pretty_json
    from omnirecall.sources.hub import Options, fetch, plan_fetch
    from omnirecall.sources.load import choose_tasks, load_suite

    if keep_archives and save_space:
        raise UserError("--keep-archives and --save-space contradict each other: give one of them")
    if not (yes or dry_run or (sys.stdin.isatty() and sys.stderr.isatty())):
        raise UserError(
            "fetch asks before it downloads, and here is no terminal to ask on: see --dry-run, then give --yes"
        )
    loaded = load_suite(suite)
    options = Options(keep_archives, save_space)
    plan = plan_fetch(loaded, choose_tasks(loaded, tasks), data)
    planned = plan.json(options)
    if not (as_json or quiet) or not (yes or dry_run):
        click.echo(plan.text(options), nl=False, err=as_json or quiet)
    if not dry_run:
        if not yes and not _agreed():
            click.echo("nothing was fetched", err=True)
            raise SystemExit(1)
        try:
            fetch(plan, options, progress(quiet or as_json))
        except KeyboardInterrupt:
            click.echo("omnirecall: stopped by the keyboard; the same command goes on where it stopped", err=True)
            raise SystemExit(130) from None
    if as_json:
        click.echo(pretty_json({**planned, "done": not dry_run}), nl=False)
    elif not quiet and not dry_run:
        click.echo(f"all is in {data}, verified; revisions and digests are in {data / 'fetched.json'}")


def _agreed() -> bool:
    try:
        return click.confirm("fetch it?", err=True)
    except click.Abort:
        return False
