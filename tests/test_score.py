"""``omnirecall score`` against other judges: ir-measures, pytrec_eval, and every order of the ties by hand."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import ir_measures
import numpy as np
import pyarrow.parquet as pq
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirecall.score import Request, score

EXACT = 1e-9
RANK_COLUMNS = [
    "query_id",
    "cluster",
    "pool_size",
    "n_relevant",
    "relevant_ids",
    "grades",
    "greater",
    "tied",
    "positive_scores",
    "top_ids",
    "top_scores",
]


@dataclass
class Case:
    """Vectors by id and judgments, as a user would have them."""

    queries: dict[str, Sequence[float]]
    candidates: dict[str, Sequence[float]]
    qrels: dict[str, dict[str, int]]
    pools: dict[str, list[str]] = field(default_factory=dict)
    exclude: dict[str, list[str]] = field(default_factory=dict)

    def pool(self, query: str) -> list[str]:
        out = set(self.exclude.get(query, ()))
        return [name for name in self.pools.get(query, self.candidates) if name not in out]

    def write(self, folder: Path, dtype: str = "f4") -> list[str]:
        """Files for the command; its arguments."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in (("q", self.queries), ("c", self.candidates)):
            np.save(folder / f"{name}.npy", np.array(list(table.values()), dtype))
            (folder / f"{name}.txt").write_text("".join(f"{key}\n" for key in table))
        rows = [(q, c, g) for q, row in self.qrels.items() for c, g in row.items()]
        (folder / "qrels.tsv").write_text(
            "query-id\tcorpus-id\tscore\n" + "".join(f"{q}\t{c}\t{g}\n" for q, c, g in rows)
        )
        lists = [{"query-id": q, "candidates": ids} for q, ids in self.pools.items()]
        lists += [{"query-id": q, "exclude": ids} for q, ids in self.exclude.items()]
        (folder / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lists))
        arguments = [folder / "q.npy", folder / "c.npy", folder / "qrels.tsv"]
        arguments += ["--query-ids", folder / "q.txt", "--candidate-ids", folder / "c.txt"]
        arguments += ["--pool", folder / "pool.jsonl"] if lists else []
        return [str(argument) for argument in arguments]

    def request(self, folder: Path, measures: str, **more: object) -> Request:
        self.write(folder)
        return Request(
            qrels=folder / "qrels.tsv",
            vectors=(folder / "q.npy", folder / "c.npy"),
            query_ids=folder / "q.txt",
            candidate_ids=folder / "c.txt",
            pool=folder / "pool.jsonl" if self.pools or self.exclude else None,
            measures=measures,
            **more,  # type: ignore[arg-type]
        )


def generated(seed: int, queries: int = 100, candidates: int = 40, shared_pool: bool = False) -> Case:
    """Random vectors without ties; several graded relevant candidates, some outside the pool; pools and exclusions."""
    rng = np.random.default_rng(seed)
    names = [f"doc {row}" if row % 3 else str(row) for row in range(candidates)]
    vectors = {name: rng.standard_normal(6).astype(np.float32) for name in names}
    case = Case({f"q{row}": rng.standard_normal(6).astype(np.float32) for row in range(queries)}, vectors, {})
    for query in case.queries:
        picked = rng.permutation(names)
        relevant, rest = picked[: rng.integers(1, 6)].tolist(), picked[6:].tolist()
        case.qrels[query] = {name: int(rng.integers(1, 4)) for name in relevant}
        case.qrels[query] |= dict.fromkeys(rest[:2], 0)
        if not rng.integers(4):
            case.qrels[query]["not a candidate"] = 2
        if not shared_pool:
            kept = relevant if rng.integers(2) else relevant[1:]
            case.pools[query] = [str(name) for name in rng.permutation(kept + rest[: rng.integers(5, len(rest))])]
        if rng.integers(2):
            case.exclude[query] = rest[2 : 2 + rng.integers(1, 4)]
    return case


