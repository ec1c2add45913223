"""``omnirecall score``."""

from __future__ import annotations

from pathlib import Path

import click

from omnirecall.cli.common import as_json, path

VECTORS_ONLY = {"--query-ids", "--candidate-ids", "--pool", "--similarity", "--run-file", "--unjudged", "--per-query"}


def _given(context: click.Context) -> set[str]:
    """The options that stand on the command line."""
    source = click.core.ParameterSource.COMMANDLINE
    return {
        option.opts[0]
        for option in context.command.params
        if option.name and context.get_parameter_source(option.name) is source
    }


@click.command(
    "score",
    epilog="Example: omnirecall score q.npy c.npy qrels.tsv --measures hit@1,recall@5    "
    "From a run file: omnirecall score qrels.tsv --run-file run.trec    "
    "A finished run by other measures: omnirecall score --run runs/starter/starter-1a2b3c4d5e6f --measures ndcg@10",
)
@click.argument("files", nargs=-1, metavar="[Q.npy C.npy QRELS]", type=path())
@click.option("--measures", default="hit@1,hit@5,recall@5,ndcg@10,mrr", show_default=True, help="Separated by commas.")
@click.option("--query-ids", type=path(), help="Ids of the rows of Q.npy, one a line.  [default: row numbers]")
@click.option("--candidate-ids", type=path(), help="Ids of the rows of C.npy, one a line.  [default: row numbers]")
@click.option(
    "--pool",
    type=path(),
    help='jsonl: {"query-id": ..., "candidates": [...]} and/or {"query-id": ..., "exclude": [...]}.',
)
@click.option("--similarity", type=click.Choice(["cosine", "dot"]), default="cosine", show_default=True)
@click.option("--run-file", type=path(), help="A TREC run file in place of vectors.")
@click.option("--run", type=path(), help="A finished run in place of vectors and judgments.")
@click.option("--tasks", metavar="GLOB", multiple=True, help="With --run: only the tasks that match.")
@click.option(
    "--tie-break",
    type=click.Choice(["expected", "index", "docno", "best", "worst"]),
    default="expected",
    show_default=True,
    help="Order of equal scores: the expectation over all orders, first row first, trec_eval's (id descending), or the extremes.",
)
@click.option(
    "--unjudged",
    type=click.Choice(["refuse", "drop"]),
    default="refuse",
    show_default=True,
    help="Queries without a judgment.",
)
@click.option("--per-query", type=path(), metavar="FILE", help="Write each query's ranks and measures as parquet.")
@as_json
@click.pass_context
def command(
    context: click.Context,
    files: tuple[Path, ...],
    measures: str,
    query_ids: Path | None,
    candidate_ids: Path | None,
    pool: Path | None,
    similarity: str,
    run_file: Path | None,
    run: Path | None,
    tasks: tuple[str, ...],
    tie_break: str,
    unjudged: str,
    per_query: Path | None,
    as_json: bool,
) -> None:
    """Score vectors (float arrays, one row an item), a run file or a finished run, without any model.

    QRELS is TREC with four columns, the same with a fifth as M-BEIR has it, or BEIR's tsv with its header.
    """
    from omnirecall.score import Request, parse_measures, score

    if run is not None:
        from omnirecall.results.rescore import rescore
        from omnirecall.results.stored import open_run

        if beside := [*map(str, files), *sorted(_given(context) & VECTORS_ONLY)]:
            raise click.UsageError(f"--run has its own ranks and judgments: leave out {beside[0]}")
        again = rescore(open_run(run), parse_measures(measures), tie_break, tasks)
        click.echo(again.as_json() if as_json else again.as_text(), nl=False)
        return
    if tasks:
        raise click.UsageError("--tasks goes with --run; vectors are one task")
    expected = 1 if run_file else 3
    if len(files) != expected:
        raise click.UsageError("give QRELS alone with --run-file" if run_file else "give Q.npy, C.npy and QRELS")
    result = score(
        Request(
            qrels=files[-1],
            vectors=None if run_file else (files[0], files[1]),
            run_file=run_file,
            measures=measures,
            query_ids=query_ids,
            candidate_ids=candidate_ids,
            pool=pool,
            similarity=similarity,
            tie_break=tie_break,
            unjudged=unjudged,
            per_query=per_query,
        )
    )
    click.echo(result.as_json() if as_json else result.as_text(), nl=False)
