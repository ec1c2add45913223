"""The audit: each kind of fault is found and named, what the card lists does not fail, and a stopped check goes on."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from miniatures import Meant, clip, fresh, put, write
from PIL import Image

from omnirecall.progress import silent
from omnirecall.protocol.suites import Defect, Fact, Suite, Task
from omnirecall.sources import media_check
from omnirecall.sources.audit import JOURNAL, Audit, Issue, as_text, audit
from omnirecall.sources.load import load_suite

UVRB, MBEIR, MMEB = load_suite("uvrb"), load_suite("mbeir"), load_suite("mmeb-v2")


def sized(task: Task, meant: Meant, **more: Any) -> Task:
    """The task as a card of the miniature would have it."""
    pool = max((len(pool) for pool in meant.pools.values()), default=None)
    media = msgspec.structs.replace(task.media, frames=2) if task.data["layout"] == "uvrb" else task.media
    sizes = {"query_count": len(meant.relevant), "candidate_count": len(meant.pool), "pool_size": pool}
    return msgspec.structs.replace(task, **{**sizes, "media": media, **more})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Meant]]:
    root = tmp_path_factory.mktemp("audit")
    names = {
        "uvrb": ("MSRVTT", "CMRB", "MS-TI", "LoVR-C2V"),
        "mbeir": ("cirr_task7", "oven_task6", "webqa_task1"),
        "mmeb-v2": ("Visual7W", "OK-VQA", "MSVD", "ViDoRe_docvqa"),
    }
    return root, write(root, [load_suite(suite).task(name) for suite, some in names.items() for name in some])


@pytest.fixture
def check(made: tuple[Path, dict[str, Meant]], tmp_path: Path) -> Callable[..., list[Issue]]:
    """Spoil a copy of the data and audit one task of it; ``changes`` are those of its card."""

    def run(
        suite: Suite, name: str, spoil: Callable[[Path], object] = lambda _: None, quick: bool = False, **changes: Any
    ) -> list[Issue]:
        root = fresh(tmp_path / f"data{len(list(tmp_path.iterdir()))}", made[0])
        spoil(root)
        task = sized(suite.task(name), made[1][name], **changes)
        (found,) = audit(suite, [task], root, progress=silent, quick=quick).tasks
        return list(found.issues)

    return run


def only(issues: Sequence[Issue]) -> Issue:
    (issue,) = issues
    return issue


def rewrite(path: str, change: Callable[[list[dict]], object]) -> Callable[[Path], None]:
    """Change the rows of a jsonl file."""

    def spoil(root: Path) -> None:
        rows = [json.loads(line) for line in (root / path).read_text().splitlines()]
        change(rows)
        (root / path).write_text("".join(json.dumps(row) + "\n" for row in rows))

    return spoil


UVRB_FILES = "UVRB/{0}/UVRB/{0}/"
POOL = "M-BEIR/cand_pool/local/mbeir_{}_cand_pool.jsonl"


@pytest.mark.parametrize(
    ("suite", "name"),
    [
        (UVRB, "MSRVTT"),
        (UVRB, "CMRB"),
        (UVRB, "MS-TI"),
        (UVRB, "LoVR-C2V"),
        (MBEIR, "cirr_task7"),
        (MMEB, "OK-VQA"),
        (MMEB, "ViDoRe_docvqa"),
    ],
)
def test_sound_data_have_no_issue(check: Callable, suite: Suite, name: str) -> None:
    assert check(suite, name) == []


def test_counts_are_compared_with_the_card(check: Callable) -> None:
    issues = check(UVRB, "MSRVTT", query_count=1000, candidate_count=4)
    assert [(issue.kind, issue.count, issue.expected, issue.fails) for issue in issues] == [
        ("query-count", 3, 1000, True),
        ("candidate-count", 3, 4, True),
    ]


def test_a_count_that_the_card_is_unsure_of_does_not_fail(check: Callable) -> None:
    issue = only(check(UVRB, "MSRVTT", query_count=1000, facts={"query_count": Fact("assumed")}))
    assert (issue.kind, issue.fails) == ("query-count", False)


def test_pools_of_another_size(check: Callable) -> None:
    issue = only(check(UVRB, "MS-TI", pool_size=10))
    assert (issue.kind, issue.count, issue.fails) == ("pool-size", 3, True)
    assert "sizes go from 2 to 2" in issue.what


def test_media_missing_broken_and_short(check: Callable) -> None:
    def spoil(root: Path) -> None:
        folder = root / UVRB_FILES.format("MSRVTT") / "videos"
        (folder / "v0.mp4").unlink()
        put(folder / "v1.mp4", b"no film" * 100)

    issues = {issue.kind: issue for issue in check(UVRB, "MSRVTT", spoil, media=UVRB.task("MSRVTT").media)}
    assert issues.keys() == {"missing-media", "undecodable-media"}
    assert all(issue.fails and issue.count == 1 for issue in issues.values())
    assert issues["missing-media"].examples[0].endswith("videos/v0.mp4")
    assert "MSRVTT-c1" in issues["undecodable-media"].examples[0]
    assert "v1.mp4" in issues["undecodable-media"].examples[0]


def test_films_with_too_few_frames(check: Callable) -> None:
    policy = msgspec.structs.replace(UVRB.task("MSRVTT").media, frames=500)
    issue = only(check(UVRB, "MSRVTT", media=policy))
    assert (issue.kind, issue.count, issue.fails) == ("short-video", 3, True)
    issue = only(check(UVRB, "MSRVTT", media=msgspec.structs.replace(policy, shortage="keep")))
    assert (issue.kind, issue.fails) == ("short-video", False)
    issue = only(check(MMEB, "MSVD"))  # folders of three frames, and the card keeps what there is
    assert (issue.kind, issue.count, issue.fails) == ("short-video", 3, False)


def test_a_film_cut_short(check: Callable) -> None:
    whole = clip(5)
    issues = check(
        UVRB,
        "MSRVTT",
        lambda root: put(root / UVRB_FILES.format("MSRVTT") / "videos/v0.mp4", whole[: len(whole) * 2 // 3]),
    )
    assert any(issue.fails and issue.kind in ("damaged-media", "undecodable-media") for issue in issues), issues


def test_ids_used_twice(check: Callable) -> None:
    corpus, queries = (UVRB_FILES.format("MSRVTT") + f"jsonl/{part}.jsonl" for part in ("corpus", "queries"))
    issue = only(check(UVRB, "MSRVTT", rewrite(corpus, lambda rows: rows.append(rows[2])), candidate_count=4))
    assert (issue.kind, issue.fails, issue.examples) == ("duplicate-id", True, ("MSRVTT-c2",))
    issue = only(check(UVRB, "MSRVTT", rewrite(queries, lambda rows: rows.append(rows[0])), query_count=4))
    assert (issue.kind, issue.examples) == ("duplicate-id", ("MSRVTT-q0",))


def test_copies_of_a_candidate(check: Callable) -> None:
    def spoil(root: Path) -> None:
        folder = root / UVRB_FILES.format("MSRVTT") / "videos"
        put(folder / "v2.mp4", (folder / "v0.mp4").read_bytes())

    issue = only(check(UVRB, "MSRVTT", spoil))
    assert (issue.kind, issue.count, issue.fails) == ("duplicate-content", 2, True)
    assert set(issue.examples) == {"MSRVTT-q0: MSRVTT-c2", "MSRVTT-q2: MSRVTT-c0"}


def test_copies_outside_a_query_s_own_pool_do_it_no_harm(check: Callable) -> None:
    def spoil(root: Path) -> None:
        folder = root / UVRB_FILES.format("MS-TI") / "videos"
        put(folder / "v2.mp4", (folder / "v0.mp4").read_bytes())

    issue = only(
        check(UVRB, "MS-TI", spoil)
    )  # the pool of the first query lacks the third clip, that of the third has the first
    assert (issue.kind, issue.count, issue.examples) == ("duplicate-content", 1, ("MS-TI-q2: MS-TI-c0",))


def test_copies_that_no_query_asks_for_are_noted(check: Callable) -> None:
    issue = only(
        check(
            MBEIR,
            "webqa_task1",
            rewrite(POOL.format("webqa_task1"), lambda rows: rows.append({**rows[3], "did": "2:1"})),
            candidate_count=5,
        )
    )
    assert (issue.kind, issue.count, issue.fails) == ("duplicate-content", 1, False)


def test_judgments_outside_the_pool(check: Callable) -> None:
    issue = only(check(MBEIR, "oven_task6", known_defects=()))
    assert (issue.kind, issue.count, issue.fails) == ("relevant-outside-pool", 1, True)
    assert issue.examples == ("5:600 6:603",)


@pytest.mark.parametrize(("expected", "fails"), [(1, False), (None, False), (442650, True)])
def test_defects_that_the_card_lists(check: Callable, expected: int | None, fails: bool) -> None:
    issue = only(check(MBEIR, "oven_task6", known_defects=(Defect("relevant-outside-pool", expected),)))
    assert (issue.count, issue.expected, issue.fails) == (1, expected, fails)


def test_pictures_of_one_colour(check: Callable) -> None:
    out = io.BytesIO()
    Image.new("RGB", (20, 20), (12, 200, 7)).save(out, "PNG")

    def spoil(root: Path) -> None:
        put(root / "M-BEIR/mbeir_images/cirr_task7/c3.jpg", out.getvalue())

    issue = only(check(MBEIR, "cirr_task7", spoil))
    assert (issue.kind, issue.count, issue.fails, issue.examples) == ("constant-image", 1, True, ("8:703",))
    assert not only(check(MBEIR, "cirr_task7", spoil, known_defects=(Defect("constant-image", 1),))).fails
    absent = only(check(MBEIR, "cirr_task7", known_defects=(Defect("constant-image", 7),)))
    assert (absent.count, absent.expected, absent.fails) == (0, 7, True)


def test_what_readers_handle_is_counted(check: Callable) -> None:
    issue = only(check(MMEB, "Visual7W"))
    assert (issue.kind, issue.count, issue.fails) == ("duplicate-candidate", 2, False)
    assert only(check(MMEB, "Visual7W", known_defects=(Defect("duplicate-candidate", 5),))).fails


def test_data_that_are_missing_or_unreadable(check: Callable) -> None:
    issue = only(check(UVRB, "CMRB", lambda root: (root / "UVRB/CMRB").rename(root / "x")))
    assert (issue.kind, issue.fails) == ("no-data", True)
    qrels = "M-BEIR/qrels/test/mbeir_cirr_task7_test_qrels.txt"
    issue = only(
        check(MBEIR, "cirr_task7", lambda root: (root / qrels).write_text("8:700 0 8:700 1 7\n8:701 0 8:701\n"))
    )
    assert (issue.kind, issue.fails) == ("unreadable", True)
    assert "line 2" in issue.what
    instances = UVRB_FILES.format("MSRVTT") + "jsonl/instances.jsonl"
    issue = only(check(UVRB, "MSRVTT", rewrite(instances, lambda rows: rows.pop())))
    assert (issue.kind, issue.fails) == ("refused", True)
    assert "MSRVTT-q2 has no relevant candidate" in issue.what


def test_quick_sees_what_is_missing_and_decodes_nothing(check: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_check, "look_at", lambda _: pytest.fail("decoded"))

    def spoil(root: Path) -> None:
        put(root / "M-BEIR/mbeir_images/cirr_task7/c3.jpg", b"no picture")
        (root / "M-BEIR/mbeir_images/cirr_task7/q1.jpg").unlink()

    issue = only(check(MBEIR, "cirr_task7", spoil, quick=True))
    assert (issue.kind, issue.count) == ("missing-media", 1)


def test_a_stopped_check_goes_on(
    made: tuple[Path, dict[str, Meant]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fresh(tmp_path / "data", made[0])
    task = sized(MBEIR.task("cirr_task7"), made[1]["cirr_task7"])
    looked: list[str] = []
    look = media_check.look_at

    def counting(medium: media_check.Medium) -> media_check.Finding:
        looked.append(Path(str(medium.ref)).name)
        return look(medium)

    monkeypatch.setattr(media_check, "look_at", counting)

    def run() -> Audit:
        looked.clear()
        return audit(MBEIR, [task], root, progress=silent)

    first = run()
    assert (first.fails, len(looked)) == (False, 7)
    assert run() == first
    assert looked == []
    journal = root / JOURNAL
    lines = journal.read_bytes().splitlines()
    journal.write_bytes(b"\n".join(lines[:5])[:-10])  # killed while it wrote
    assert run() == first
    assert 0 < len(looked) < 7
    picture = root / "M-BEIR/mbeir_images/cirr_task7/c3.jpg"
    whole = picture.read_bytes()
    put(picture, b"spoiled since")
    assert [issue.kind for issue in run().tasks[0].issues] == ["undecodable-media"]
    assert looked == ["c3.jpg"]
    put(picture, whole)
    assert run().fails is False


def test_a_check_that_a_decoder_breaks_off_keeps_what_it_found(
    made: tuple[Path, dict[str, Meant]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fresh(tmp_path / "data", made[0])
    task = sized(MBEIR.task("cirr_task7"), made[1]["cirr_task7"])

    def stopped(medium: media_check.Medium) -> media_check.Finding:
        if str(medium.ref).endswith("c3.jpg"):
            raise KeyboardInterrupt
        return look(medium)

    look = media_check.look_at
    monkeypatch.setattr(media_check, "look_at", stopped)
    with pytest.raises(KeyboardInterrupt):
        audit(MBEIR, [task], root, progress=silent)
    assert (root / JOURNAL).read_bytes().count(b"cirr_task7/") >= 5


def test_any_error_of_a_decoder_is_a_finding(
    made: tuple[Path, dict[str, Meant]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a decoder's own")

    monkeypatch.setattr(media_check, "load_image", broken)
    task = sized(MBEIR.task("cirr_task7"), made[1]["cirr_task7"])
    (found,) = audit(MBEIR, [task], fresh(tmp_path / "data", made[0]), progress=silent).tasks
    assert [(issue.kind, issue.count) for issue in found.issues] == [("undecodable-media", 7)]
    assert "ZeroDivisionError: a decoder's own" in found.issues[0].examples[0]


def test_text_names_every_issue(made: tuple[Path, dict[str, Meant]], tmp_path: Path) -> None:
    root = fresh(tmp_path / "data", made[0])
    text = as_text(audit(MBEIR, [MBEIR.task("oven_task6"), MBEIR.task("edis_task2")], root, progress=silent))
    assert "3 of 50,004" in text
    assert "FAILS oven_task6: relevant-outside-pool: 1 judgments" in text
    assert "(the card lists 442,650)" in text
    assert "FAILS edis_task2: no-data: " in text
    assert "2 of 2 tasks would not give the suite's score." in text
