"""The tree of means: complete or not, never half."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirecall.protocol.measures import Measure
from omnirecall.protocol.suites import Fact, Mean, Suite, Task, mean_values

TREE = (
    Mean("all", ("left", "right", "c")),
    Mean("left", ("a", "b")),
    Mean("right", ("left", "d")),
)
VALUES = {"a": 0.1, "b": 0.4, "c": 0.9, "d": 0.0}


def test_means_are_of_means_unweighted() -> None:
    found = mean_values(TREE, VALUES)
    assert list(found) == ["all", "left", "right"]
    left = (0.1 + 0.4) / 2
    right = (left + 0.0) / 2
    assert found["left"].value == pytest.approx(left, abs=1e-15)
    assert found["right"].value == pytest.approx(right, abs=1e-15)
    assert found["all"].value == pytest.approx((left + right + 0.9) / 3, abs=1e-15)
    assert all(mean.complete and not mean.missing for mean in found.values())


def test_a_missing_task_empties_every_mean_above_it() -> None:
    found = mean_values(TREE, {"a": 0.1, "c": 0.9, "d": 0.5})
    for name in ("all", "left", "right"):
        assert (found[name].value, found[name].complete, found[name].missing) == (None, False, ("b",))
    found = mean_values(TREE, {"a": 0.1, "b": 0.4, "c": 0.9})
    assert found["left"].complete
    assert found["right"].missing == found["all"].missing == ("d",)
    assert mean_values(TREE, {})["all"].missing == ("a", "b", "d", "c")


@given(values=st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1), min_size=0))
def test_complete_means_have_a_value_and_others_name_what_they_lack(values: dict[str, float]) -> None:
    found = mean_values((Mean("m", ("a", "n")), Mean("n", ("b", "c"))), values)
    lacking = {name for name in "abc" if name not in values}
    assert set(found["m"].missing) == lacking
    assert found["m"].complete == (not lacking) == (found["m"].value is not None)
    if not lacking:
        inner = statistics.fmean([values["b"], values["c"]])
        assert found["m"].value == pytest.approx(statistics.fmean([values["a"], inner]), abs=1e-12)


def test_a_suite_knows_its_tasks_and_facts() -> None:
    hit = Measure("hit", 1)
    tasks = (
        Task(name="t", measure=hit, measures=(Measure("mrr"), hit), facts={"measure": Fact("stated", "Table 2")}),
        Task(name="u", measure=hit),
    )
    suite = Suite(name="s", tasks=tasks, means=(Mean("m", ("t",), facts={"of": Fact("assumed")}),))
    assert suite.task_names() == ["t", "u"]
    assert suite.task("u") is tasks[1]
    assert tasks[0].all_measures() == (hit, Measure("mrr"))
    assert list(suite.facts()) == [("t", "measure", Fact("stated", "Table 2")), ("m", "of", Fact("assumed"))]
    with pytest.raises(KeyError):
        suite.task("v")
