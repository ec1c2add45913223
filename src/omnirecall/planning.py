"""What a run asks for, read and counted before any work: tasks, rows, the distinct items, and which of them are stored."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from omnirecall import columns
from omnirecall.embedding.plan import Asked, Distinct, Plan, first_of_each
from omnirecall.embedding.segments import Keys, no_keys
from omnirecall.embedding.store import Store
from omnirecall.errors import UserError
from omnirecall.models.base import Embedder, ModelOptions
from omnirecall.models.load import load_model
from omnirecall.models.python import as_embedder
from omnirecall.progress import Progress, silent
from omnirecall.protocol.items import Ids, Item, TaskData, signature
from omnirecall.protocol.suites import Suite, Task
from omnirecall.results.record import Status
from omnirecall.sources.load import choose_tasks, data_root, load_suite, read_task
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
    ``engine``: ``local``, or ``ray`` with a cluster's ``address``, ``actors`` that hold a model each, and ``gpus_per_actor``.
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
    engine: str = "local"
    address: str | None = None
    actors: int | None = None
    gpus_per_actor: float = 0
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
class Planned:
    """One task, read and planned: its rows, the keys of its vectors and the hashes of its data.

    ``reason`` says why there is no value, which is what ``status`` calls it; ``deviation`` says what was left out.
    """

    task: Task
    data: TaskData
    hashes: Mapping[str, str]
    query_keys: Keys = field(default_factory=no_keys)
    candidate_keys: Keys = field(default_factory=no_keys)
    reason: str = ""
    status: Status = "unsupported"
    deviation: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run before its work. ``spec``: the name that the model was loaded by, None where it came as an object."""

    suite: Suite
    model: Embedder
    spec: str | None
    options: Options
    prompt: str
    root: Path
    tasks: Sequence[Planned]
    distinct: Distinct
    store: Store
    identity: str

    @property
    def folder(self) -> Path:
        """Where the run is written."""
        return self.options.out / _file_name(self.suite.name) / f"{_file_name(self.model.name)}-{self.identity}"


def prepare(
    model: Embedder | str, suite: Suite | str | Path, options: Options, *, progress: Progress = silent
) -> Prepared:
    """Read the data of a run and plan it. UserError names what is wrong with the input and where."""
    suite = suite if isinstance(suite, Suite) else load_suite(suite)
    spec = model if isinstance(model, str) else None
    model = load_model(model, options.model_options) if isinstance(model, str) else as_embedder(model, "the model")
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
    store = Store(options.store_folder, model.fingerprint, model.dimension, model.name)
    distinct = plan.distinct()
    identity = _identity(suite, model, planned, options, prompt)
    return Prepared(suite, model, spec, options, prompt, root, planned, distinct, store, identity)


class PlannedRole(msgspec.Struct, frozen=True):
    """What one role of one task asks for: items, how many of them are distinct, and how many of those the store lacks."""

    task: str
    role: str
    items: int
    distinct: int
    missing: int


class PlannedGroup(msgspec.Struct, frozen=True):
    """Distinct items of one kind over all tasks: how many, how many the store lacks, and in how many batches they are embedded.

    ``media_bytes``: of the files that are decoded for them; media inside tables are not counted.
    """

    parts: str
    role: str
    distinct: int
    missing: int
    batches: int
    media_bytes: int


class PlanReport(msgspec.Struct, frozen=True):
    """A run before its work, counted. ``without``: tasks that will have no value, and why.

    ``vector_bytes``: what the missing vectors add to the store, at 4 bytes a number and one vector an item.
    """

    suite: str
    model: str
    tasks: tuple[PlannedRole, ...]
    groups: tuple[PlannedGroup, ...]
    without: dict[str, str]
    items: int
    distinct: int
    missing: int
    batches: int
    vector_bytes: int


def describe(run: Prepared) -> PlanReport:
    """What a run will embed."""
    missing = run.store.lacks(run.distinct.keys)
    todo = run.distinct.todo(missing)
    roles = tuple(
        _planned_role(run, one, role, keys)
        for one in run.tasks
        if not one.reason
        for role, keys in (("queries", one.query_keys), ("candidates", one.candidate_keys))
    )
    groups = tuple(
        PlannedGroup(
            parts="+".join(parts),
            role=role or "any",
            distinct=len(rows),
            missing=int(missing[rows.start : rows.stop].sum()),
            batches=sum(batch.start in rows for batch in todo),
            media_bytes=sum(run.distinct.job(row).media_bytes for row in rows if missing[row] and parts != ("text",)),
        )
        for (role, parts), rows in run.distinct.spans
    )
    return PlanReport(
        suite=run.suite.name,
        model=run.model.name,
        tasks=roles,
        groups=groups,
        without={one.task.name: one.reason for one in run.tasks if one.reason},
        items=sum(one.items for one in roles),
        distinct=len(missing),
        missing=int(missing.sum()),
        batches=len(todo),
        vector_bytes=4 * run.model.dimension * int(missing.sum()),
    )