def ranked(case: Case, query: str) -> list[str]:
    """The pool by falling cosine in float64; no two may be equal."""
    q = np.asarray(case.queries[query], np.float64)
    scores = {}
    for name in case.pool(query):
        c = np.asarray(case.candidates[name], np.float64)
        scores[name] = float(q @ c / math.sqrt((q @ q) * (c @ c)))
    assert len(set(scores.values())) == len(scores)
    return sorted(scores, key=lambda name: -scores[name])


def by_definition(measure: str, order: Sequence[str], grades: Mapping[str, float]) -> float:
    """A measure of one ranking, straight from its definition; ``grades`` of the relevant candidates only."""
    name, _, cut = measure.partition("@")
    k = int(cut) if cut else len(order)
    places = [place for place, doc in enumerate(order, 1) if doc in grades]
    top = [place for place in places if place <= k]
    if name == "hit":
        return float(bool(top))
    if name == "recall":
        return len(top) / len(grades)
    if name == "precision":
        return len(top) / k
    if name == "f1":
        return 2 * len(top) / (k + len(grades))
    if name == "mrr":
        return 1 / top[0] if top else 0.0
    if name == "map":
        total = sum(sum(other <= place for other in top) / place for place in top)
        return total / (min(k, len(grades)) if cut else len(grades))
    if name == "median_rank":
        return float(places[0] if places else len(order) + 1)
    gain = {"ndcg": float, "ndcg_exp": lambda grade: 2.0**grade - 1}[name]
    found = sum(gain(grades[order[place - 1]]) / math.log2(place + 1) for place in top)
    best = sorted(grades.values(), reverse=True)[:k]
    return found / sum(gain(grade) / math.log2(place + 1) for place, grade in enumerate(best, 1))


JUDGED = {
    "hit": "Success@{k}",
    "recall": "R@{k}",
    "precision": "P@{k}",
    "ndcg": "nDCG@{k}",
    "mrr": "RR@{k}",
}


@pytest.mark.parametrize("seed", range(20))
def test_against_ir_measures(seed: int, tmp_path: Path) -> None:
    case = generated(seed, shared_pool=seed % 4 == 0)
    names = {f"{ours}@{k}": theirs.format(k=k) for ours, theirs in JUDGED.items() for k in (1, 3, 5, 10)}
    names |= {"mrr": "RR", "map": "AP"}
    by_hand = ["f1@5", "ndcg_exp@5", "map@3", "median_rank"]
    scored = score(case.request(tmp_path, ",".join([*names, *by_hand]), per_query=tmp_path / "each.parquet"))
    orders = {query: ranked(case, query) for query in case.queries}
    run = {query: {doc: 1000.0 - place for place, doc in enumerate(order)} for query, order in orders.items()}
    parsed = {name: ir_measures.parse_measure(theirs) for name, theirs in names.items()}
    each = pq.read_table(tmp_path / "each.parquet").to_pydict()
    judged: dict[str, dict[str, float]] = {name: {} for name in names}
    back = {measure: name for name, measure in parsed.items()}
    for metric in ir_measures.iter_calc(list(parsed.values()), case.qrels, run):
        judged[back[metric.measure]][metric.query_id] = metric.value
    for name in names:
        assert each[name] == pytest.approx([judged[name][query] for query in each["query_id"]], abs=EXACT), name
        assert scored.measures[name].value == pytest.approx(statistics.fmean(judged[name].values()), abs=EXACT)
        assert scored.measures[name].best == scored.measures[name].worst == scored.measures[name].value
    for name in by_hand:
        relevant = {query: {c: g for c, g in row.items() if g > 0} for query, row in case.qrels.items()}
        values = [by_definition(name, orders[query], relevant[query]) for query in case.queries]
        assert each[name] == pytest.approx(values, abs=EXACT), name
        mean = statistics.median(values) if name == "median_rank" else statistics.fmean(values)
        assert scored.measures[name].value == pytest.approx(mean, abs=EXACT)
    assert (scored.queries, scored.candidates, scored.tied_queries) == (100, 40, 0)
    outside = sum(c not in case.pool(q) for q, row in case.qrels.items() for c, grade in row.items() if grade > 0)
    assert scored.relevant_outside_pool == outside > 0


