"""``omnirecall models``."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

import click

from omnirecall.cli.common import as_json, model_choices, progress

if TYPE_CHECKING:
    from omnirecall.models.base import Embedder


@click.command(
    "models", epilog="Example: omnirecall models starter --try    Your own: omnirecall models --template > my_model.py"
)
@click.argument("model", required=False)
@click.option("--template", is_flag=True, help="Print a model in Python, to start your own from.")
@click.option(
    "--try", "trial", is_flag=True, help="Embed a few items of every kind that MODEL claims, and check the vectors."
)
@model_choices
@as_json
def command(
    model: str | None,
    template: bool,
    trial: bool,
    device: str | None,
    dtype: str | None,
    revision: str | None,
    model_args: dict[str, str],
    as_json: bool,
) -> None:
    """Which families of models there are; with MODEL, what that model can embed.

    With --try the exit code is 1 if a check does not pass.
    """
    from omnirecall import catalogue
    from omnirecall.models.base import ModelOptions
    from omnirecall.models.load import load_model

    options = ModelOptions(device, dtype, revision, model_args)

    if template:
        if model is not None or as_json:
            raise click.UsageError("--template prints a file of Python: leave MODEL and --json out")
        click.echo(resources.files("omnirecall.models").joinpath("template.py").read_text("utf-8"), nl=False)
    elif model is None:
        if trial:
            raise click.UsageError("--try needs a MODEL")
        click.echo(catalogue.models_json() if as_json else catalogue.models_text(), nl=False)
    elif trial:
        _try(load_model(model, options), as_json)
    else:
        click.echo(catalogue.model_json(model, options) if as_json else catalogue.model_text(model, options), nl=False)


def _try(model: Embedder, as_json: bool) -> None:
    from omnirecall.files import pretty_json
    from omnirecall.trial import steps, trial_text, try_model

    with progress(as_json)("Trying", steps(model)) as advance:
        checks = try_model(model, advance)
    click.echo(pretty_json(checks) if as_json else trial_text(model.name, checks), nl=False)
    if not all(check.passed for check in checks):
        raise SystemExit(1)
