"""M-BEIR's layout: local pools and the union, UniIR's texts, five-column qrels, and a pool that stays on disk."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from miniatures import Meant, assert_meant, assert_ran, fresh, write

from omnirecall.errors import UserError
from omnirecall.protocol.items import Item, worded
from omnirecall.protocol.suites import Task
from omnirecall.sources.jsonl_items import JsonlItems
from omnirecall.sources.load import load_suite, read_task
from omnirecall.sources.mbeir import format_string

SUITE, UNION = load_suite("mbeir"), load_suite("mbeir-union")
QRELS = "M-BEIR/qrels/test/mbeir_cirr_task7_test_qrels.txt"
PROMPTS = "M-BEIR/instructions/query_instructions.tsv"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Meant]]:
    root = tmp_path_factory.mktemp("mbeir")
    return root, write(root, SUITE.tasks)


def test_every_task_is_what_the_writer_meant(made: tuple[Path, dict[str, Meant]]) -> None:
    root, meant = made
    assert len(meant) == 16
    for task in SUITE.tasks:
        data = read_task(root, task)
        assert_meant(data, meant[task.name], task.name)
        query, target = (
            frozenset({"I": {"image"}, "T": {"text"}}.get(side, {"image", "text"}))
            for side in task.direction.split("->")
        )
        assert {item.modalities for item in data.queries} == {query}
        assert {item.modalities for item in data.candidates} == {target}


def test_every_task_runs(made: tuple[Path, dict[str, Meant]], command: Callable, tmp_path: Path) -> None:
    for prompt in ("none", "card"):
        done = command(
            "run", "mbeir", "--data", made[0], "--model", "random:16", "--out", tmp_path, "--prompt", prompt, "--json"
        )
        assert done.code == 0, done.err
        assert_ran(done.json, made[1])
    outside = {
        name: task["relevant_outside_pool"]
        for name, task in done.json["tasks"].items()
        if task["relevant_outside_pool"]
    }
    assert outside == dict.fromkeys(("oven_task6", "oven_task8", "infoseek_task6", "infoseek_task8"), 1)


def test_in_the_union_no_positive_is_outside(command: Callable, tmp_path: Path) -> None:
    meant = write(tmp_path / "data", UNION.tasks)
    done = command(
        "run", "mbeir-union", "--data", tmp_path / "data", "--model", "random:16", "--out", tmp_path / "runs", "--json"
    )
    assert_ran(done.json, meant)
    assert {task["pool"] for task in done.json["tasks"].values()} == {64}
    assert not any(task["relevant_outside_pool"] for task in done.json["tasks"].values())
    one, other = (read_task(tmp_path / "data", task) for task in UNION.tasks[:2])
    assert one.candidates is other.candidates  # read once for all tasks


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (None, ""),
        ("", ""),
        ('  "a dog"\r\n', "A dog."),
        ("Who?", "Who?"),
        ("stop!", "Stop!"),
        ('"quoted" word', 'Quoted" word.'),
        ("ünder", "Ünder."),
        ('" "', " ."),
    ],
)
def test_texts_are_cleaned_as_uniir_does(raw: str | None, expected: str) -> None:
    assert format_string(raw) == expected


def test_prompts_and_texts(made: tuple[Path, dict[str, Meant]]) -> None:
    data = read_task(made[0], SUITE.task("cirr_task7"))
    query, candidate = data.queries[0], data.candidates[0]
    assert (query.text, query.instruction) == ("Query 0 of cirr_task7?", "Represent cirr_task7.")
    assert worded(query, {}).text == "Represent cirr_task7. query 0 of cirr_task7?"
    assert (candidate.text, candidate.instruction) == (None, "")
    shown = read_task(made[0], SUITE.task("nights_task4")).queries[0]
    assert (shown.text, worded(shown, {}).text) == (None, "Represent nights_task4.")
    assert worded(shown, {}).modalities == {"image", "text"}
    text = read_task(made[0], SUITE.task("webqa_task1")).candidates[1]
    assert (text.text, worded(text, {}).text) == ("Candidate 1 of webqa_task1.",) * 2


def test_another_prompt(made: tuple[Path, dict[str, Meant]]) -> None:
    def asked(prompt: int) -> str | None:
        task = SUITE.task("cirr_task7")
        return (
            read_task(made[0], msgspec.structs.replace(task, data={**task.data, "prompt": prompt}))
            .queries[0]
            .instruction
        )

    assert [asked(number) for number in (1, 2, 4)] == ["Represent cirr_task7.", "Find cirr_task7.", "Get cirr_task7."]
    with pytest.raises(UserError, match=r"query_instructions\.tsv: line 2: 8 columns with 4 prompts, and prompt 5"):
        asked(5)


@pytest.mark.parametrize(
    ("path", "spoil", "said"),
    [
        (QRELS, lambda text: text.replace("8:701 0 8:701 1 7", "8:701 0 8:701 1"), ("line 2", "4 columns", "5")),
        (QRELS, lambda text: text.replace("8:701 0 8:701 1 7", "8:701 0 8:701 one 7"), ("line 2", "not a number")),
        (PROMPTS, lambda text: text.replace("\tCIRR\t8\t", "\tCIRR\t8\n"), ("line", "4 columns with 0 prompts")),
        (PROMPTS, lambda text: text.replace("\tCIRR\t8\t", "\tCIRR\t88\t"), ("8, image,text, image", "no prompt")),
        (
            "M-BEIR/cand_pool/local/mbeir_cirr_task7_cand_pool.jsonl",
            lambda text: text[:-20],
            ("line 4", "fetch it again"),
        ),
        ("M-BEIR/query/test/mbeir_cirr_task7_test.jsonl", lambda text: text[:-20], ("line 3", "fetch it again")),
        ("M-BEIR/query/test/mbeir_cirr_task7_test.jsonl", lambda text: text.replace("qid", "id"), ("line 1", "qid")),
    ],
)
def test_damage_is_named_with_file_and_line(
    made: tuple[Path, dict[str, Meant]],
    command: Callable,
    refused: Callable,
    tmp_path: Path,
    path: str,
    spoil: Callable,
    said: tuple,
) -> None:
    root = fresh(tmp_path / "data", made[0])
    (root / path).write_text(spoil((root / path).read_text()))
    done = command(
        "run", "mbeir", "--data", root, "--model", "random:16", "--tasks", "cirr_task7", "--out", tmp_path / "runs"
    )
    refused(done, Path(path).name, *said)


def test_a_candidate_without_text_keeps_its_place(made: tuple[Path, dict[str, Meant]], tmp_path: Path) -> None:
    root = fresh(tmp_path / "data", made[0])
    path = root / "M-BEIR/cand_pool/local/mbeir_webqa_task1_cand_pool.jsonl"
    path.write_text(path.read_text().replace('"  \\"candidate 2 of webqa_task1\\"\\r"', "null"))
    data = read_task(root, SUITE.task("webqa_task1"))
    assert [item.text for item in data.candidates][1:3] == ["Candidate 1 of webqa_task1.", ""]


class Row(msgspec.Struct):
    id: str
    text: str


def test_a_pool_on_disk_is_a_sequence(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text(
        "".join(f'{{"id": "é{number}", "text": "{number}"}}\n' + "\n" * (number % 3) for number in range(50))
    )
    items = JsonlItems(path, Row, lambda row: Item(row.id, row.text))
    every = [Item(f"é{number}", str(number)) for number in range(50)]
    assert (len(items), list(items), items[7], items[-1], items[3:6]) == (50, every, every[7], every[-1], every[3:6])
    with pytest.raises(IndexError):
        items[50]
    path.write_text(path.read_text() + '{"id": "x", "text": ""}\n')
    with pytest.raises(UserError, match="changed while it was read"):
        list(items)


def test_a_pool_on_disk_takes_little_memory(made: tuple[Path, dict[str, Meant]], tmp_path: Path) -> None:
    task: Task = SUITE.task("webqa_task1")
    root = fresh(tmp_path / "data", made[0])
    path = root / "M-BEIR/cand_pool/local/mbeir_webqa_task1_cand_pool.jsonl"
    with path.open("a") as file:
        file.writelines(
            f'{{"did": "2:{number}", "txt": "{"word " * 100}", "modality": "text"}}\n' for number in range(1000, 41000)
        )
    tracemalloc.start()
    data = read_task(root, task)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(data.candidates) == 40004
    assert path.stat().st_size > 20e6
    assert peak < 10e6  # the ids of 40,004 candidates, which the checks need, and where their lines begin