def orders_of_ties(levels: Mapping[str, Fraction]) -> list[list[str]]:
    """Every ranking that falling levels allow."""
    groups = [[n for n in levels if levels[n] == level] for level in sorted(set(levels.values()), reverse=True)]
    choices = itertools.product(*(itertools.permutations(group) for group in groups))
    return [list(itertools.chain.from_iterable(choice)) for choice in choices]


def exact_level(query: Sequence[float], candidate: Sequence[float]) -> Fraction:
    """What orders candidates as their cosine does, as an exact fraction: the signed square of dot over norm."""
    dot = sum(Fraction(a) * Fraction(b) for a, b in zip(query, candidate, strict=True))
    return dot * abs(dot) / sum(Fraction(value) ** 2 for value in candidate)


@st.composite
def small_cases(draw: st.DrawFn) -> Case:
    vector = st.tuples(st.integers(-1, 2), st.integers(-1, 2)).filter(any)
    candidates = {str(row): draw(vector) for row in range(draw(st.integers(1, 5)))}
    case = Case({f"q{row}": draw(vector) for row in range(draw(st.integers(1, 3)))}, candidates, {})
    pooled = draw(st.booleans())
    for query in case.queries:
        names = list(candidates)
        relevant = draw(st.sets(st.sampled_from([*names, "elsewhere"]), min_size=1))
        case.qrels[query] = {name: draw(st.integers(1, 3)) for name in sorted(relevant)}
        free = [name for name in names if name not in relevant]
        if free and len(names) > 1:
            out = draw(st.sets(st.sampled_from(free), max_size=len(names) - 1))
            if out:
                case.exclude[query] = sorted(out)
        if pooled:
            inside = [name for name in names if name not in case.exclude.get(query, [])]
            case.pools[query] = sorted(draw(st.sets(st.sampled_from(inside), min_size=1)))
            case.exclude.pop(query, None)
    return case


TIED_MEASURES = "hit@1,hit@2,recall@2,precision@3,f1@2,ndcg@2,ndcg@5,ndcg_exp@3,mrr,mrr@2,map,map@2"


