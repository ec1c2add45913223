"""What the pages say of queries, beside the files themselves."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from omnirecall.evaluation import evaluate
from omnirecall.protocol.measures import Measure
from omnirecall.results.record import read_run
from omnirecall.results.stored import open_run, with_intervals
from omnirecall.view.pages import Pages
from omnirecall.view.ranks import first_relevant, matched, read_ranks, read_rows, score_samples
from omnirecall.view.summary import curves, rank_bins, rank_histogram, tie_numbers

CUT = 10


class Ids(HTMLParser):
    """The headings of a list's entries."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "input", "img", "br", "wbr"):
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.stack:
            while self.stack.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if "bdi" in self.stack and "h2" in self.stack and "article" in self.stack:
            self.found.append(data)


def listed(page: str) -> list[str]:
    """The ids of the queries on a page."""
    parser = Ids()
    parser.feed(page)
    return parser.found


@pytest.fixture(scope="module")
def hand(tmp_path_factory: pytest.TempPathFactory, own_data: Callable[..., Path]) -> Path:
    """25 queries and 30 candidates, ranked by two models; the folder of runs."""
    tmp = tmp_path_factory.mktemp("hand")
    data = own_data(
        tmp / "data",
        queries=[
            {"id": f"q{i:02}", "text": f"words {'amber' if i % 5 == 0 else 'stone'} Straße {i}"} for i in range(25)
        ],
        candidates=[{"id": f"c{i:02}", "text": f"answer {i}"} for i in range(30)],
        qrels=[(f"q{i:02}", f"c{i:02}", 1) for i in range(25)] + [("q03", "c29", 1)],
        toml='name = "mine"\nmeasure = "hit@10"\n',
    )
    for model in ("random:8", "random:4", "constant:4"):
        evaluate(model, data, out=tmp / "runs")
    return tmp / "runs"


def of_model(runs: Path, model: str) -> Path:
    """The folder of a model's run."""
    return next(path.parent for path in runs.rglob("run.json") if read_run(path.parent).model.name == model)


def first_ranks(run: Path, task: str = "mine") -> dict[str, int]:
    """Query to the rank of its first relevant candidate, straight from the file, for runs without ties."""
    rows = pq.read_table(run / "tasks" / f"{task}.parquet").to_pylist()
    return {row["query_id"]: min(row["greater"]) + 1 for row in rows}


def test_every_query_is_listed_once_by_loss(
    hand: Path, pages_of: Callable[..., Pages], fetched: Callable[..., str]
) -> None:
    run = of_model(hand, "random:8")
    ranks = first_ranks(run)
    pages = pages_of(hand)
    found = [name for page in (1, 2, 3) for name in listed(fetched(pages, f"r/{run.name}/t/mine/all/{page}/"))]
    assert sorted(found) == sorted(ranks)
    missed = [name for name in found if ranks[name] > CUT]
    assert found[: len(missed)] == missed
    assert [ranks[name] for name in missed] == sorted((ranks[name] for name in missed), reverse=True)


@pytest.mark.parametrize("show", ["missed", "hit"])
def test_missed_and_hit(show: str, hand: Path, pages_of: Callable[..., Pages], fetched: Callable[..., str]) -> None:
    run = of_model(hand, "random:8")
    meant = {name for name, rank in first_ranks(run).items() if (rank > CUT) == (show == "missed")}
    assert 0 < len(meant) < 25
    pages = pages_of(hand)
    found = [name for page in (1, 2, 3) for name in listed(fetched(pages, f"r/{run.name}/t/mine/{show}/{page}/"))]
    assert meant <= set(found)
    text = fetched(pages, f"r/{run.name}/t/mine/{show}/")
    assert f"{len(meant)} of 25 queries" in text