def _planned_role(run: Prepared, one: Planned, role: str, keys: Keys) -> PlannedRole:
    once = columns.taken(keys, first_of_each(keys))
    return PlannedRole(one.task.name, role, len(keys), len(once), int(np.count_nonzero(run.store.lacks(once))))


def plan_text(plan: PlanReport) -> str:
    """The report, legibly."""
    wide = max([4, *(len(one.task) for one in plan.tasks)])
    lines = [f"{'task':<{wide}}  {'role':<10} {'items':>11} {'distinct':>11} {'to embed':>11}"]
    for one in plan.tasks:
        lines.append(f"{one.task:<{wide}}  {one.role:<10} {one.items:>11,} {one.distinct:>11,} {one.missing:>11,}")
    lines += [
        "",
        f"{'kind':<{wide}}  {'role':<10} {'distinct':>11} {'to embed':>11} {'batches':>9} {'files to decode':>16}",
    ]
    for kind in plan.groups:
        size = f"{kind.media_bytes / 1e6:,.1f} MB" if kind.media_bytes else ""
        counts = f"{kind.distinct:>11,} {kind.missing:>11,} {kind.batches:>9,}"
        lines.append(f"{kind.parts:<{wide}}  {kind.role:<10} {counts} {size:>16}")
    lines += ["", *(f"{name}: no value: {reason}" for name, reason in plan.without.items())]
    lines.append(
        f"{plan.model} on {plan.suite}: {plan.items:,} items, {plan.distinct:,} distinct, {plan.missing:,} to embed in"
        f" {plan.batches:,} batches, {plan.vector_bytes / 1e6:,.1f} MB of vectors"
    )
    return "\n".join(lines) + "\n"


def _check_options(options: Options, model: Embedder) -> None:
    for name in ("limit", "dim", "top_k", "batch", "actors"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} {value}: give a number of 1 or more")
    if options.dim is not None and options.dim > model.dimension:
        raise UserError(f"--dim {options.dim}: the vectors of {model.name} have {model.dimension} dimensions")
    if options.prompt not in (None, "model", "card", "none"):
        raise UserError(f"--prompt {options.prompt}: write model, card or none")
    if options.engine not in ("local", "ray"):
        raise UserError(f"--engine {options.engine}: write local or ray")
    for name in ("address", "actors", "gpus_per_actor") if options.engine == "local" else ():
        if getattr(options, name):
            raise UserError(
                f"--{name.replace('_', '-')} {getattr(options, name)}: belongs to --engine ray; add that or leave it out"
            )
    if options.on_missing not in ("fail", "skip"):
        raise UserError(f"--on-missing {options.on_missing}: write fail or skip")


def _plan_task(task: Task, root: Path, plan: Plan, prompt: str, limit: int | None, journal: Journal | None) -> Planned:
    """Read and plan a task.

    With a journal of media, items whose media are missing or do not decode are left out, and so are tasks whose files are missing
    or damaged.
    """
    deviation = ""
    try:
        data = read_task(root, task)
        data = replace(data, queries=data.queries[:limit])
        if journal is not None:
            data, deviation = without_missing(data, task, journal)
    except UserError as error:
        if journal is None and isinstance(error, MissingDataError):
            raise UserError(f"{error}; or leave such tasks out with --on-missing skip") from None
        if journal is None and not isinstance(error, NoDataError):
            raise
        return Planned(task, TaskData([], [], {}), {}, reason=str(error), status="no-data")
    look = refuse_missing(task) if journal is None else _unseen
    queries = plan.ask(data.queries, "query", task.instruction, task.media, prompt, task.name, look)
    candidates = plan.ask(data.candidates, "candidate", task.candidate_instruction, task.media, prompt, task.name, look)
    planned = Planned(
        task, data, _hashes(data, queries, candidates), queries.keys, candidates.keys, deviation=deviation
    )
    for role, asked in (("queries", queries), ("candidates", candidates)):
        for parts in plan.parts(asked):
            if not plan.model.supports(parts):
                plan.drop(queries, candidates)
                reason = f"{plan.model.name} does not embed {signature(parts)} ({role})"
                return replace(planned, query_keys=no_keys(), candidate_keys=no_keys(), reason=reason)
    return planned


def _unseen(item: Item) -> None:
    """Nothing is looked for."""


def _hashes(data: TaskData, queries: Asked, candidates: Asked) -> dict[str, str]:
    judged = {*Ids(data.queries), *data.skipped}
    return {
        "queries": _digest([queries.digest, data.skipped]),
        "pool": _digest([candidates.digest, data.pools, data.exclude]),
        "judgments": _digest(
            sorted((query, sorted(row.items())) for query, row in data.judgments.items() if query in judged)
        ),
    }


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()


def _identity(suite: Suite, model: Embedder, planned: Sequence[Planned], options: Options, prompt: str) -> str:
    tasks = [[one.task.name, msgspec.to_builtins(one.task.media), one.hashes] for one in planned]
    chosen = [options.limit, options.dim, options.batch, options.top_k, prompt]
    return _digest([suite.revision, model.fingerprint, tasks, chosen])[:12]


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.+=-]+", "_", name).strip(".") or "_"