@settings(max_examples=150, deadline=None)
@given(case=small_cases())
def test_against_every_order_of_the_ties(case: Case, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("ties")
    measures = TIED_MEASURES + ",median_rank"
    scored = score(case.request(folder, measures, per_query=folder / "each.parquet"))
    each = pq.read_table(folder / "each.parquet").to_pydict()
    assert each["query_id"] == list(case.queries)
    assert each["pool_size"] == [len(case.pool(query)) for query in case.queries]
    expected: dict[str, list[tuple[float, float, float]]] = {name: [] for name in measures.split(",")}
    tied_queries = 0
    for query, vector in case.queries.items():
        orders = orders_of_ties({name: exact_level(vector, case.candidates[name]) for name in case.pool(query)})
        tied_queries += len({tuple(name in case.qrels[query] for name in order) for order in orders}) > 1
        for name, column in expected.items():
            values = [by_definition(name, order, case.qrels[query]) for order in orders]
            best, worst = (min, max) if name == "median_rank" else (max, min)
            column.append((statistics.fmean(values), best(values), worst(values)))
    for name, column in expected.items():
        assert each[name] == pytest.approx([value for value, _, _ in column], abs=EXACT), name
        over = statistics.median if name == "median_rank" else statistics.fmean
        value, best, worst = (over([row[place] for row in column]) for place in range(3))
        got = scored.measures[name]
        assert (got.value, got.best, got.worst) == pytest.approx((value, best, worst), abs=EXACT), name
    assert scored.tied_queries == tied_queries


@settings(max_examples=40, deadline=None)
@given(case=small_cases(), tie_break=st.sampled_from(["index", "docno", "best", "worst"]))
def test_tie_breaks_on_vectors(case: Case, tie_break: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("breaks")
    scored = score(case.request(folder, TIED_MEASURES, tie_break=tie_break, per_query=folder / "each.parquet"))
    each = pq.read_table(folder / "each.parquet").to_pydict()
    rows = list(case.candidates)
    for name in TIED_MEASURES.split(","):
        values = []
        for query, vector in case.queries.items():
            levels = {c: exact_level(vector, case.candidates[c]) for c in case.pool(query)}
            of_orders = [by_definition(name, order, case.qrels[query]) for order in orders_of_ties(levels)]
            if tie_break in ("best", "worst"):
                values.append({"best": max, "worst": min}[tie_break](of_orders))
                continue
            first = sorted(levels, key=rows.index) if tie_break == "index" else sorted(levels, reverse=True)
            order = sorted(first, key=lambda c: levels[c], reverse=True)
            values.append(by_definition(name, order, case.qrels[query]))
        assert each[name] == pytest.approx(values, abs=EXACT)
        assert scored.measures[name].value == pytest.approx(statistics.fmean(values), abs=EXACT)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
def test_ranks_are_those_of_float64_with_duplicated_rows(
    dtype: str, tmp_path: Path, ranked_by_hand: Callable[..., tuple[int, int]]
) -> None:
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((30, 9)).astype(dtype).astype("f8")
    rows = np.concatenate([rows, rows[:12], 2 * rows[:5]])  # identical rows, and one direction at two lengths
    names = [f"c{row}" for row in rng.permutation(len(rows))]
    case = Case(
        {f"q{row}": rng.standard_normal(9).astype(dtype).astype("f8") for row in range(15)},
        dict(zip(names, rows, strict=True)),
        {f"q{row}": {names[row]: 1, names[row + 10]: 2} for row in range(15)},
    )
    arguments = case.write(tmp_path, dtype)
    request = Request(
        qrels=tmp_path / "qrels.tsv",
        vectors=(tmp_path / "q.npy", tmp_path / "c.npy"),
        query_ids=tmp_path / "q.txt",
        candidate_ids=tmp_path / "c.txt",
        per_query=tmp_path / "each.parquet",
    )
    assert str(request.qrels) == arguments[2]
    score(request)
    each = pq.read_table(tmp_path / "each.parquet").to_pylist()
    ties = 0
    for row in each:
        for place, name in enumerate(row["relevant_ids"]):
            higher, equal = ranked_by_hand(case.queries[row["query_id"]], case.candidates, name)
            assert (row["greater"][place], row["tied"][place]) == (higher, equal)
            ties += equal
    assert ties


def test_small_pools_of_many_candidates(tmp_path: Path, ranked_by_hand: Callable[..., tuple[int, int]]) -> None:
    """Pools of eight among 400, with identical rows, and rows whose scores are closer than float32 can tell."""
    rng = np.random.default_rng(11)
    base = rng.standard_normal((100, 7)).astype("f4")
    rows = np.concatenate([base, base, np.nextafter(base, np.float32(9)), -base])
    case = Case(
        {f"q{n}": rng.standard_normal(7).astype("f4") for n in range(40)}, {f"c{n}": r for n, r in enumerate(rows)}, {}
    )
    for query in case.queries:
        first = rng.permutation(100)[:3]
        pool = [f"c{n}" for start in first for n in (start, start + 100, start + 200)][:8]
        case.pools[query] = [str(name) for name in rng.permutation(pool)]
        case.qrels[query] = dict.fromkeys(rng.permutation(pool)[:2], 1)
    score(case.request(tmp_path, "hit@1", per_query=tmp_path / "each.parquet"))
    ties = 0
    for row in pq.read_table(tmp_path / "each.parquet").to_pylist():
        query, pool = (
            case.queries[row["query_id"]],
            {name: case.candidates[name] for name in case.pools[row["query_id"]]},
        )
        for place, name in enumerate(row["relevant_ids"]):
            assert (row["greater"][place], row["tied"][place]) == ranked_by_hand(query, pool, name)
            ties += row["tied"][place]
    assert ties


def test_per_query_file(tmp_path: Path) -> None:
    case = Case(
        {"q": [1, 0]},
        {"a": [1, 0], "b": [0, 1], "c": [1, 1], "d": [-1, 0]},
        {"q": {"c": 2, "b": 1, "nowhere": 3}},
        exclude={"q": ["d"]},
    )
    scored = score(case.request(tmp_path, "hit@1,recall@2", per_query=tmp_path / "deep" / "each.parquet", top_k=2))
    (row,) = pq.read_table(tmp_path / "deep" / "each.parquet").to_pylist()
    assert list(row) == [*RANK_COLUMNS, "hit@1", "recall@2"]
    assert row["positive_scores"][:2] == pytest.approx([math.sqrt(0.5), 0])
    assert math.isnan(row["positive_scores"][2])
    assert row["top_scores"] == pytest.approx([1, math.sqrt(0.5)])
    del row["positive_scores"], row["top_scores"]
    assert row == {
        "query_id": "q",
        "cluster": None,
        "pool_size": 3,
        "n_relevant": 3,
        "relevant_ids": ["c", "b", "nowhere"],
        "grades": [2.0, 1.0, 3.0],
        "greater": [1, 2, -1],
        "tied": [0, 0, 0],
        "top_ids": ["a", "c"],
        "hit@1": 0.0,
        "recall@2": pytest.approx(1 / 3),
    }
    assert scored.relevant_outside_pool == 1


def test_json_is_as_written_down(tmp_path: Path, command: Callable) -> None:
    case = Case(
        {"q": [1, 0], "r": [0, 1]}, {"a": [1, 0], "b": [1, 0], "c": [0, 1]}, {"q": {"a": 1}, "r": {"c": 1, "x": 1}}
    )
    result = command("score", *case.write(tmp_path), "--measures", "hit@1,recall@5", "--json")
    assert result.code == 0
    assert result.err == ""
    assert result.json == {
        "measures": {
            "hit@1": {"value": 0.75, "best": 1.0, "worst": 0.5},
            "recall@5": {"value": 0.75, "best": 0.75, "worst": 0.75},
        },
        "queries": 2,
        "candidates": 3,
        "tied_queries": 1,
        "relevant_outside_pool": 1,
        "unjudged_queries": 0,
    }
    assert list(result.json) == [
        "measures",
        "queries",
        "candidates",
        "tied_queries",
        "relevant_outside_pool",
        "unjudged_queries",
    ]
    text = command("score", *case.write(tmp_path), "--measures", "hit@1,recall@5").out
    assert "hit@1     75.00  (ties: 50.00 to 100.00)" in text
    assert "1 relevant candidates lie outside the pool" in text


def test_ids_are_row_numbers_unless_given(tmp_path: Path, command: Callable) -> None:
    np.save(tmp_path / "q.npy", np.eye(3, dtype="f4"))
    np.save(tmp_path / "c.npy", np.eye(3, dtype="f4")[::-1])
    (tmp_path / "qrels").write_text("0 0 2 1\n1 0 1 1\n2 0 1 1\n")
    result = command(
        "score", tmp_path / "q.npy", tmp_path / "c.npy", tmp_path / "qrels", "--json", "--measures", "hit@1"
    )
    assert result.json["measures"]["hit@1"]["value"] == pytest.approx(2 / 3)


def test_dot_product(tmp_path: Path, command: Callable) -> None:
    case = Case({"q": [1, 0]}, {"near": [1, 0], "long": [3, 4]}, {"q": {"near": 1}})
    arguments = [*case.write(tmp_path), "--json", "--measures", "hit@1", "--similarity"]
    assert command("score", *arguments, "cosine").json["measures"]["hit@1"]["value"] == 1
    assert command("score", *arguments, "dot").json["measures"]["hit@1"]["value"] == 0


@pytest.mark.parametrize(
    "text",
    [
        "q 1\t0\td 1\t1\n",
        "query-id\tcorpus-id\tscore\nq 1\td 1\t1\n",
        "\ufeffquery-id\tcorpus-id\tscore\r\nq 1\td 1\t1\r\n\r\n",
        "Query-ID\tCorpus-ID\tScore\n\nq 1\td 1\t1.0",
    ],
)
def test_ids_with_spaces_are_for_tabs_only(text: str, tmp_path: Path, command: Callable, refused: Callable) -> None:
    case = Case({"q 1": [1, 0]}, {"d 1": [1, 0], "d 2": [0, 1]}, {"q 1": {"d 1": 1}})
    arguments = case.write(tmp_path)
    (tmp_path / "qrels.tsv").write_bytes(text.encode())
    result = command("score", *arguments, "--json", "--measures", "hit@1")
    if "query-id" in text.lower():
        assert result.json["measures"]["hit@1"]["value"] == 1
    else:
        refused(result, "qrels.tsv", "line 1")


def test_three_kinds_of_judgments_are_one(tmp_path: Path, command: Callable) -> None:
    case = generated(3, queries=20)
    for table in (case.queries, case.candidates):
        for name in list(table):
            table[name.replace(" ", "-")] = table.pop(name)
    dashed = {q: {c.replace(" ", "-"): g for c, g in row.items()} for q, row in case.qrels.items()}
    case = Case(case.queries, case.candidates, dashed)
    outputs = []
    rows = [(q, c, g) for q, row in dashed.items() for c, g in row.items()]
    for text in (
        None,
        "".join(f"{q} 0 {c} {g}\n" for q, c, g in rows),
        "".join(f"{q}\tQ0\t{c}\t{g}\n\n" for q, c, g in rows),
        "".join(f"{q} 0 {c} {g} 3\n" for q, c, g in rows),
    ):
        arguments = case.write(tmp_path)
        if text is not None:
            (tmp_path / "qrels.tsv").write_text(text)
        outputs.append(command("score", *arguments, "--json").json)
    assert outputs[0]["queries"] == 20
    assert all(output == outputs[0] for output in outputs)


def test_hit_and_recall_are_two_things(tmp_path: Path) -> None:
    """Labels that cover every candidate, ranked worst first: hit@1 is 1, recall@1 is one over their number."""
    candidates = {f"c{row}": [1.0, float(row)] for row in range(4)}
    case = Case({"q": [1.0, 0.5]}, candidates, {"q": dict.fromkeys(candidates, 1)})
    scored = score(case.request(tmp_path, "hit@1,recall@1"))
    assert scored.measures["hit@1"].value == 1
    assert scored.measures["recall@1"].value == 0.25


def test_a_label_among_all_labels_is_not_a_hit(tmp_path: Path) -> None:
    """Comparing each query's top k, (N, k), with the labels of all queries, (N,), finds a hit for every one of them."""
    vectors = np.eye(4)
    case = Case(
        {f"q{row}": vectors[row] for row in range(4)},
        {f"c{row}": vectors[row] for row in range(4)},
        {f"q{row}": {f"c{(row + 1) % 4}": 1} for row in range(4)},
    )
    top, labels = np.arange(4)[:, None], np.array([1, 2, 3, 0])
    assert np.mean([np.any(row == labels) for row in top]) == 1.0  # what the comparison of the two shapes gives
    assert score(case.request(tmp_path, "hit@1")).measures["hit@1"].value == 0.0


TIED_RUNS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(["9", "10", "100", "a", "B", "é", "Z9"]), st.integers(0, 2), min_size=1),
        st.dictionaries(st.sampled_from(["9", "10", "100", "a", "é", "missing"]), st.integers(0, 3), min_size=1),
    ),
    min_size=1,
    max_size=3,
)
TREC_NAMES = {
    "hit@1": "success_1",
    "hit@5": "success_5",
    "recall@5": "recall_5",
    "precision@5": "P_5",
    "ndcg@5": "ndcg_cut_5",
    "ndcg@10": "ndcg_cut_10",
    "mrr": "recip_rank",
    "map": "map",
}


