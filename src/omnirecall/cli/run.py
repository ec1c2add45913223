"""``omnirecall run``."""

from __future__ import annotations

from pathlib import Path

import click

from omnirecall.cli.common import as_json, model_choices, path, progress, quiet


@click.command(
    "run",
    epilog="Example: omnirecall run starter --model starter    "
    "Own data: a folder with task.toml, queries.jsonl, candidates.jsonl and qrels.tsv; omnirecall run ./folder --model starter",
)
@click.argument("suite")
@click.option("--model", required=True, help="FAMILY or FAMILY:NAME; see `omnirecall models`.")
@click.option("--data", type=path(), help="Folder with the suite's data.")
@click.option("--tasks", metavar="GLOB", multiple=True, help="Only the tasks that match; may be given several times.")
@click.option("--out", type=path(), default=Path("runs"), show_default=True, help="Folder for runs.")
@click.option("--store", type=path(), help="Folder for vectors.  [default: OUT/.store]")
@model_choices
@click.option("--batch", type=int, help="Items in a batch.  [default: by modality]")
@click.option("--dim", type=int, metavar="N", help="Only the first N dimensions of each vector.")
@click.option("--limit", type=int, metavar="N", help="Only the first N queries of each task; pools stay whole.")
@click.option(
    "--top-k",
    type=int,
    metavar="N",
    default=10,
    show_default=True,
    help="Length of the ranked list kept for each query.",
)
@click.option(
    "--prompt", type=click.Choice(["model", "card", "none"]), help="Who words the prompt.  [default: the model's]"
)
@click.option(
    "--on-missing",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="Missing or damaged data: end the run, or go on without those items (not retrieved) and tasks (no data).",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Who embeds: this process, or actors of a Ray cluster, one on this machine unless --address names another.",
)
@click.option("--address", help="Address of a running Ray cluster.")
@click.option("--actors", type=int, metavar="N", help="Ray actors, each of which holds the model.")
@click.option("--gpus-per-actor", type=float, default=0, metavar="X", help="GPUs, or parts of one, for each Ray actor.")
@click.option("--plan", "only_plan", is_flag=True, help="Print what the run would embed, and stop.")
@as_json
@quiet
def command(
    suite: str,
    model: str,
    data: Path | None,
    tasks: tuple[str, ...],
    out: Path,
    store: Path | None,
    device: str | None,
    dtype: str | None,
    revision: str | None,
    model_args: dict[str, str],
    batch: int | None,
    dim: int | None,
    limit: int | None,
    top_k: int,
    prompt: str | None,
    on_missing: str,
    engine: str,
    address: str | None,
    actors: int | None,
    gpus_per_actor: float,
    only_plan: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure a model on SUITE: the name of a shipped suite, or a folder of your own data.

    Writes the run to OUT/<suite>/<model>-<identity>/ and prints its table. Vectors are kept, so that a second run embeds nothing.
    """
    from omnirecall.evaluation import embedded_text, evaluate
    from omnirecall.files import pretty_json
    from omnirecall.planning import Options, describe, plan_text, prepare

    options = Options(
        data=data,
        tasks=tasks,
        out=out,
        store=store,
        device=device,
        dtype=dtype,
        revision=revision,
        model_args=model_args,
        batch=batch,
        dim=dim,
        limit=limit,
        top_k=top_k,
        prompt=prompt,
        on_missing=on_missing,
        engine=engine,
        address=address,
        actors=actors,
        gpus_per_actor=gpus_per_actor,
    )
    watch = progress(quiet or as_json)
    if only_plan:
        described = describe(prepare(model, suite, options, progress=watch))
        click.echo(pretty_json(described) if as_json else plan_text(described), nl=False)
        return
    run = evaluate(model, suite, options, progress=watch)
    if as_json:
        click.echo(run.table("json"), nl=False)
    elif not quiet:
        click.echo(run.table("table"), nl=False)
        click.echo(f"{embedded_text(run)}; the run is in {run.folder}")
