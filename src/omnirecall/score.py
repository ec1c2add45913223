"""Vectors or a ranked list, and judgments, in; measures out. No model is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from omnirecall import ranking
from omnirecall.errors import UserError
from omnirecall.evaluation import rank_columns
from omnirecall.files import pretty_json
from omnirecall.protocol.items import Judgments
from omnirecall.protocol.measures import Measure, RankedJudgments, score_queries
from omnirecall.results.judging import JudgedRows, judged_rows, ranked_judgments, tied_queries
from omnirecall.results.record import RankTable, rank_table, write_parquet
from omnirecall.results.scores import MeasureValue, task_measures
from omnirecall.results.tables import shown
from omnirecall.sources.checks import Places, check_grades, check_ids
from omnirecall.sources.qrels import read_pools, read_qrels
from omnirecall.sources.vectors import distinct, read_ids, read_run_file, read_vectors, refuse_unusable


@dataclass(frozen=True, slots=True)
class Request:
    """What to score: files, measures separated by commas, and how."""

    qrels: Path
    vectors: tuple[Path, Path] | None = None
    run_file: Path | None = None
    measures: str = "hit@1,hit@5,recall@5,ndcg@10,mrr"
    query_ids: Path | None = None
    candidate_ids: Path | None = None
    pool: Path | None = None
    similarity: str = "cosine"
    tie_break: str = "expected"
    unjudged: str = "refuse"
    per_query: Path | None = None
    top_k: int = 10


class Scored(msgspec.Struct, frozen=True):
    """Measures by printed name, and what they were taken over."""

    measures: dict[str, MeasureValue]
    queries: int
    candidates: int
    tied_queries: int
    relevant_outside_pool: int
    unjudged_queries: int = 0

    def as_json(self) -> str:
        """Indented JSON."""
        return pretty_json(self)

    def as_text(self) -> str:
        """A line for each measure, then the sizes."""
        wide = max(len(name) for name in self.measures)
        lines = [f"{name:<{wide}}  {_line(name, value)}" for name, value in self.measures.items()]
        lines.append(f"{self.queries:,} queries, {self.candidates:,} candidates")
        if self.tied_queries:
            lines.append(f"{self.tied_queries:,} queries have a relevant candidate tied with another")
        if self.relevant_outside_pool:
            lines.append(
                f"{self.relevant_outside_pool:,} relevant candidates lie outside the pool and count as not retrieved"
            )
        if self.unjudged_queries:
            lines.append(f"{self.unjudged_queries:,} queries without a relevant candidate were dropped")
        return "\n".join(lines) + "\n"


def _line(name: str, value: MeasureValue) -> str:
    spread = f"  (ties: {shown(value.worst, name)} to {shown(value.best, name)})" if value.depends_on_ties else ""
    return shown(value.value, name) + spread


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Counts with ties left open, and counts under the asked order of ties."""

    open: RankedJudgments
    ordered: RankedJudgments
    table: RankTable
    candidates: int
    outside: int
    unjudged: int


def score(request: Request) -> Scored:
    """Score a request; UserError names file, line or id."""
    measures = parse_measures(request.measures)
    if request.per_query is not None and (request.per_query.is_dir() or request.per_query.parent.is_file()):
        raise UserError(f"--per-query {request.per_query}: name a file inside a folder")
    judgments = read_qrels(request.qrels)
    check_grades(judgments, measures, str(request.qrels))
    ranked = _from_run_file(request, judgments) if request.run_file else _from_vectors(request, judgments)
    spread = task_measures(measures, ranked.open)
    ordered = task_measures(measures, ranked.ordered) if request.tie_break in ("index", "docno") else spread
    chosen = {
        name: MeasureValue(_pick(ordered[name], request.tie_break), spread[name].best, spread[name].worst)
        for name in spread
    }
    if request.per_query is not None:
        columns = {str(measure): pa.array(_per_query(measure, ranked, request.tie_break)) for measure in measures}
        write_parquet(request.per_query, rank_table(ranked.table, columns))
    return Scored(
        measures=chosen,
        queries=len(ranked.table.query_ids),
        candidates=ranked.candidates,
        tied_queries=tied_queries(ranked.open),
        relevant_outside_pool=ranked.outside,
        unjudged_queries=ranked.unjudged,
    )


def parse_measures(text: str) -> list[Measure]:
    """Measures separated by commas, each once; UserError for one that is not known."""
    try:
        return list(dict.fromkeys(Measure.parse(name) for name in text.split(",")))
    except ValueError as error:
        raise UserError(str(error)) from None


def _pick(value: MeasureValue, tie_break: str) -> float:
    return {"best": value.best, "worst": value.worst}.get(tie_break, value.value)


def _per_query(measure: Measure, ranked: _Ranked, tie_break: str) -> NDArray[np.float64]:
    scores = score_queries(measure, ranked.ordered if tie_break in ("index", "docno") else ranked.open)
    return {"best": scores.best, "worst": scores.worst}.get(tie_break, scores.value)


