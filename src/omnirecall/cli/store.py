"""``omnirecall store``."""

from __future__ import annotations

from pathlib import Path

import click

from omnirecall.cli.common import as_json, path

where = click.option(
    "--store", "root", type=path(), default=Path("runs/.store"), show_default=True, help="Folder of vectors."
)


@click.group("store", epilog="Example: omnirecall store ls")
def command() -> None:
    """The vectors that runs have stored: what there is, whether it is whole, and what can go."""


@command.command("ls", epilog="Example: omnirecall store ls --store runs/.store")
@where
@as_json
def ls(root: Path, as_json: bool) -> None:
    """Each model with its vectors and their size."""
    from omnirecall.embedding.inventory import shelves
    from omnirecall.files import pretty_json

    found = shelves(root)
    if as_json:
        click.echo(pretty_json(found), nl=False)
        return
    wide = max([5, *(len(one.model) for one in found)])
    click.echo(f"{'model':<{wide}} {'vectors':>11} {'dimension':>9} {'dtype':<9} {'MB':>10} {'segments':>8}  folder")
    for one in found:
        size = f"{one.bytes / 1e6:,.1f}"
        counts = f"{one.vectors:>11,} {one.dimension:>9} {one.dtype:<9} {size:>10} {one.segments:>8}"
        click.echo(f"{one.model:<{wide}} {counts}  {one.folder}")


@command.command("verify", epilog="Example: omnirecall store verify")
@where
@as_json
def verify(root: Path, as_json: bool) -> None:
    """Read every vector and compare it with its checksum; ends with 1 if something is not whole.

    What is not whole counts as absent in runs, so that they embed it again.
    """
    from omnirecall.embedding.inventory import verify
    from omnirecall.files import pretty_json

    found = verify(root)
    if as_json:
        click.echo(pretty_json(found), nl=False)
    for one in found if not as_json else ():
        click.echo(f"{one.segment}: {one.whole:,} of {one.named:,} vectors of {one.model} are whole")
    if not found and not as_json:
        click.echo("all vectors are whole")
    if found:
        raise SystemExit(1)


@command.command("prune", epilog="Example: omnirecall store prune --model 'random:*' --yes")
@where
@click.option(
    "--model", metavar="GLOB", help="All vectors of the models that match; without it, only what runs cannot use."
)
@click.option("--yes", is_flag=True, help="Remove it; without this it is only listed.")
@as_json
def prune(root: Path, model: str | None, yes: bool, as_json: bool) -> None:
    """Remove vectors, or list what would be removed."""
    from omnirecall.embedding.inventory import prunable, prune
    from omnirecall.files import pretty_json

    found = prunable(root, model)
    if yes:
        prune(found)
    if as_json:
        click.echo(pretty_json(found), nl=False)
        return
    for one in found:
        click.echo(f"{one.path}: {one.bytes / 1e6:,.1f} MB, {one.reason}")
    total = sum(one.bytes for one in found) / 1e6
    click.echo(f"{total:,.1f} MB {'removed' if yes else 'can go; add --yes to remove it'}")