def test_differs_better_worse(hand: Path, pages_of: Callable[..., Pages], fetched: Callable[..., str]) -> None:
    one, two = of_model(hand, "random:8"), of_model(hand, "random:4")
    a, b = first_ranks(one), first_ranks(two)
    better = {name for name in a if a[name] <= CUT < b[name]}
    worse = {name for name in a if b[name] <= CUT < a[name]}
    assert better
    assert worse
    pages = pages_of(hand)
    base = f"r/{one.name}/t/mine/vs/{two.name}"
    for show, meant in (("better", better), ("worse", worse), ("differs", better | worse)):
        text = fetched(pages, f"{base}/{show}/")
        assert f"{len(meant)} of 25 queries" in text
        assert set(listed(text)) <= meant
    assert f"better on {len(better)}, worse on {len(worse)}" in fetched(pages, f"{base}/")
    assert pages.answer(f"r/{one.name}/t/mine/differs/").status == 404


def test_ties(hand: Path, pages_of: Callable[..., Pages], fetched: Callable[..., str]) -> None:
    run = of_model(hand, "constant:4")
    pages = pages_of(hand)
    assert "25 of 25 queries" in fetched(pages, f"r/{run.name}/t/mine/ties/")
    assert "0 of 25 queries" in fetched(pages, f"r/{run.name}/t/mine/hit/")
    text = fetched(pages, f"r/{run.name}/t/mine/n/0/")
    assert "<strong>1\u201330</strong> of 30" in text
    assert '<span class="badge">tie</span>' in text
    ranks = re.findall(r'<span class="rank"[^>]*>(\S+?)</span>', text.split("Answer of random")[0])
    assert ranks
    assert set(ranks) == {"1+", "1\u201330"}
    assert "25 of 25 queries have a tie" in fetched(pages, "s/mine/t/mine/")


def test_search_and_order(hand: Path, pages_of: Callable[..., Pages], fetched: Callable[..., str]) -> None:
    run = of_model(hand, "random:8")
    pages = pages_of(hand, static=False)
    path = f"r/{run.name}/t/mine/"
    pages.site.jobs.wait(pages.site.index_name(pages.site.runs()[run.name], "mine"), 30)
    assert listed(fetched(pages, path, q="AMBER", sort="id")) == ["q00", "q05", "q10", "q15", "q20"]
    assert listed(fetched(pages, path, q="strasse 7", sort="id")) == ["q07"]
    assert listed(fetched(pages, path, q="q11")) == ["q11"]
    assert listed(fetched(pages, path, q="100%_'; drop table item")) == []
    assert listed(fetched(pages, path, sort="order"))[:3] == ["q00", "q01", "q02"]
    assert listed(fetched(pages, path, sort="id", page="3")) == ["q20", "q21", "q22", "q23", "q24"]
    gains = listed(fetched(pages, path, sort="gain"))
    ranks = first_ranks(run)
    assert [ranks[name] for name in gains] == sorted(ranks.values())[:10]
    for page, same in (("9" * 30, "3"), ("0", "1"), ("-1", "1"), ("x", "1"), ("", "1"), ("²", "1")):
        assert listed(fetched(pages, path, sort="id", page=page)) == listed(fetched(pages, path, sort="id", page=same))


def test_one_query(hand: Path, pages_of: Callable[..., Pages], fetched: Callable[..., str]) -> None:
    run = of_model(hand, "random:8")
    rows = pq.read_table(run / "tasks" / "mine.parquet").to_pylist()
    text = fetched(pages_of(hand, static=False), f"r/{run.name}/t/mine/n/3/")
    row = rows[3]
    shown = re.findall(
        r'<span class="rank">(\S+?)</span>.*?title="score">(\S*?)</span>.*?<p class="id"><bdi>(.*?)</bdi>', text, re.S
    )
    assert [(name, float(score)) for _, score, name in shown[:10]] == [
        (name, round(score, 4)) for name, score in zip(row["top_ids"], row["top_scores"], strict=True)
    ]
    assert [rank for rank, _, _ in shown[:10]] == [str(place) for place in range(1, 11)]
    places = sorted((greater + 1, name) for name, greater in zip(row["relevant_ids"], row["greater"], strict=True))
    assert [(int(rank), name) for rank, _, name in shown[10:]] == places
    assert text.count('class="ranked relevant') == 2 + len(set(row["top_ids"]) & set(row["relevant_ids"]))