def _from_vectors(request: Request, judgments: Judgments) -> _Ranked:
    assert request.vectors is not None
    files = request.vectors
    queries, candidates = read_vectors(files[0]), read_vectors(files[1])
    if queries.shape[1] != candidates.shape[1]:
        raise UserError(
            f"{files[0]} has {queries.shape[1]} dimensions and {files[1]} has {candidates.shape[1]}; they must be from one model"
        )
    query_ids = distinct(read_ids(request.query_ids, len(queries), files[0]), request.query_ids)
    candidate_ids = distinct(read_ids(request.candidate_ids, len(candidates), files[1]), request.candidate_ids)
    refuse_unusable(queries, query_ids, files[0], zero_too=request.similarity == "cosine")
    refuse_unusable(candidates, candidate_ids, files[1], zero_too=request.similarity == "cosine")
    pools, exclude = read_pools(request.pool) if request.pool else (None, {})
    kept = check_ids(
        query_ids,
        candidate_ids,
        judgments,
        pools,
        exclude,
        unjudged=request.unjudged,
        places=Places(
            str(request.query_ids or files[0]),
            str(request.candidate_ids or files[1]),
            str(request.qrels),
            str(request.pool),
        ),
    )
    dropped = len(query_ids) - len(kept)
    if dropped:
        queries, query_ids = queries[kept], [query_ids[row] for row in kept]
    judged = judged_rows(query_ids, candidate_ids, judgments, pools, exclude)

    def counts(order: NDArray[np.int64] | None) -> tuple[ranking.Ranks, RankedJudgments]:
        try:
            ranks = ranking.rank(
                queries,
                candidates,
                judged.positives,
                pool=judged.pool,
                exclude=judged.exclude,
                similarity=request.similarity,
                top_k=request.top_k,
                order=order,
            )
        except ranking.RankingError as error:
            raise UserError(f"{files[0]}, {files[1]}: {error}") from None
        return ranks, ranked_judgments(judged, ranks.greater, ranks.tied, ranks.pool_size)

    ranks, open_counts = counts(None)
    order = tie_order(request.tie_break, candidate_ids)
    # The list of the best stands in the order that the measures were taken in.
    ranks, ordered = (ranks, open_counts) if order is None else counts(order)
    table = rank_columns(query_ids, candidate_ids, judged, ranks, open_counts, [None] * len(query_ids))
    return _Ranked(open_counts, ordered, table, len(candidate_ids), judged.outside, dropped)


def tie_order(tie_break: str, candidate_ids: Sequence[str]) -> NDArray[np.int64] | None:
    """The place of each candidate among equal scores: its row (index), or its id in descending byte order (docno, as trec_eval)."""
    if tie_break == "index":
        return np.arange(len(candidate_ids))
    if tie_break == "docno":
        descending = sorted(range(len(candidate_ids)), key=lambda row: candidate_ids[row].encode(), reverse=True)
        order = np.empty(len(candidate_ids), np.int64)
        order[descending] = np.arange(len(candidate_ids))
        return order
    return None


def _from_run_file(request: Request, judgments: Judgments) -> _Ranked:
    """Counts over the listed candidates only; a relevant candidate that is not listed is not retrieved. Equal scores tie."""
    assert request.run_file is not None
    for name, value in (
        ("--pool", request.pool),
        ("--query-ids", request.query_ids),
        ("--candidate-ids", request.candidate_ids),
    ):
        if value is not None:
            raise UserError(f"{name} goes with vectors; a run file already names queries and candidates")
    run = read_run_file(request.run_file)
    query_ids = list(judgments)
    candidates = list(dict.fromkeys(candidate for scores in run.values() for candidate in scores))
    places = Places(str(request.qrels), str(request.run_file), str(request.qrels), "")
    kept = check_ids(query_ids, candidates, judgments, None, {}, unjudged=request.unjudged, places=places)
    dropped = len(query_ids) - len(kept)
    query_ids = [query_ids[row] for row in kept]
    lists = {query: run.get(query, {}) for query in query_ids}
    judged = judged_rows(query_ids, candidates, judgments, {query: list(scores) for query, scores in lists.items()}, {})
    open_counts, ordered = (
        _list_counts(lists, judged, candidates, tie_break) for tie_break in ("expected", request.tie_break)
    )
    tops = {query: _best_listed(scores, request.top_k, request.tie_break) for query, scores in lists.items()}
    table = RankTable(
        query_ids=query_ids,
        clusters=[None] * len(query_ids),
        relevant_ids=judged.relevant,
        ranked=open_counts,
        positive_scores=[lists[query].get(name, np.nan) for query, name in _pairs(query_ids, judged)],
        top_ids=list(tops.values()),
        top_scores=[[lists[query][name] for name in names] for query, names in tops.items()],
    )
    return _Ranked(open_counts, ordered, table, len(candidates), judged.outside, dropped)


def _best_listed(scores: dict[str, float], top_k: int, tie_break: str) -> list[str]:
    names = sorted(scores, key=str.encode, reverse=True) if tie_break == "docno" else list(scores)
    return sorted(names, key=lambda name: -scores[name])[:top_k]


def _pairs(query_ids: Sequence[str], judged: JudgedRows) -> list[tuple[str, str]]:
    owners = np.repeat(np.arange(len(query_ids)), np.diff(judged.offsets)).tolist()
    return [(query_ids[owner], name) for owner, name in zip(owners, judged.relevant, strict=True)]


def _list_counts(
    lists: dict[str, dict[str, float]], judged: JudgedRows, candidates: list[str], tie_break: str
) -> RankedJudgments:
    query_ids = list(lists)
    greater: list[int] = []
    tied: list[int] = []
    places: dict[str, NDArray[np.int64]] = {}
    for query, name in _pairs(query_ids, judged):
        scores = lists[query]
        if name not in scores:
            continue
        values = np.array(list(scores.values()))
        above, equal = int((values > scores[name]).sum()), int((values == scores[name]).sum()) - 1
        if tie_break in ("index", "docno") and equal:
            names = list(scores)
            if query not in places:
                order = tie_order(tie_break, names)
                assert order is not None
                places[query] = order
            place = places[query][names.index(name)]
            above, equal = above + int(((values == scores[name]) & (places[query] < place)).sum()), 0
        greater.append(above)
        tied.append(equal)
    pool_size = np.full(len(query_ids), len(candidates), np.int64)
    return ranked_judgments(judged, np.array(greater, np.int64), np.array(tied, np.int64), pool_size)