@settings(max_examples=150, deadline=None)
@given(rows=TIED_RUNS)
def test_docno_is_the_tie_break_of_trec_eval(
    rows: list[tuple[dict[str, int], dict[str, int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = {f"q{n}": {doc: float(value) for doc, value in scores.items()} for n, (scores, _) in enumerate(rows)}
    qrels = {f"q{n}": grades if any(grades.values()) else {"9": 1} for n, (_, grades) in enumerate(rows)}
    folder = tmp_path_factory.mktemp("trec")
    (folder / "run").write_text(
        "".join(f"{q} Q0 {doc} 1 {value} tag\n" for q, scores in run.items() for doc, value in scores.items())
    )
    (folder / "qrels").write_text("".join(f"{q} 0 {doc} {g}\n" for q, row in qrels.items() for doc, g in row.items()))
    scored = score(
        Request(
            qrels=folder / "qrels",
            run_file=folder / "run",
            measures=",".join(TREC_NAMES),
            tie_break="docno",
            per_query=folder / "each.parquet",
        )
    )
    judged = pytrec_eval.RelevanceEvaluator(qrels, pytrec_eval.supported_measures).evaluate(run)
    each = pq.read_table(folder / "each.parquet").to_pydict()
    for ours, theirs in TREC_NAMES.items():
        values = [judged[query][theirs] for query in each["query_id"]]
        assert each[ours] == pytest.approx(values, abs=EXACT), ours
        assert scored.measures[ours].value == pytest.approx(statistics.fmean(values), abs=EXACT)


@settings(max_examples=60, deadline=None)
@given(rows=TIED_RUNS, tie_break=st.sampled_from(["expected", "index", "best", "worst"]))
def test_ties_of_a_run_file(
    rows: list[tuple[dict[str, int], dict[str, int]]], tie_break: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    qrels = {f"q{n}": {d: g for d, g in grades.items() if g} or {"9": 1} for n, (_, grades) in enumerate(rows)}
    (folder / "run").write_text(
        "".join(f"q{n} Q0 {doc} 1 {value} tag\n" for n, (scores, _) in enumerate(rows) for doc, value in scores.items())
    )
    (folder / "qrels").write_text("".join(f"{q} 0 {doc} {g}\n" for q, row in qrels.items() for doc, g in row.items()))
    measures = "hit@1,recall@2,ndcg@3,mrr,map"
    scored = score(Request(qrels=folder / "qrels", run_file=folder / "run", measures=measures, tie_break=tie_break))
    for name in measures.split(","):
        values = []
        for n, (scores, _) in enumerate(rows):
            orders = orders_of_ties({doc: Fraction(value) for doc, value in scores.items()})
            if tie_break == "index":
                orders = [sorted(scores, key=lambda doc: -scores[doc])]
            of_orders = [by_definition(name, order, qrels[f"q{n}"]) for order in orders]
            pick = {"best": max, "worst": min}.get(tie_break, statistics.fmean)
            values.append(pick(of_orders))
        assert scored.measures[name].value == pytest.approx(statistics.fmean(values), abs=EXACT), name


def test_run_file_against_ir_measures(tmp_path: Path, command: Callable) -> None:
    rng = np.random.default_rng(5)
    run, qrels = {}, {}
    for n in range(300):
        listed = [f"d{row}" for row in rng.permutation(60)[:20]]
        values = rng.permutation(1000)[:20]
        run[f"q{n}"] = {doc: float(value) for doc, value in zip(listed, values, strict=True)}
        qrels[f"q{n}"] = {f"d{row}": int(rng.integers(1, 4)) for row in rng.permutation(60)[: rng.integers(1, 8)]}
    qrels["silent"] = {"d1": 1}
    (tmp_path / "run.trec").write_text(
        "".join(f"{q} Q0 {doc} 0 {value} me\n" for q, row in run.items() for doc, value in row.items())
    )
    (tmp_path / "qrels").write_text("".join(f"{q} 0 {d} {g}\n" for q, row in qrels.items() for d, g in row.items()))
    names = {"hit@5": "Success@5", "recall@10": "R@10", "ndcg@10": "nDCG@10", "mrr": "RR", "map": "AP"}
    result = command(
        "score", tmp_path / "qrels", "--run-file", tmp_path / "run.trec", "--measures", ",".join(names), "--json"
    )
    judged = ir_measures.calc_aggregate([ir_measures.parse_measure(name) for name in names.values()], qrels, run)
    by_name = {str(measure): value for measure, value in judged.items()}
    for ours, theirs in names.items():
        # ir-measures, too, gives a judged query without a list 0
        assert result.json["measures"][ours]["value"] == pytest.approx(by_name[theirs], abs=EXACT)
    assert result.json["queries"] == 301


def test_measures_are_named_once_in_their_order(tmp_path: Path, command: Callable) -> None:
    case = Case({"q": [1, 0]}, {"a": [1, 0]}, {"q": {"a": 1}})
    result = command("score", *case.write(tmp_path), "--json", "--measures", "MRR, hit@2,hit@1,mrr")
    assert list(result.json["measures"]) == ["mrr", "hit@2", "hit@1"]


def test_unjudged_queries_are_dropped_on_demand_only(tmp_path: Path, command: Callable, refused: Callable) -> None:
    case = Case(
        {"q": [1, 0], "r": [0, 1], "s": [1, 1]},
        {"a": [1, 0], "b": [0, 1]},
        {"q": {"a": 1}, "r": {"a": 0}, "other split": {"a": 1}},
    )
    arguments = case.write(tmp_path)
    refused(command("score", *arguments), "other split", "qrels.tsv")
    result = command("score", *arguments, "--unjudged", "drop", "--json", "--measures", "hit@1")
    assert result.json["queries"] == 1
    assert result.json["measures"]["hit@1"]["value"] == 1


def test_a_grade_beyond_any_scale_is_refused(tmp_path: Path, command: Callable, refused: Callable) -> None:
    """Sums of gains would overflow; the line is named."""
    case = Case({"q": [1, 0]}, {"a": [1, 0], "b": [0, 1]}, {"q": {"a": 1}})
    arguments = case.write(tmp_path)
    qrels = Path(arguments[2])
    qrels.write_text(qrels.read_text().replace("1\n", "1.7e308\n"))
    refused(command("score", *arguments, "--measures", "ndcg@5"), qrels, "line ", "1.7e308")


def test_exponential_gains_refuse_large_grades_before_any_work(
    tmp_path: Path, command: Callable, refused: Callable, own_data: Callable, no_leftovers: Callable
) -> None:
    """In `score` and in `run`, with query and candidate named and nothing written."""
    case = Case({"q": [1, 0]}, {"a": [1, 0], "b": [0, 1]}, {"q": {"a": 1500}})
    refused(command("score", *case.write(tmp_path), "--measures", "ndcg_exp@5"), "query q", "candidate a", "1500")
    folder = own_data(
        tmp_path / "mine", qrels=[("q1", "c1", 2000), ("q2", "c2", 1)], toml='name = "mine"\nmeasure = "ndcg_exp@5"\n'
    )
    refused(
        command("run", folder, "--model", "random:8", "--out", tmp_path / "runs"), "query q1", "candidate c1", "2000"
    )
    assert not list((tmp_path / "runs").glob("mine/*"))


def test_norms_beyond_float64_s_reach_are_refused(tmp_path: Path, command: Callable, refused: Callable) -> None:
    """Their products would overflow; the file is named."""
    case = Case({"q": [1, 0]}, {"a": [1, 0], "b": [0, 1]}, {"q": {"a": 1}})
    arguments = case.write(tmp_path)
    np.save(arguments[1], np.load(arguments[1]).astype(np.float64) * 1e200)
    refused(command("score", *arguments), arguments[1], "row 0")


@pytest.mark.parametrize(("tie_break", "expected"), [("docno", ["d", "c", "b", "a"]), ("index", ["a", "b", "c", "d"])])
def test_the_list_stands_in_the_order_of_the_measures(tmp_path: Path, tie_break: str, expected: list[str]) -> None:
    """All candidates tie; what is listed first is what hit@1 counts as first."""
    case = Case({"q": [1, 0]}, {name: [1, 0] for name in "abcd"}, {"q": {"d": 1}})
    out = tmp_path / "each.parquet"
    scored = score(case.request(tmp_path, "hit@1", per_query=out, tie_break=tie_break))
    (row,) = pq.read_table(out).to_pylist()
    assert row["top_ids"] == expected
    assert scored.measures["hit@1"].value == float(expected[0] == "d")
