"""The line through the house: source, plan, media, embedder, store, ranks, measures, means, record."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from omnirecall import ranking
from omnirecall._version import __version__
from omnirecall.embedding.engines.local import local
from omnirecall.embedding.pipeline import Engine, embed
from omnirecall.embedding.ranked import as_ranked, first_zero
from omnirecall.embedding.segments import Ints
from omnirecall.embedding.store import Store
from omnirecall.errors import UserError
from omnirecall.models.base import Embedder
from omnirecall.planning import Options, Planned, Prepared, prepare
from omnirecall.progress import Progress, silent
from omnirecall.protocol.items import MODALITIES, Ids, TaskData
from omnirecall.protocol.measures import RankedJudgments, aggregate, score_queries
from omnirecall.protocol.suites import Suite, Task, mean_values
from omnirecall.results.judging import JudgedRows, judged_rows, ranked_judgments, tied_queries
from omnirecall.results.record import (
    ModelRecord,
    RankTable,
    Run,
    TaskRecord,
    rank_table,
    read_run,
    write_parquet,
    write_run,
)
from omnirecall.results.scores import task_measures
from omnirecall.results.stored import with_intervals
from omnirecall.sources.checks import other_pools


def evaluate(
    model: Embedder | str,
    suite: Suite | str | Path,
    options: Options | None = None,
    *,
    progress: Progress = silent,
    **choices: Any,
) -> Run:
    """Measure a model on a suite and write the run to ``out/<suite>/<model>-<identity>/``.

    ``choices`` are fields of Options. UserError names what is wrong with the input and where.
    """
    options = replace(options or Options(), **choices)
    return finish(prepare(model, suite, options, progress=progress), progress)


def finish(run: Prepared, progress: Progress = silent) -> Run:
    """Do the work of a run and write it."""
    suite, model, options, planned, store = run.suite, run.model, run.options, run.tasks, run.store
    with progress("Embedding", len(run.distinct)) as advance:
        try:
            embedded = embed(run.distinct, store, _engine(run), advance)
        except UserError as error:
            if not str(error).startswith("item "):  # what a model did wrong begins with the model
                raise
            raise UserError(f"{error}; mend the file, or leave such items out with --on-missing skip") from None
    if options.dim is not None:
        _refuse_cut_to_zero(planned, store, options.dim)
    records = {}
    with progress("Ranking", len(planned)) as advance:
        for one in planned:
            records[one.task.name] = _without_value(one) if one.reason else _measure(one, run)
            advance(1)
    record = Run(
        omnirecall=__version__,
        suite=suite.name,
        card=suite.revision,
        model=ModelRecord(
            name=model.name,
            fingerprint=model.fingerprint,
            dimension=options.dim or model.dimension,
            modalities=tuple(part for part in MODALITIES if model.supports({part})),
            notes=tuple(model.notes),
        ),
        tasks=records,
        means=mean_values(
            suite.means, {name: record.value for name, record in records.items() if record.value is not None}
        ),
        deviations=_deviations(run, records),
        environment=environment(),
        identity=run.identity,
        data_root=str(run.root.resolve()),
        notes=(*_damage(store), *embedded.splits, *_cut_texts(records)),
        embedded=msgspec.to_builtins(embedded),
        tree=tuple(msgspec.structs.replace(mean, facts={}) for mean in suite.means),
        uncertain=_uncertain(suite, [one.task for one in planned]),
        media_warnings=_media_warnings(planned, store),
    )
    write_run(run.folder, with_intervals(msgspec.structs.replace(record, folder=str(run.folder))))
    return read_run(run.folder)


def _engine(run: Prepared) -> Engine:
    options = run.options
    if options.engine == "local":
        return local
    from omnirecall.embedding.engines.ray import Workers, engine

    if run.spec is None:
        raise UserError(
            "the ray engine loads the model in each of its actors: give the model by name, not as an object"
        )
    workers = Workers(options.address, options.actors, options.gpus_per_actor)
    return engine(run.spec, options.model_options, workers)


def embedded_text(run: Run) -> str:
    """How much was embedded now, how fast, and the share of that time for which the model waited for decoding."""
    now, seconds = run.embedded["now"], run.embedded.get("seconds", 0.0)
    said = f"{now} of {run.embedded['planned']} items embedded now"
    if not now or not seconds:
        return said
    return f"{said}, {now / seconds:,.0f} a second, of which the model waited {run.embedded['waited'] / seconds:.0%}"


def _damage(store: Store) -> tuple[str, ...]:
    return tuple(f"the damaged segment {path.name} of the store was left out" for path in store.damaged)


def _cut_texts(records: Mapping[str, TaskRecord]) -> tuple[str, ...]:
    """How many texts lost their ends because the model takes no more, by task."""
    return tuple(
        f"{name}: texts longer than the model takes were cut: "
        + " and ".join(f"{count:,} {role}" for role, count in record.cut.items())
        for name, record in records.items()
        if record.cut
    )


def _without_value(one: Planned) -> TaskRecord:
    task = one.task
    return TaskRecord(
        status=one.status,
        reason=one.reason,
        measure=str(task.measure),
        direction=task.direction,
        queries=len(one.data.queries),
        pool=len(one.data.candidates),
        hashes=one.hashes,
    )


def _refuse_cut_to_zero(planned: Sequence[Planned], store: Store, dim: int) -> None:
    for one in planned:
        for items, keys in ((one.data.queries, one.query_keys), (one.data.candidates, one.candidate_keys)):
            row = first_zero(store.vectors(store.find(keys), dim))
            if row is not None:
                raise UserError(
                    f"task {one.task.name}: the first {dim} dimensions of the vector of item {items[row].id} are all zero, and"
                    f" nothing can be ranked by them; give a larger --dim"
                )


def _measure(one: Planned, run: Prepared) -> TaskRecord:
    """Rank one task, write its parquet and sum it up."""
    task, data, store, options = one.task, one.data, run.store, run.options
    query_rows, candidate_rows = store.find(one.query_keys), store.find(one.candidate_keys)
    query_ids, candidate_ids = Ids(data.queries), Ids(data.candidates)
    judged = judged_rows(query_ids, candidate_ids, data.judgments, data.pools, data.exclude)
    try:
        ranks = ranking.rank(
            as_ranked(store.vectors(query_rows, options.dim), task.vectors),
            as_ranked(store.vectors(candidate_rows, options.dim), task.vectors),
            judged.positives,
            pool=judged.pool,
            exclude=judged.exclude,
            similarity=task.similarity,
            top_k=min(options.top_k, len(candidate_ids)),
        )
    except ranking.RankingError as error:
        raise UserError(f"task {task.name}: {error}") from None
    ranked = ranked_judgments(judged, ranks.greater, ranks.tied, ranks.pool_size)
    table = rank_columns(query_ids, candidate_ids, judged, ranks, ranked, [item.cluster for item in data.queries])
    table = with_skipped(table, data)
    ranked = table.ranked
    measures = task_measures(task.all_measures(), ranked)
    write_parquet(run.folder / "tasks" / f"{task.name}.parquet", rank_table(table))
    primary = measures[str(task.measure)]
    return TaskRecord(
        status="ok",
        measure=str(task.measure),
        printed=task.printed,
        value=primary.value,
        best=primary.best,
        worst=primary.worst,
        chance=chance(task, ranked),
        queries=len(table.query_ids),
        pool=len(candidate_ids),
        direction=task.direction,
        relevant_outside_pool=judged.outside,
        tied_queries=tied_queries(ranked),
        unjudged_queries=data.unjudged,
        measures=measures,
        similarity=task.similarity,
        prompt=run.prompt,
        media=msgspec.to_builtins(task.media),
        hashes=one.hashes,
        **_said_of(store, query_rows, candidate_rows),
    )


def _said_of(store: Store, query_rows: Ints, candidate_rows: Ints) -> dict[str, Any]:
    """What the model said of the vectors: texts cut, by role, and the most visual tokens of a frame or picture."""
    notes = {"queries": store.notes(query_rows), "candidates": store.notes(candidate_rows)}
    return {
        "cut": {role: said.cut for role, said in notes.items() if said.cut},
        "frame_tokens": max(said.frame_tokens for said in notes.values()),
    }


def rank_columns(
    query_ids: Sequence[str],
    candidate_ids: Sequence[str],
    judged: JudgedRows,
    ranks: ranking.Ranks,
    ranked: RankedJudgments,
    clusters: Sequence[str | None],
) -> RankTable:
    """What the parquet of a task holds, with row numbers turned back into ids."""
    positive_scores = np.full(len(judged.relevant), np.nan)
    positive_scores[judged.in_pool] = ranks.scores
    kept = [int(count) for count in (ranks.top_ids >= 0).sum(1)]
    return RankTable(
        query_ids=query_ids,
        clusters=clusters,
        relevant_ids=judged.relevant,
        ranked=ranked,
        positive_scores=positive_scores,
        top_ids=[
            [candidate_ids[row] for row in rows[:count]]
            for rows, count in zip(ranks.top_ids.tolist(), kept, strict=True)
        ],
        top_scores=[scores[:count] for scores, count in zip(ranks.top_scores.tolist(), kept, strict=True)],
    )


def with_skipped(table: RankTable, data: TaskData) -> RankTable:
    """The ranks with a row for each query that was left out, none of whose relevant candidates was retrieved."""
    if not data.skipped:
        return table
    relevant = [
        [(name, grade) for name, grade in data.judgments.get(query, {}).items() if grade > 0] for query in data.skipped
    ]
    flat = [pair for pairs in relevant for pair in pairs]
    ranked, ends = table.ranked, np.cumsum([len(pairs) for pairs in relevant])
    return msgspec.structs.replace(
        table,
        query_ids=[*table.query_ids, *data.skipped],
        clusters=[*table.clusters, *(None for _ in relevant)],
        relevant_ids=[*table.relevant_ids, *(name for name, _ in flat)],
        ranked=replace(
            ranked,
            offsets=np.concatenate([ranked.offsets, ranked.offsets[-1] + ends]).astype(np.int64),
            grades=np.concatenate([ranked.grades, [grade for _, grade in flat]]),
            greater=np.concatenate([ranked.greater, np.full(len(flat), -1, np.int64)]),
            tied=np.concatenate([ranked.tied, np.zeros(len(flat), np.int64)]),
            pool_size=np.concatenate([ranked.pool_size, np.full(len(relevant), len(data.candidates), np.int64)]),
        ),
        positive_scores=np.concatenate([table.positive_scores, np.full(len(flat), np.nan)]),
        top_ids=[*table.top_ids, *([] for _ in relevant)],
        top_scores=[*table.top_scores, *([] for _ in relevant)],
    )


def chance(task: Task, ranked: RankedJudgments) -> float:
    """What a model that cannot tell candidates apart scores on the primary measure: all candidates tied."""
    outside = ranked.greater < 0
    others = np.repeat(ranked.pool_size - 1, np.diff(ranked.offsets))
    blind = replace(ranked, greater=np.where(outside, -1, 0), tied=np.where(outside, 0, others))
    return aggregate(task.measure, score_queries(task.measure, blind).value)


def _deviations(run: Prepared, records: Mapping[str, TaskRecord]) -> tuple[str, ...]:
    suite, planned, options = run.suite, run.tasks, run.options
    found = [suite.departs] if suite.departs else []
    found += [one.deviation for one in planned if one.deviation]
    if other := [one.task.name for one in planned if _other_size(one, options.limit)]:
        found.append(f"other numbers of queries or candidates than the card in {len(other)} tasks: {_some(other)}")
    chosen = {one.task.name for one in planned}
    if left_out := [name for name in suite.task_names() if name not in chosen]:
        found.append(f"{len(left_out)} of {len(suite.tasks)} tasks left out: {', '.join(left_out)}")
    if without := [one.task.name for one in planned if one.status == "no-data"]:
        found.append(f"no data for {len(without)} of {len(suite.tasks)} tasks: {', '.join(without)}")
    if above := [
        one.task.name for one in planned if 0 < one.task.media.max_tokens < records[one.task.name].frame_tokens
    ]:
        most = max(records[name].frame_tokens for name in above)
        found.append(
            f"up to {most} visual tokens a frame, more than the card allows, in {len(above)} tasks: {_some(above)}"
        )
    if options.limit is not None:
        found.append(f"only the first {options.limit} queries of each task")
    if options.dim is not None:
        found.append(f"only the first {options.dim} dimensions of each vector")
    return tuple(found)


def _other_size(one: Planned, limit: int | None) -> bool:
    """Whether the rows are not as many as the card says for sure; queries that a limit cut off are not missed."""
    sizes = {"query_count": len(one.data.queries), "candidate_count": len(one.data.candidates)}
    if limit is not None:
        del sizes["query_count"]
    if one.status == "no-data":
        return False
    if other_pools(one.data, one.task):
        return True
    return any(getattr(one.task, key) not in (None, size) and one.task.is_sure(key) for key, size in sizes.items())


def _uncertain(suite: Suite, chosen: Sequence[Task]) -> tuple[str, ...]:
    """The facts of the card that are assumed or unknown, each once, with the tasks and means that rest on it."""
    shown = {task.name for task in chosen} | {mean.name for mean in suite.means}
    places: dict[str, list[str]] = {}
    for place, key, fact in suite.facts():
        if place in shown and not fact.is_sure:
            said = f"{key} {fact.certainty}" + (f" ({fact.source})" if fact.source else "")
            places.setdefault(said, []).append(place)
    return tuple(f"{said}: {_some(names)}" for said, names in places.items())


def _media_warnings(planned: Sequence[Planned], store: Store) -> tuple[str, ...]:
    """What was amiss with media that decoded all the same, each once."""
    keys = (keys for one in planned for keys in (one.query_keys, one.candidate_keys))
    return tuple(dict.fromkeys(warning for some in keys for warning in store.notes(store.find(some)).warnings))


def _some(names: Sequence[str]) -> str:
    """The first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def environment() -> dict[str, Any]:
    """Versions that a reader of the run may need."""
    versions = {}
    for package in (
        "numpy",
        "pyarrow",
        "pillow",
        "av",
        "torch",
        "transformers",
        "sentence-transformers",
        "faster-whisper",
        "mteb",
        "httpx",
        "ray",
    ):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": versions,
    }
