"""A run in the forms of other tools: the MMEB leaderboard's JSON, and TREC files for trec_eval and ir_measures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from omnirecall.errors import UserError
from omnirecall.files import pretty_json, write_whole
from omnirecall.protocol.cards import read_card, shipped_card
from omnirecall.protocol.measures import Measure, aggregate, score_queries
from omnirecall.results.lists import EVER, Ordered, ordered_task, refuse_deeper
from omnirecall.results.record import Run
from omnirecall.results.rescore import chosen_tasks
from omnirecall.results.stored import read_task, valued_tasks

MMEB = "mmeb-v2"
MMEB_MODALITIES = {"image": "Image", "video": "Video", "visdoc": "VisDoc"}
"""The leaderboard's sections, each with the mean of the card that holds its tasks."""
MMEB_MEASURES = {
    f"{theirs}@{k}": Measure(ours, k)
    for theirs, ours in (
        ("hit", "hit"), ("ndcg_linear", "ndcg"), ("ndcg_exponential", "ndcg_exp"), ("precision", "precision"),
        ("recall", "recall"), ("f1", "f1"), ("map", "map"), ("mrr", "mrr"),
    )
    for k in (1, 5, 10)
}  # fmt: skip
"""Names of a task's measures; source: github.com/TIGER-AI-Lab/VLM2Vec 6e1e1d4, src/utils/eval_utils/metrics.py and eval.py."""
MMEB_METADATA = (
    "model_name", "model_backbone", "model_size", "embedding_dimension", "max_length_tokens", "model_release_date", "data_source",
    "url",
)  # fmt: skip
"""What a submission says of its model; source: the same, experiments/report_score_v2.py."""

TREC_NAMES = {
    "hit": "Success@{k}",
    "recall": "R@{k}",
    "precision": "P@{k}",
    "ndcg": "nDCG@{k}",
    "mrr": "RR",
    "map": "AP",
}
"""Measures that trec_eval takes by the same definition, by their names in ir_measures; mrr and map without a cut."""


class TrecTask(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one task, and what they are worth: values by their names in ir_measures. ``left_out``: what they do not give."""

    run: str
    qrels: str
    values: Mapping[str, float]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """Where to and what: ``to`` is mmeb or trec; ``tasks``, ``measures`` for trec, ``metadata`` as KEY=VALUE for mmeb."""

    to: str
    out: Path
    tasks: tuple[str, ...] = ()
    measures: tuple[Measure, ...] | None = None
    metadata: tuple[str, ...] = ()


def export(run: Run, request: Request) -> tuple[str, str]:
    """Write an opened run and say what was written, as text and as JSON; UserError for what does not fit."""
    if request.to == "trec":
        if request.metadata:
            raise UserError("--meta goes with --to mmeb; trec_eval asks nothing about the model")
        written = trec(run, request.out, request.measures, request.tasks)
        return trec_text(written), pretty_json(written)
    if request.tasks or request.measures:
        raise UserError("--tasks and --measures go with --to trec; the leaderboard takes every measure of every task")
    if request.out.is_dir() or request.out.parent.is_file():
        raise UserError(f"--out {request.out}: name a file inside a folder")
    content = mmeb(run, request.metadata, datetime.now(UTC))
    write_whole(request.out, content)
    tasks, of = len(valued_tasks(run)), len(run.tasks)
    return f"{tasks} of the run's {of} tasks are in {request.out}\n", pretty_json(
        {"file": str(request.out), "tasks": tasks}
    )


def mmeb(run: Run, metadata: Sequence[str], now: datetime) -> str:
    """The leaderboard's JSON of an opened run of mmeb-v2: metadata, and every measure of every task that has a value.

    ``metadata``: KEY=VALUE, keys of MMEB_METADATA; what is not given is null. Deviations of the run are named beside it.
    UserError for a run of another suite or card, and for a key that is none.
    """
    if run.suite != MMEB:
        raise UserError(f"{run.folder}: is a run of {run.suite}; the MMEB leaderboard takes runs of {MMEB}")
    suite = read_card(shipped_card(MMEB))
    if suite.revision != run.card:
        raise UserError(
            f"{run.folder}: was run on another version of the card {MMEB}; run it again, which embeds nothing anew"
        )
    pairs = [text.partition("=") for text in metadata]
    for key, equals, _ in pairs:
        if key not in MMEB_METADATA or not equals:
            raise UserError(f"--meta {key}{equals}: write KEY=VALUE with a key of {', '.join(MMEB_METADATA)}")
    about: dict[str, Any] = dict.fromkeys(MMEB_METADATA)
    about |= {"model_name": run.model.name, "embedding_dimension": run.model.dimension, "data_source": "Self-Reported"}
    about |= {key: int(text) if text.isdecimal() else text for key, _, text in pairs}
    about["report_generated_date"] = now.isoformat()
    if run.deviations:
        about["deviations"] = list(run.deviations)
    valued = set(valued_tasks(run))
    scores = {
        section: {name: _mmeb_scores(run, name) for name in suite.below(mean) if name in valued}
        for section, mean in MMEB_MODALITIES.items()
    }
    return pretty_json({"metadata": about, "metrics": scores})


def _mmeb_scores(run: Run, name: str) -> dict[str, float | int]:
    ranked = read_task(run, name).ranked
    scores: dict[str, float | int] = {
        theirs: aggregate(measure, score_queries(measure, ranked).value) for theirs, measure in MMEB_MEASURES.items()
    }
    return scores | {"num_pred": len(ranked.pool_size), "num_data": len(ranked.pool_size)}


def trec(run: Run, folder: Path, measures: Sequence[Measure] | None, globs: Sequence[str] = ()) -> dict[str, TrecTask]:
    """Write ``<task>.run`` and ``<task>.qrels`` for each task of an opened run that matches a glob, and say what they are worth.

    A run file holds each query's stored list with the order of docno among equal scores; its scores are counted down from the
    length of the list, so that no rule for ties can change the order. ``measures``: what the files must give; None: of each task's
    own measures those that they can give. UserError for one that is deeper than the stored lists or that trec_eval does not have.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder}: is a file; name a folder")
    if measures is not None:
        _refuse_unknown(measures)
    written = {}
    for name in chosen_tasks(run, globs):
        found = ordered_task(run, name, "docno")
        own = [Measure.parse(text) for text in run.tasks[name].measures]
        given = list(measures or [one for one in own if _trec_name(one) and not _beyond(one, found).any()])
        _refuse_beyond(given or own[:1], found, run, name)
        run_file, qrels = folder / f"{name}.run", folder / f"{name}.qrels"
        write_whole(run_file, _run_lines(found))
        write_whole(qrels, _qrels_lines(found, run, name))
        written[name] = TrecTask(
            run=str(run_file),
            qrels=str(qrels),
            values={_trec_name(one): aggregate(one, score_queries(one, found.ranked).value) for one in given},
            left_out=tuple(str(one) for one in own if measures is None and one not in given),
        )
    return written


