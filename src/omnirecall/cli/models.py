"""``omnirecall models``."""

from __future__ import annotations

import click

from omnirecall.cli.common import as_json


@click.command("models", epilog="Example: omnirecall models starter")
@click.argument("model", required=False)
@as_json
def command(model: str | None, as_json: bool) -> None:
    """Which families of models there are; with MODEL, what that model can embed."""
    from omnirecall import catalogue

    if model is None:
        click.echo(catalogue.models_json() if as_json else catalogue.models_text(), nl=False)
    else:
        click.echo(catalogue.model_json(model) if as_json else catalogue.model_text(model), nl=False)
