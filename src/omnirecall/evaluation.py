"""The line through the house: source, plan, media, embedder, store, ranks, measures, means, record."""

from __future__ import annotations

import fnmatch
import hashlib
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from omnirecall import ranking
from omnirecall._version import __version__
from omnirecall.embedding.pipeline import embed
from omnirecall.embedding.plan import Contents, Plan, said
from omnirecall.embedding.ranked import as_ranked
from omnirecall.embedding.store import Store
from omnirecall.errors import UserError
from omnirecall.models.base import Embedder, ModelOptions
from omnirecall.models.load import load_model
from omnirecall.progress import Progress, silent
from omnirecall.protocol.items import MODALITIES, Item, TaskData, signature
from omnirecall.protocol.measures import RankedJudgments, aggregate, score_queries
from omnirecall.protocol.suites import Suite, Task, mean_values
from omnirecall.results.judging import JudgedRows, judged_rows, ranked_judgments, tied_queries
from omnirecall.results.record import (
    ModelRecord,
    RankTable,
    Run,
    Status,
    TaskRecord,
    rank_table,
    read_run,
    write_parquet,
    write_run,
)
from omnirecall.results.scores import task_measures
from omnirecall.sources.checks import other_pools
from omnirecall.sources.load import data_root, load_suite, read_task
from omnirecall.sources.media_check import Journal
from omnirecall.sources.missing import refuse_missing, without_missing
from omnirecall.sources.tables import MissingDataError, NoDataError


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may choose about a run.

    ``tasks``: globs over task names; none takes all. ``limit``: the first N queries of each task. ``dim``: the first N
    dimensions of each vector. ``prompt``: ``model``, ``card`` or ``none``; None takes the model's default. ``top_k``: length of
    the ranked list kept for each query. ``batch``: items in a batch. ``store``: folder of vectors; None puts it inside ``out``.
    ``device``, ``dtype``, ``revision``, ``model_args``: as ModelOptions has them, for a model that is loaded by name.
    ``on_missing``: ``fail`` ends the run at media that are missing or do not decode; ``skip`` leaves their items out.
    """

    data: Path | None = None
    tasks: tuple[str, ...] = ()
    out: Path = Path("runs")
    limit: int | None = None
    dim: int | None = None
    prompt: str | None = None
    top_k: int = 10
    batch: int | None = None
    store: Path | None = None
    device: str | None = None
    dtype: str | None = None
    revision: str | None = None
    model_args: Mapping[str, str] = field(default_factory=dict)
    on_missing: str = "fail"

    @property
    def store_folder(self) -> Path:
        """Where vectors are kept."""
        return self.store or self.out / ".store"

    @property
    def model_options(self) -> ModelOptions:
        """What concerns the model."""
        return ModelOptions(self.device, self.dtype, self.revision, self.model_args)


@dataclass(frozen=True, slots=True)
class _Planned:
    """One task, read and planned: its rows, the keys of its vectors and the hashes of its data.

    ``reason`` says why there is no value, which is what ``status`` calls it; ``deviation`` says what was left out.
    """

    task: Task
    data: TaskData
    hashes: Mapping[str, str]
    query_keys: Sequence[bytes] = ()
    candidate_keys: Sequence[bytes] = ()
    reason: str = ""
    status: Status = "unsupported"
    deviation: str = ""


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
    suite = suite if isinstance(suite, Suite) else load_suite(suite)
    model = load_model(model, options.model_options) if isinstance(model, str) else model
    _check_options(options, model)
    if options.out.exists() and not options.out.is_dir():
        raise UserError(f"--out {options.out}: is a file; name a folder")
    prompt = options.prompt or model.default_prompt
    chosen = choose_tasks(suite, options.tasks)
    root = data_root(suite, options.data)
    plan = Plan(model, options.batch)
    journal = Journal(options.store_folder / "media.jsonl") if options.on_missing == "skip" else None
    with progress("Reading", len(chosen)) as advance:
        planned = []
        for task in chosen:
            planned.append(_plan_task(task, root, plan, prompt, options.limit, journal))
            advance(1)
    if all(one.status == "no-data" for one in planned):
        raise UserError(f"no task of {suite.name} has its data in {root}: {planned[0].reason}")
    identity = _identity(suite, model, planned, options, prompt)
    folder = options.out / _file_name(suite.name) / f"{_file_name(model.name)}-{identity}"
    store = Store(options.store_folder, model.fingerprint, model.dimension, model.name)
    with progress("Embedding", len(plan.jobs)) as advance:
        try:
            embedded = embed(plan, store, advance)
        except UserError as error:
            if not str(error).startswith("item "):  # what a model did wrong begins with the model
                raise
            raise UserError(f"{error}; mend the file, or leave such items out with --on-missing skip") from None
    if options.dim is not None:
        _refuse_cut_to_zero(planned, store, options.dim)
    records = {}
    with progress("Ranking", len(planned)) as advance:
        for one in planned:
            records[one.task.name] = (
                _without_value(one) if one.reason else _measure(one, store, folder, options, prompt)
            )
            advance(1)
    run = Run(
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
        deviations=_deviations(suite, chosen, options, planned),
        environment=environment(),
        identity=identity,
        data_root=str(root.resolve()),
        notes=tuple(
            f"the damaged shard {path.name} of the store was left out and embedded again" for path in store.damaged
        ),
        embedded=msgspec.to_builtins(embedded),
        uncertain=_uncertain(suite, chosen),
        media_warnings=_media_warnings(planned, store),
    )
    write_run(folder, run)
    return read_run(folder)


def _check_options(options: Options, model: Embedder) -> None:
    for name in ("limit", "dim", "top_k", "batch"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} {value}: give a number of 1 or more")
    if options.dim is not None and options.dim > model.dimension:
        raise UserError(f"--dim {options.dim}: the vectors of {model.name} have {model.dimension} dimensions")
    if options.prompt not in (None, "model", "card", "none"):
        raise UserError(f"--prompt {options.prompt}: write model, card or none")
    if options.on_missing not in ("fail", "skip"):
        raise UserError(f"--on-missing {options.on_missing}: write fail or skip")


def choose_tasks(suite: Suite, globs: Sequence[str]) -> list[Task]:
    """The suite's tasks that match any of the globs; UserError if one matches none."""
    if not globs:
        return list(suite.tasks)
    names: set[str] = set()
    for glob in globs:
        found = fnmatch.filter(suite.task_names(), glob)
        if not found:
            raise UserError(
                f"--tasks {glob}: no task of {suite.name} matches; there are {', '.join(suite.task_names())}"
            )
        names.update(found)
    return [task for task in suite.tasks if task.name in names]


