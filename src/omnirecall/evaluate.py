"""The line through the house: source, plan, media, embedder, store, ranks, measures, means, record."""

from __future__ import annotations

import fnmatch
import hashlib
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from omnirecall import ranking
from omnirecall._version import __version__
from omnirecall.embedding.pipeline import embed
from omnirecall.embedding.plan import Contents, Plan
from omnirecall.embedding.store import Store
from omnirecall.errors import UserError
from omnirecall.models.base import Embedder
from omnirecall.models.load import load_model
from omnirecall.protocol.items import MODALITIES, Item, TaskData, signature
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
from omnirecall.sources.load import data_root, load_suite, read_task

Advance = Callable[[int], None]
Progress = Callable[[str, int], AbstractContextManager[Advance]]
"""Called with what is being done and how many steps it has; gives the function to call as steps are done."""


def silent(what: str, total: int) -> AbstractContextManager[Advance]:
    """Progress that nobody sees."""
    return nullcontext(lambda _: None)


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may choose about a run.

    ``tasks``: globs over task names; none takes all. ``limit``: the first N queries of each task. ``dim``: the first N
    dimensions of each vector. ``prompt``: ``model`` or ``none``; None takes the model's default. ``top_k``: length of the
    ranked list kept for each query. ``batch``: items in a batch. ``store``: folder of vectors; None puts it inside ``out``.
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


@dataclass(frozen=True, slots=True)
class _Planned:
    """One task, read and planned: its rows, the keys of its vectors and the hashes of its data; ``reason`` if unsupported."""

    task: Task
    data: TaskData
    hashes: Mapping[str, str]
    query_keys: Sequence[bytes] = ()
    candidate_keys: Sequence[bytes] = ()
    reason: str = ""


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
    model = load_model(model, options.device) if isinstance(model, str) else model
    _check_options(options, model)
    prompt = options.prompt or model.default_prompt
    chosen = choose_tasks(suite, options.tasks)
    root = data_root(suite, options.data)
    plan = Plan(model, options.batch)
    with progress("Reading", len(chosen)) as advance:
        planned = []
        for task in chosen:
            planned.append(_plan_task(task, root, plan, prompt, options.limit))
            advance(1)
    identity = _identity(suite, model, planned, options, prompt)
    folder = options.out / _file_name(suite.name) / f"{_file_name(model.name)}-{identity}"
    store = Store(options.store or options.out / ".store", model.fingerprint, model.dimension, model.name)
    with progress("Embedding", len(plan.jobs)) as advance:
        embedded = embed(plan, store, advance)
    records = {}
    with progress("Ranking", len(planned)) as advance:
        for one in planned:
            records[one.task.name] = _unsupported(one) if one.reason else _measure(one, store, folder, options, prompt)
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
        deviations=_deviations(suite, chosen, options),
        environment=environment(),
        identity=identity,
        data_root=str(root.resolve()),
        notes=tuple(
            f"the damaged shard {path.name} of the store was left out and embedded again" for path in store.damaged
        ),
        embedded=msgspec.to_builtins(embedded),
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
    if options.prompt not in (None, "model", "none"):
        raise UserError(f"--prompt {options.prompt}: write model or none")


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


def _plan_task(task: Task, root: Path, plan: Plan, prompt: str, limit: int | None) -> _Planned:
    data = read_task(root, task)
    data = replace(data, queries=data.queries[:limit])
    hashes = _hashes(data, plan.contents)
    if reason := _lacking(plan.model, data):
        return _Planned(task, data, hashes, reason=reason)
    return _Planned(
        task,
        data,
        hashes,
        query_keys=plan.add(data.queries, "query", task.instruction, task.media, prompt),
        candidate_keys=plan.add(data.candidates, "candidate", task.candidate_instruction, task.media, prompt),
    )


def _lacking(model: Embedder, data: TaskData) -> str:
    """Which combination of parts the model does not support, or ""."""
    for role, items in (("queries", data.queries), ("candidates", data.candidates)):
        for parts in sorted({item.modalities for item in items}, key=sorted):
            if not model.supports(parts):
                return f"{model.name} does not embed {signature(parts)} ({role})"
    return ""


def _hashes(data: TaskData, contents: Contents) -> dict[str, str]:
    def rows(items: Sequence[Item]) -> list[object]:
        return [[item.id, item.instruction, contents.parts(item)] for item in items]

    judged = {item.id for item in data.queries}
    return {
        "queries": _digest(rows(data.queries)),
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


def _unsupported(one: _Planned) -> TaskRecord:
    task = one.task
    return TaskRecord(
        status="unsupported",
        reason=one.reason,
        measure=str(task.measure),
        direction=task.direction,
        queries=len(one.data.queries),
        pool=len(one.data.candidates),
        hashes=one.hashes,
    )


def _measure(one: _Planned, store: Store, folder: Path, options: Options, prompt: str) -> TaskRecord:
    """Rank one task, write its parquet and sum it up."""
    task, data = one.task, one.data
    query_ids, candidate_ids = [item.id for item in data.queries], [item.id for item in data.candidates]
    judged = judged_rows(query_ids, candidate_ids, data.judgments, data.pools, data.exclude)
    try:
        ranks = ranking.rank(
            store.gather(one.query_keys)[:, : options.dim],
            store.gather(one.candidate_keys)[:, : options.dim],
            judged.positives,
            pool=judged.pool,
            exclude=judged.exclude,
            similarity=task.similarity,
            top_k=options.top_k,
        )
    except ranking.RankingError as error:
        raise UserError(f"task {task.name}: {error}") from None
    ranked = ranked_judgments(judged, ranks.greater, ranks.tied, ranks.pool_size)
    table = rank_columns(query_ids, candidate_ids, judged, ranks, ranked, [item.cluster for item in data.queries])
    write_parquet(folder / "tasks" / f"{task.name}.parquet", rank_table(table))
    measures = task_measures(task.all_measures(), ranked)
    primary = measures[str(task.measure)]
    return TaskRecord(
        status="ok",
        measure=str(task.measure),
        value=primary.value,
        best=primary.best,
        worst=primary.worst,
        chance=chance(task, ranked),
        queries=len(query_ids),
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


def chance(task: Task, ranked: RankedJudgments) -> float:
    """What a model that cannot tell candidates apart scores on the primary measure: all candidates tied."""
    outside = ranked.greater < 0
    others = np.repeat(ranked.pool_size - 1, np.diff(ranked.offsets))
    blind = replace(ranked, greater=np.where(outside, -1, 0), tied=np.where(outside, 0, others))
    return aggregate(task.measure, score_queries(task.measure, blind).value)


def _deviations(suite: Suite, chosen: Sequence[Task], options: Options) -> tuple[str, ...]:
    found = []
    if left_out := [name for name in suite.task_names() if name not in {task.name for task in chosen}]:
        found.append(f"{len(left_out)} of {len(suite.tasks)} tasks left out: {', '.join(left_out)}")
    if options.limit is not None:
        found.append(f"only the first {options.limit} queries of each task")
    if options.dim is not None:
        found.append(f"only the first {options.dim} dimensions of each vector")
    return tuple(found)


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