def test_two_runs_side_by_side(hand: Path, pages_of: Callable[..., Pages], fetched: Callable[..., str]) -> None:
    one, two = of_model(hand, "random:8"), of_model(hand, "random:4")
    text = fetched(pages_of(hand, static=False), f"r/{one.name}/t/mine/n/3/vs/{two.name}/")
    assert "Answer of random:8" in text
    assert "Answer of random:4" in text


def test_numbers_of_queries_and_addresses_that_are_not_there(hand: Path, pages_of: Callable[..., Pages]) -> None:
    pages = pages_of(hand)
    run = of_model(hand, "random:8").name
    for path in (
        f"r/{run}/t/mine/n/25/",
        f"r/{run}/t/mine/n/99999999999/",
        f"r/{run}/t/other/",
        "r/other/",
        "s/other/",
        f"r/{run}/t/mine/vs/other/",
        "x",
        f"r/{run}/t/mine/somehow/",
        "r//",
        "m/00/00",
        "../etc/passwd",
    ):
        page = pages.answer(path)
        assert page.status == 404, path
        assert page.body


# --- what charts are drawn from


def test_matched_rows(hand: Path) -> None:
    ranks = read_ranks(of_model(hand, "random:8") / "tasks" / "mine.parquet", Measure("hit", 5))
    other = read_ranks(of_model(hand, "random:4") / "tasks" / "mine.parquet", Measure("hit", 5))
    shuffled = type(other)(**{**{name: getattr(other, name) for name in other.__slots__}, "ids": other.ids[:0:-1]})
    assert matched(ranks, shuffled).tolist() == [-1, *range(23, -1, -1)]


def test_rows_by_row_groups(hand: Path, tmp_path: Path) -> None:
    path = of_model(hand, "random:8") / "tasks" / "mine.parquet"
    pq.write_table(pq.read_table(path), tmp_path / "groups.parquet", row_group_size=4)
    whole, parts = (read_ranks(one, Measure("hit", 5)) for one in (path, tmp_path / "groups.parquet"))
    asked = [24, 0, 3, 4, 3]
    assert read_rows(parts, asked) == read_rows(whole, asked)
    assert [row.row for row in read_rows(parts, asked)] == asked
    assert first_relevant(parts) == first_relevant(whole)
    for one, other in zip(score_samples(parts), score_samples(whole), strict=True):
        assert sorted(one) == sorted(other)


def test_summaries_are_those_of_the_file(hand: Path) -> None:
    path = of_model(hand, "random:8") / "tasks" / "mine.parquet"
    rows = pq.read_table(path).to_pylist()
    ranks = read_ranks(path, Measure("hit", 5))
    firsts = np.array([min(row["greater"]) + 1 for row in rows])
    assert {one["bin"]: one["queries"] for one in rank_histogram(ranks)} == {
        "1": int((firsts == 1).sum()),
        "2": int((firsts == 2).sum()),
        "3\u20135": int(((firsts >= 3) & (firsts <= 5)).sum()),
        "6\u201310": int(((firsts >= 6) & (firsts <= 10)).sum()),
        "11\u201320": int(((firsts >= 11) & (firsts <= 20)).sum()),
        "21\u201330": int((firsts >= 21).sum()),
    }
    for point in curves(ranks):
        reached = [sum(greater < point["k"] for greater in row["greater"]) / len(row["greater"]) for row in rows]
        assert point["recall"] == pytest.approx(np.mean(reached))
        assert point["hit"] == pytest.approx(np.mean(firsts <= point["k"]))
    relevant, others = score_samples(ranks)
    assert sorted(relevant) == sorted(score for row in rows for score in row["positive_scores"])
    assert sorted(others) == sorted(
        score
        for row in rows
        for name, score in zip(row["top_ids"], row["top_scores"], strict=True)
        if name not in row["relevant_ids"]
    )
    assert [
        name
        for row, name in zip(rows, first_relevant(ranks), strict=True)
        if row["relevant_ids"][int(np.argmin(row["greater"]))] != name
    ] == []
    assert tie_numbers(ranks)["queries"] == 0