def _plan_task(task: Task, root: Path, plan: Plan, prompt: str, limit: int | None, journal: Journal | None) -> _Planned:
    """Read and plan a task.

    With a journal of media, items whose media are missing or do not decode are left out, and so are tasks whose files are missing
    or damaged.
    """
    deviation = ""
    try:
        data = read_task(root, task)
        data = replace(data, queries=data.queries[:limit])
        if journal is None:
            refuse_missing(data, task)
        else:
            data, deviation = without_missing(data, task, journal)
    except UserError as error:
        if journal is None and isinstance(error, MissingDataError):
            raise UserError(f"{error}; or leave such tasks out with --on-missing skip") from None
        if journal is None and not isinstance(error, NoDataError):
            raise
        return _Planned(task, TaskData([], [], {}), {}, reason=str(error), status="no-data")
    hashes = _hashes(data, plan.contents)
    if reason := _lacking(plan.model, data, prompt):
        return _Planned(task, data, hashes, reason=reason)
    return _Planned(
        task,
        data,
        hashes,
        query_keys=plan.add(data.queries, "query", task.instruction, task.media, prompt),
        candidate_keys=plan.add(data.candidates, "candidate", task.candidate_instruction, task.media, prompt),
        deviation=deviation,
    )


def _lacking(model: Embedder, data: TaskData, prompt: str) -> str:
    """Which combination of parts the model does not support, or ""."""
    for role, items in (("queries", data.queries), ("candidates", data.candidates)):
        for parts in sorted({said(item, prompt, model).modalities for item in items}, key=sorted):
            if not model.supports(parts):
                return f"{model.name} does not embed {signature(parts)} ({role})"
    return ""