def trec_text(written: Mapping[str, TrecTask]) -> str:
    """A line for each task: its files and what ir_measures finds in them."""
    lines = []
    for name, task in written.items():
        values = ", ".join(f"{measure} {value:.4f}" for measure, value in task.values.items())
        left = f" (not given: {', '.join(task.left_out)})" if task.left_out else ""
        lines.append(f"{name}: {values}{left}")
    return "\n".join(lines) + "\n"


def _trec_name(measure: Measure) -> str:
    """The name in ir_measures, "" for what trec_eval has not or defines in another way."""
    text = TREC_NAMES.get(measure.name, "")
    return "" if ("{k}" in text) != (measure.k is not None) else text.format(k=measure.k)


def _refuse_unknown(measures: Sequence[Measure]) -> None:
    for measure in measures:
        if not _trec_name(measure):
            raise UserError(
                f"{measure}: trec_eval has no such measure, or defines it in another way; it takes hit@k, recall@k, precision@k,"
                " ndcg@k, mrr and map"
            )


def _beyond(measure: Measure, found: Ordered) -> NDArray[np.bool_]:
    """For each query, whether the measure looks beyond its stored list."""
    listed = np.array([len(ids) for ids in found.listed])
    depth = np.where(listed >= found.ranked.pool_size, EVER, listed)
    depth[listed == 0] = EVER  # nothing was ranked: the query scores 0 at any depth
    beyond: NDArray[np.bool_] = np.minimum(depth, found.known) < (measure.k or EVER)
    return beyond


def _refuse_beyond(measures: Sequence[Measure], found: Ordered, run: Run, name: str) -> None:
    refuse_deeper(measures, found, run, name, "in docno order")
    for measure in measures:
        short = _beyond(measure, found)
        if short.any():
            query = int(short.argmax())
            raise UserError(
                f"{run.folder}: task {name}: {measure} looks beyond the {len(found.listed[query])} candidates that are stored"
                f" for query {found.task.query_ids[query]}; run with a larger --top-k, or name shallower --measures"
            )


def _run_lines(found: Ordered) -> str:
    lines = []
    for query, who in enumerate(found.task.query_ids.to_pylist()):
        listed = _in_rank_order(found, query)
        for place, one in enumerate(listed):
            lines.append(f"{trec_id(who)} Q0 {trec_id(one)} {place + 1} {len(listed) - place} omnirecall\n")
    return "".join(lines)


def _in_rank_order(found: Ordered, query: int) -> list[str]:
    """The list with each relevant candidate at its rank; the others keep their order."""
    listed = found.listed[query]
    start, end = found.ranked.offsets[query], found.ranked.offsets[query + 1]
    ranks = zip(found.ranked.greater[start:end].tolist(), found.relevant[query], strict=True)
    placed = {rank: one for rank, one in ranks if 0 <= rank < len(listed)}
    others = iter([one for one in listed if one not in set(placed.values())])
    return [placed[rank] if rank in placed else next(others) for rank in range(len(listed))]


def _qrels_lines(found: Ordered, run: Run, name: str) -> str:
    grades, offsets = found.ranked.grades, found.ranked.offsets
    broken = grades[grades != np.rint(grades)]
    if len(broken):
        raise UserError(
            f"{run.folder}: task {name}: TREC judgments are whole numbers, and the grade {broken[0]:g} is none; leave the task out"
        )
    lines = []
    for query, who in enumerate(found.task.query_ids.to_pylist()):
        own = grades[offsets[query] : offsets[query + 1]].tolist()
        for one, grade in zip(found.relevant[query], own, strict=True):
            lines.append(f"{trec_id(who)} 0 {trec_id(one)} {grade:.0f}\n")
    return "".join(lines)


def trec_id(name: str) -> str:
    """An id without blanks or control characters: these, and the percent sign, are written as %XX of their UTF-8 bytes."""

    def escaped(found: re.Match[str]) -> str:
        return "".join(f"%{byte:02X}" for byte in found[0].encode(errors="surrogatepass"))

    return re.sub(r"[\s%\x00-\x1f\x7f-\x9f]", escaped, name) or "%"
