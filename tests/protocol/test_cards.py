"""Cards: what they say is kept with how sure it is, and mistakes are named by file, task and key."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from omnirecall.errors import UserError
from omnirecall.protocol.cards import read_card, shipped_card, shipped_cards
from omnirecall.protocol.measures import Measure
from omnirecall.protocol.suites import Fact, MediaPolicy

CARD = """
[suite]
name = "small"
title = "A small suite"
licence = "MIT"

[defaults]
measure = "hit@1"
measures = ["mrr", "ndcg@10"]

[[task]]
name = "one"
measure = {value = "recall@5", certainty = "stated", source = "Table 3"}
instruction = {value = "Find it.", certainty = "code", source = "eval.py"}
query_count = {value = 100, certainty = "derived"}
candidate_count = {certainty = "unknown", source = "nobody says"}

[[task]]
name = "two"
similarity = "dot"
media = {frames = 4, rule = "linspace_floor", shortage = "keep"}
data = {queries = "q.jsonl"}

[[mean]]
name = "all"
of = {value = ["one", "two"], certainty = "peer", source = "a leaderboard"}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "card.toml"
    path.write_text(text)
    return path


def test_a_card(tmp_path: Path) -> None:
    path = written(tmp_path, CARD)
    suite = read_card(path)
    assert (suite.name, suite.title, suite.licence, suite.root) == ("small", "A small suite", "MIT", None)
    assert suite.revision == hashlib.sha256(path.read_bytes()).hexdigest()
    one, two = suite.tasks
    assert (one.measure, two.measure) == (Measure("recall", 5), Measure("hit", 1))
    assert one.measures == two.measures == (Measure("mrr"), Measure("ndcg", 10))
    assert (one.instruction, one.query_count, one.candidate_count) == ("Find it.", 100, None)
    assert (two.similarity, two.media) == ("dot", MediaPolicy(frames=4, rule="linspace_floor", shortage="keep"))
    assert dict(two.data) == {"queries": "q.jsonl"}
    assert suite.means[0].of == ("one", "two")


def test_facts_keep_certainty_and_source(tmp_path: Path) -> None:
    suite = read_card(written(tmp_path, CARD))
    assert dict(suite.task("one").facts) == {
        "measure": Fact("stated", "Table 3"),
        "instruction": Fact("code", "eval.py"),
        "query_count": Fact("derived", ""),
        "candidate_count": Fact("unknown", "nobody says"),
    }
    assert dict(suite.task("two").facts) == {}
    assert ("all", "of", Fact("peer", "a leaderboard")) in list(suite.facts())


@pytest.mark.parametrize("certainty", ["stated", "code", "derived", "peer", "assumed", "unknown"])
def test_every_certainty(certainty: str, tmp_path: Path) -> None:
    suite = read_card(written(tmp_path, CARD.replace('"derived"', f'"{certainty}"')))
    assert suite.task("one").facts["query_count"].certainty == certainty


MISTAKES = [
    ('"derived"', '"certain"', ["one", "query_count", "certain", "assumed"]),
    ('source = "eval.py"', 'page = "3"', ["one", "instruction", "page"]),
    ('"recall@5"', '"recall"', ["one", "recall", "recall@k"]),
    ('["mrr", "ndcg@10"]', '["mrr", "ndcg@ten"]', ["ndcg@ten"]),
    ('["mrr", "ndcg@10"]', "3", ["one", "measures"]),
    ("value = 100", 'value = "many"', ["one", "query_count"]),
    ('similarity = "dot"', 'similarity = "l2"', ["two", "similarity", "l2"]),
    ('similarity = "dot"', 'similarty = "dot"', ["two", "similarty", "similarity"]),
    ('rule = "linspace_floor"', 'rule = "random"', ["two", "rule", "random"]),
    ("frames = 4", "frmes = 4", ["two", "frmes"]),
    ('measure = "hit@1"\n', "", ["two", "measure"]),
    ('name = "two"', "", ["task", "name"]),
    ('name = "two"', 'name = "one"', ["one", "2 times"]),
    ('name = "two"', 'name = "all"', ["all", "2 times"]),
    ('name = "two"', 'name = "a/b"', ["a/b"]),
    ('name = "two"', 'name = "a\\u0000b"', ["name"]),
    ('name = "two"', 'name = "."', ["'.'"]),
    ('["one", "two"]', '["one", "tow"]', ["all", "tow", "did you mean two?"]),
    ('["one", "two"]', "[]", ["all", "of"]),
    ('["one", "two"]', '["one", "all"]', ["all > all"]),
    ("[[mean]]", "[mean]", ["[[mean]]"]),
    ("[[mean]]", "[[means]]", ["means"]),
    ('title = "A small suite"', 'titel = "x"', ["[suite]", "titel", "title"]),
    ('name = "small"', "", ["[suite]", "name"]),
    ('licence = "MIT"', "licence = MIT", ["line 5"]),
    ('licence = "MIT"', 'licence = "MIT"\nlicence = "MIT"', ["line 6"]),
]


@pytest.mark.parametrize(("before", "after", "says"), MISTAKES)
def test_mistakes_name_file_task_and_key(before: str, after: str, says: list[str], tmp_path: Path) -> None:
    assert before in CARD
    path = written(tmp_path, CARD.replace(before, after))
    with pytest.raises(UserError) as refusal:
        read_card(path)
    assert str(refusal.value).startswith(f"{path}: ")
    for part in says:
        assert part in str(refusal.value)


def test_longer_circles_are_found(tmp_path: Path) -> None:
    means = "".join(f'[[mean]]\nname = "m{n}"\nof = ["one", "m{(n + 1) % 4}"]\n' for n in range(4))
    with pytest.raises(UserError, match="m0 > m1 > m2 > m3 > m0"):
        read_card(written(tmp_path, CARD + means))


def test_other_bytes_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "card.toml").write_bytes(b'[suite]\nname = "\xff"\n')
    with pytest.raises(UserError, match=r"card\.toml: not valid TOML"):
        read_card(tmp_path / "card.toml")
    with pytest.raises(UserError, match=r"none\.toml: no such file"):
        read_card(tmp_path / "none.toml")


@pytest.mark.parametrize("name", shipped_cards())
def test_shipped_cards_are_sound(name: str) -> None:
    suite = read_card(shipped_card(name))
    assert suite.name == name
    assert suite.tasks
    tasks = set(suite.task_names())
    for mean in suite.means:
        assert set(mean.of) <= tasks | {other.name for other in suite.means}


def test_the_starter_suite_states_its_sizes_and_directions() -> None:
    assert "starter" in shipped_cards()
    suite = read_card(shipped_card("starter"))
    for task in suite.tasks:
        assert task.direction, task.name
        assert task.instruction, task.name
        assert task.query_count, task.name


def test_a_name_near_a_suite() -> None:
    with pytest.raises(UserError, match=r"no suite and no folder named startr: did you mean starter\?"):
        shipped_card("startr")
    with pytest.raises(UserError, match=r"there are .*starter"):
        shipped_card("zzz")