def _hashes(data: TaskData, contents: Contents) -> dict[str, str]:
    def rows(items: Sequence[Item]) -> str:
        digest = hashlib.sha256()
        for item in items:  # one at a time: a pool may hold millions
            digest.update(msgspec.json.encode([item.id, item.instruction, item.literal, contents.parts(item)]))
        return digest.hexdigest()

    judged = {*(item.id for item in data.queries), *data.skipped}
    return {
        "queries": _digest([rows(data.queries), data.skipped]),
        "pool": _digest([rows(data.candidates), data.pools, data.exclude]),
        "judgments": _digest(
            sorted((query, sorted(row.items())) for query, row in data.judgments.items() if query in judged)
        ),
    }


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()


def _identity(suite: Suite, model: Embedder, planned: Sequence[_Planned], options: Options, prompt: str) -> str:
    tasks = [[one.task.name, msgspec.to_builtins(one.task.media), one.hashes] for one in planned]
    chosen = [options.limit, options.dim, options.batch, options.top_k, prompt]
    return _digest([suite.revision, model.fingerprint, tasks, chosen])[:12]


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.+=-]+", "_", name).strip(".") or "_"


def _without_value(one: _Planned) -> TaskRecord:
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


def _refuse_cut_to_zero(planned: Sequence[_Planned], store: Store, dim: int) -> None:
    for one in planned:
        for items, keys in ((one.data.queries, one.query_keys), (one.data.candidates, one.candidate_keys)):
            zero = ~store.gather(keys)[:, :dim].any(1)
            if zero.any():
                raise UserError(
                    f"task {one.task.name}: the first {dim} dimensions of the vector of item {items[int(zero.argmax())].id}"
                    f" are all zero, and nothing can be ranked by them; give a larger --dim"
                )


def _measure(one: _Planned, store: Store, folder: Path, options: Options, prompt: str) -> TaskRecord:
    """Rank one task, write its parquet and sum it up."""
    task, data = one.task, one.data
    query_ids, candidate_ids = [item.id for item in data.queries], [item.id for item in data.candidates]
    judged = judged_rows(query_ids, candidate_ids, data.judgments, data.pools, data.exclude)
    try:
        ranks = ranking.rank(
            as_ranked(store.gather(one.query_keys)[:, : options.dim], task.vectors),
            as_ranked(store.gather(one.candidate_keys)[:, : options.dim], task.vectors),
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
    write_parquet(folder / "tasks" / f"{task.name}.parquet", rank_table(table))
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
        prompt=prompt,
        media=msgspec.to_builtins(task.media),
        hashes=one.hashes,
    )


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


def _deviations(suite: Suite, chosen: Sequence[Task], options: Options, planned: Sequence[_Planned]) -> tuple[str, ...]:
    found = [suite.departs] if suite.departs else []
    found += [one.deviation for one in planned if one.deviation]
    if other := [one.task.name for one in planned if _other_size(one, options.limit)]:
        found.append(f"other numbers of queries or candidates than the card in {len(other)} tasks: {_some(other)}")
    if left_out := [name for name in suite.task_names() if name not in {task.name for task in chosen}]:
        found.append(f"{len(left_out)} of {len(suite.tasks)} tasks left out: {', '.join(left_out)}")
    if without := [one.task.name for one in planned if one.status == "no-data"]:
        found.append(f"no data for {len(without)} of {len(suite.tasks)} tasks: {', '.join(without)}")
    if options.limit is not None:
        found.append(f"only the first {options.limit} queries of each task")
    if options.dim is not None:
        found.append(f"only the first {options.dim} dimensions of each vector")
    return tuple(found)


def _other_size(one: _Planned, limit: int | None) -> bool:
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


def _media_warnings(planned: Sequence[_Planned], store: Store) -> tuple[str, ...]:
    """What was amiss with media that decoded all the same, each once."""
    keys = dict.fromkeys(key for one in planned for key in (*one.query_keys, *one.candidate_keys))
    return tuple(dict.fromkeys(warning for key in keys for warning in store.warnings(key)))


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
