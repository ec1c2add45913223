"""``omnirecall models``."""

from __future__ import annotations

import click

from omnirecall.cli.common import as_json, model_choices


@click.command("models", epilog="Example: omnirecall models starter")
@click.argument("model", required=False)
@model_choices
@as_json
def command(
    model: str | None,
    device: str | None,
    dtype: str | None,
    revision: str | None,
    model_args: dict[str, str],
    as_json: bool,
) -> None:
    """Which families of models there are; with MODEL, what that model can embed."""
    from omnirecall import catalogue
    from omnirecall.models.base import ModelOptions

    options = ModelOptions(device, dtype, revision, model_args)

    if model is None:
        click.echo(catalogue.models_json() if as_json else catalogue.models_text(), nl=False)
    else:
        click.echo(catalogue.model_json(model, options) if as_json else catalogue.model_text(model, options), nl=False)