def test_recall_of_tied_runs_is_their_expectation(starter_runs: Path) -> None:
    from omnirecall.protocol.measures import score_queries

    tied = of_model(starter_runs, "constant:8")
    for path in sorted((tied / "tasks").glob("*.parquet"))[:6]:
        ranks = read_ranks(path, Measure("hit", 1))
        for point in curves(ranks):
            assert point["recall"] == pytest.approx(
                score_queries(Measure("recall", point["k"]), ranks.judged).value.mean()
            )


def test_bins_cover_every_rank_once() -> None:
    for largest in (1, 2, 7, 10, 99, 100, 5001):
        covered = [rank for first, last in rank_bins(largest) for rank in range(first, last + 1)]
        assert covered == list(range(1, largest + 1))


def test_relevant_outside_the_pool(
    tmp_path: Path, own_data: Callable[..., Path], pages_of: Callable[..., Pages], fetched: Callable[..., str]
) -> None:
    data = own_data(tmp_path / "data", qrels=[("q1", "c1", 1), ("q2", "absent", 1)])
    run = Path(evaluate("random:8", data, out=tmp_path / "runs").folder)
    pages = pages_of(tmp_path / "runs")
    text = fetched(pages, f"r/{run.name}/t/mine/n/1/")
    assert "not ranked" in text
    assert "not in the pool" in text
    assert "not ranked" in fetched(pages, "s/mine/t/mine/")


def test_leaderboard_values_are_those_of_the_record(
    starter_runs: Path, pages_of: Callable[..., Pages], fetched: Callable[..., str]
) -> None:
    text = fetched(pages_of(starter_runs), "")
    for path in starter_runs.rglob("run.json"):
        record = json.loads(path.read_text())
        row = text.split(f'r/{path.parent.name}/">', 1)[1].split("</tr>", 1)[0]
        values = [float(one) for one in re.findall(r'data-value="([^"]+)"', row)]
        meant = [mean["value"] for mean in record["means"].values()] + [
            task["value"] for task in record["tasks"].values()
        ]
        assert sorted(values) == sorted(meant)


def test_intervals_with_and_without_a_record_of_them(
    starter_runs: Path, tmp_path: Path, pages_of: Callable[..., Pages], fetched: Callable[..., str]
) -> None:
    run = msgspec.json.decode((of_model(starter_runs, "random:16") / "run.json").read_bytes())
    for key in ("mean_intervals", "tree"):
        run.pop(key, None)
    for task in run["tasks"].values():
        for value in task["measures"].values():
            value.pop("interval", None)
    folder = Path(shutil.copytree(of_model(starter_runs, "random:16"), tmp_path / "runs" / "random_16-x"))
    (folder / "run.json").write_bytes(msgspec.json.encode(run))
    without = fetched(pages_of(folder), "")
    whole = with_intervals(open_run(folder))
    intervals = [
        *whole.mean_intervals.values(),
        *(task.measures[task.measure].interval for task in whole.tasks.values()),
    ]
    meant = sorted((round(100 * one[0], 2), round(100 * one[1], 2)) for one in intervals if one is not None)
    (folder / "run.json").write_bytes(msgspec.json.encode(whole))
    for text in (without, fetched(pages_of(folder), "")):
        found = re.findall(r'class="interval">([^<]+)<', text)
        assert len(meant) > 15
        assert sorted(tuple(map(float, one.split("\u2013"))) for one in found) == meant
