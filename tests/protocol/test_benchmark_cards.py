"""The cards of the four benchmarks against the tables of their papers and code, and the format that lets them share and include."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from omnirecall.errors import UserError
from omnirecall.protocol.cards import CARDS, read_card, shipped_card, suite_from_table
from omnirecall.protocol.suites import Suite, mean_values

BENCHMARKS = (
    "acm",
    "mbeir",
    "mbeir-union",
    "mmeb-v2",
    "mmeb-v2-momentseeker-1800",
    "mmeb-v2-omniret",
    "omniret",
    "uvrb",
)
LAYOUTS = {"uvrb", "mbeir", "mmeb-image", "mmeb-video", "mmeb-visdoc", "acm", "beir-parquet", "covr"}


def suite(name: str) -> Suite:
    return read_card(shipped_card(name))


# arXiv 2510.27571, Tables 1, 4 and 5: name, queries, corpus, measure, prompt
UVRB = """
MSRVTT | 1000 | 1000 | hit@1 R@1 | Find the clip that corresponds to the described scene in the given video.
DiDeMo | 1004 | 1004 | hit@1 R@1 | Find a video that includes the following described scenes.
CRB-G | 1000 | 1000 | hit@1 R@1 | Find the video according to the general text description.
CRB-S | 1000 | 1000 | hit@1 R@1 | Find the video according to the spatial description.
VDC-O | 1027 | 1027 | hit@1 R@1 | Find the video according to the object description.
CRB-T | 1000 | 1000 | hit@1 R@1 | Find the video according to the temporal description.
CMRB | 728 | 1071 | recall@10 R@10 | Find the video according to the camera motion description.
DREAM-E | 6251 | 1000 | hit@1 R@1 | Find the video according to the text description.
LoVR-TH | 8854 | 8854 | recall@10 R@10 | Find the video according to text description about video theme information.
PEV-K | 14427 | 15000 | hit@1 R@1 | Find the video according to the text description of a series of keywords.
LoVR-V | 100 | 467 | hit@1 R@1 | Find the long video according to the long text description.
VDC-D | 1000 | 1027 | hit@1 R@1 | Find the video according to the detailed text description.
MS-TI | 400 | 10 | precision@1 P@1 | Find the video clip that corresponds to the given text and the given image.
MS-TV | 400 | 10 | precision@1 P@1 | Find the video clip that corresponds to the given text and the given video.
MSRVTT-I2V | 1000 | 1000 | hit@1 R@1 | Find the video according to the image.
LoVR-C2V | 467 | 467 | hit@1 R@1 | Find the original long video according to the short video clip.
"""


def test_uvrb_is_the_papers_tables() -> None:
    rows = [[cell.strip() for cell in line.split("|")] for line in UVRB.strip().splitlines()]
    card = suite("uvrb")
    assert card.task_names() == [row[0] for row in rows]
    for name, queries, corpus, measure, prompt in rows:
        task = card.task(name)
        assert task.query_count == int(queries)
        own = task.pool == "per-query"
        assert (task.pool_size if own else task.candidate_count) == int(corpus)
        assert own == name.startswith("MS-T")
        assert f"{task.measure} {task.printed}" == measure
        assert task.instruction == prompt
        assert (task.media.frames, task.media.rule, task.media.shortage) == (8, "linspace_round", "repeat")
        assert (task.media.audio_track, task.media.max_tokens, task.media.patch) == (False, 200, 28)
        assert (task.similarity, task.vectors.normalised, task.vectors.dtype) == ("cosine", True, "bfloat16")


def test_uvrbs_tree() -> None:
    tree = {mean.name: mean for mean in suite("uvrb").means}
    assert tree["FG"].of == ("S", "T", "PR")
    assert tree["TXT"].of == ("CG", "FG", "LC")
    assert tree["AVG_A"].of == ("TXT", "CMP", "VIS", "CG", "FG", "LC")
    assert tree["AVG_D"].flat
    assert sorted(suite("uvrb").below("AVG_D")) == sorted(suite("uvrb").task_names())


# task, direction, queries, pool, k
MBEIR = """
visualnews_task0 T->I 19995 542246 5
mscoco_task0 T->I 24809 5000 5
fashion200k_task0 T->I 1719 201824 10
webqa_task1 T->T 2455 544457 5
edis_task2 T->I,T 3241 1047067 5
webqa_task2 T->I,T 2511 403196 5
visualnews_task3 I->T 20000 537568 5
mscoco_task3 I->T 5000 24809 5
fashion200k_task3 I->T 4889 61707 10
nights_task4 I->I 2120 40038 5
oven_task6 I,T->T 50004 676667 5
infoseek_task6 I,T->T 11323 611651 5
fashioniq_task7 I,T->I 6003 74381 10
cirr_task7 I,T->I 4170 21551 5
oven_task8 I,T->I,T 14741 335135 5
infoseek_task8 I,T->I,T 17593 481782 5
"""


def test_mbeir_is_the_table_of_its_test_splits() -> None:
    card = suite("mbeir")
    assert [
        f"{task.name} {task.direction} {task.query_count} {task.candidate_count} {task.measure.k}"
        for task in card.tasks
    ] == MBEIR.strip().splitlines()
    for task in card.tasks:
        assert task.measure.name == "hit"
        assert f"recall@{task.measure.k}" in [str(measure) for measure in task.measures]
        assert task.data["pool"] == "local"
        assert (task.text_format, task.own_source) == ("uniir", "keep")
        assert set(card.below(task.direction)) == {one.name for one in card.tasks if one.direction == task.direction}
    assert len(card.means) == 9
    assert len(card.below("AVG")) == 16
    outside = {
        task.name: d.count for task in card.tasks for d in task.known_defects if d.kind == "relevant-outside-pool"
    }
    assert outside == {"oven_task6": 442650, "infoseek_task6": 7547}


def test_the_union_pool_departs_and_borrows_no_published_value() -> None:
    local, union = suite("mbeir"), suite("mbeir-union")
    assert "union" in union.departs
    assert not local.departs
    assert union.means == local.means
    assert {task.candidate_count for task in union.tasks} == {sum(task.candidate_count or 0 for task in local.tasks)}
    assert {task.data["pool"] for task in union.tasks} == {"union"}
    assert {task.data["name"] for task in union.tasks} == {task.data["name"] for task in local.tasks}
    assert union.included == {"mbeir": ()}
    assert union.revision != local.revision


GROUPS = {
    "I-CLS": 10,
    "I-QA": 10,
    "I-RET": 12,
    "I-VG": 4,
    "V-CLS": 5,
    "V-QA": 5,
    "V-RET": 5,
    "V-MRET": 3,
    "ViDoRe-V1": 10,
    "ViDoRe-V2": 4,
    "VisRAG": 6,
    "VisDoc-OOD": 4,
}
VIDEO_AND_DOCUMENTS = {
    **{"K700": 1000, "SmthSmthV2": 1000, "HMDB51": 1000, "UCF101": 1000, "Breakfast": 433},
    **{"MVBench": 4000, "Video-MME": 2700, "NExTQA": 8564, "EgoSchema": 500, "ActivityNetQA": 1000},
    **{"MSR-VTT": 1000, "MSVD": 670, "DiDeMo": 1004, "YouCook2": 3179, "VATEX": 4478},
    **{"QVHighlight": 1083, "Charades-STA": 727, "MomentSeeker": 1602},
    **{"ViDoRe_arxivqa": 500, "ViDoRe_docvqa": 451, "ViDoRe_infovqa": 494, "ViDoRe_tabfquad": 280},
    **{"ViDoRe_tatdqa": 1646, "ViDoRe_shiftproject": 100, "ViDoRe_syntheticDocQA_artificial_intelligence": 100},
    **{"ViDoRe_syntheticDocQA_energy": 100, "ViDoRe_syntheticDocQA_government_reports": 100},
    **{"ViDoRe_syntheticDocQA_healthcare_industry": 100, "ViDoRe_esg_reports_human_labeled_v2": 52},
    **{"ViDoRe_biomedical_lectures_v2_multilingual": 640, "ViDoRe_economics_reports_v2_multilingual": 232},
    **{"ViDoRe_esg_reports_v2_multilingual": 228, "VisRAG_ArxivQA": 816, "VisRAG_ChartQA": 63},
    **{"VisRAG_MP-DocVQA": 591, "VisRAG_SlideVQA": 556, "VisRAG_InfoVQA": 718, "VisRAG_PlotQA": 863},
    **{"ViDoSeek-page-fixed": 1142, "ViDoSeek-doc": 1142, "MMLongBench-page-fixed": 838, "MMLongBench-doc": 838},
}
POOLS = {
    **{"K700": 700, "HMDB51": 51, "UCF101": 101, "Breakfast": 10, "MSR-VTT": 1000, "MSVD": 670, "DiDeMo": 1004},
    **{"YouCook2": 3179, "VATEX": 4478, "ViDoRe_tabfquad": 70, "ViDoRe_tatdqa": 277, "VisRAG_PlotQA": 9593},
    **{"ViDoSeek-page-fixed": 5349, "ViDoSeek-doc": 5349, "MMLongBench-page-fixed": 6492, "MMLongBench-doc": 6492},
    **{"GQA": 6850, "OK-VQA": 2555, "CIRR": 2197, "FashionIQ": 5992, "ImageNet-A": 1000},
}
PER_QUERY = {"ImageNet-A": 1000, "A-OKVQA": 894, "ScienceQA": 736, "Country211": 211, "Video-MME": 4, "NExTQA": 5}


def test_mmeb_v2_is_78_tasks_in_12_groups() -> None:
    card = suite("mmeb-v2")
    assert len(card.tasks) == 78
    assert {name: len(card.below(name)) for name in GROUPS} == GROUPS
    assert [len(card.below(name)) for name in ("Image", "Video", "VisDoc", "Overall")] == [36, 18, 24, 78]
    assert len(card.means) == 16
    for task in card.tasks:
        assert (task.similarity, task.vectors.normalised, task.vectors.dtype) == ("dot", True, "model")
        assert task.query_count == VIDEO_AND_DOCUMENTS.get(task.name, 1000)
        document = task.name in card.below("VisDoc")
        assert str(task.measure) == ("ndcg@5" if document else "hit@1")
        if task.name in card.below("Image"):
            assert task.pool == "per-query"
            assert task.instruction_per_row
    assert set(VIDEO_AND_DOCUMENTS) == {*card.below("Video"), *card.below("VisDoc")}
    assert {name: card.task(name).candidate_count for name in POOLS} == POOLS
    assert {name: card.task(name).pool_size for name in PER_QUERY} == PER_QUERY


def test_mmeb_v2s_frames_and_candidate_identity() -> None:
    card = suite("mmeb-v2")
    for name in card.below("Video"):
        media = card.task(name).media
        assert (media.frames, media.stored, media.shortage) == (8, 64, "keep")
        assert media.rule == ("all" if name == "MomentSeeker" else "linspace_floor")
    identities = {
        "ImageNet-1K": "text",
        "OK-VQA": "text",
        "MSCOCO_i2t": "text",
        "WebQA": "image",
        "RefCOCO-Matching": "image+text",
        "K700": "text",
        "MSR-VTT": "video",
        "Charades-STA": "clip",
        "VisRAG_PlotQA": "id",
    }
    assert {name: card.task(name).identity for name in identities} == identities
    shared = {name for name in card.below("Video") if card.task(name).pool == "shared"}
    assert shared == {"K700", "HMDB51", "UCF101", "Breakfast", *card.below("V-RET")}


def test_the_two_versions_of_momentseeker() -> None:
    now, first = suite("mmeb-v2"), suite("mmeb-v2-momentseeker-1800")
    assert (now.task("MomentSeeker").version, first.task("MomentSeeker").version) == ("1602", "1800")
    assert first.task("MomentSeeker").query_count == 1800
    assert [defect.count for defect in first.task("MomentSeeker").known_defects] == [198]
    assert first.departs
    assert [task for task in first.tasks if task.name != "MomentSeeker"] == [
        task for task in now.tasks if task.name != "MomentSeeker"
    ]
    kept = set(first.included["mmeb-v2"])
    assert not kept & {"MomentSeeker", "V-MRET", "Video", "Overall"}
    assert {"I-CLS", "Image", "VisDoc", "QVHighlight"} <= kept


def test_acm() -> None:
    card = suite("acm")
    assert [(task.name, str(task.measure), task.query_count, task.candidate_count) for task in card.tasks] == [
        ("A,T->A", "hit@5", 4251, 5480),
        ("A->V", "hit@5", 1292, 5480),
        ("V->A", "hit@5", 1292, 5480),
        ("A->I", "hit@5", 1292, 5480),
        ("I->A", "hit@5", 1292, 5480),
    ]
    assert not any(task.media.audio_track for task in card.tasks)


SINGLE = ("I->I", "T->T", "I->T", "T->I", "V->T", "T->V", "A->T", "T->A")
DIRECTIONS = [*SINGLE, "T->I,T", "I,T->T", "I,T->I", "I,T->I,T", "V,T->V"]


def test_omniret_takes_the_other_suites_as_they_are() -> None:
    card = suite("omniret")
    for name, count in (("mbeir", 16), ("mmeb-v2-omniret", 35), ("acm", 5)):
        theirs = suite(name)
        assert len(theirs.tasks) == count
        assert [card.task(task.name) for task in theirs.tasks] == list(theirs.tasks)
    written = tomllib.loads((CARDS / "omniret.toml").read_text())
    assert {task["name"] for task in written["task"]}.isdisjoint(
        task.name for name in ("mbeir", "mmeb-v2", "acm") for task in suite(name).tasks
    )
    assert len(card.tasks) == 16 + 35 + 5 + len(written["task"])
    mmeb = suite("mmeb-v2")
    for group in ("I-CLS", "I-RET", "V-CLS", "V-RET", "V-MRET"):
        assert card.below(group) == mmeb.below(group)
    assert next(mean.of for mean in card.means if mean.name == "AVG") == tuple(DIRECTIONS)


def test_omniret_says_which_directions_are_not_known() -> None:
    card = suite("omniret")
    assert [name for name in DIRECTIONS if card.unknown_below(name)] == ["V->T", "T->V"]
    assert len(card.unknown_below("AVG")) == 10
    for name in card.below("A->T") + card.below("V,T->V"):
        assert card.task(name).facts["dataset"].certainty == "assumed"
    assert card.task("webvid_covr").own_source == "exclude"
    for name in BENCHMARKS:
        if name != "omniret":
            assert not any(fact.certainty == "unknown" for _, _, fact in suite(name).facts())


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_fact_has_its_certainty_and_source(name: str) -> None:
    card = suite(name)
    for task in card.tasks:
        said = {"measure", "query_count", "pool", "similarity", "identity", "own_source", "vectors.dtype"}
        said.add("instruction_per_row" if task.instruction_per_row else "instruction")
        if "V" in task.direction:
            said |= {"media.frames", "media.rule", "media.audio_track"}
        if task.candidate_count is not None:
            said.add("candidate_count")
        if task.pool_size is not None:
            said.add("pool_size")
        assert said <= set(task.facts), (task.name, said - set(task.facts))
        assert task.printed
        assert task.data["layout"] in LAYOUTS
        assert task.data["name" if task.data["layout"] != "acm" else "root"]
        assert task.data["hub"]["repo"]
    assert all(fact.source for _, _, fact in card.facts())
    assert all(mean.facts["of"].source for mean in card.means)


# The format: shared values, inclusion, and what is refused.

PATH = Path("card.toml")


def made(text: str) -> Suite:
    return suite_from_table(tomllib.loads(text), PATH, "0")


SHARED = """
[suite]
name = "s"
[defaults]
measure = {value = "hit@1", certainty = "stated", source = "Table 1"}
query_count = {certainty = "stated", source = "Table 2"}
media = {frames = 4, rule = {value = "all", certainty = "code", source = "a.py"}}
data.root = "R"
[defaults.mean]
of = {certainty = "derived", source = "Table 3"}
[group.wide]
direction = "T->V"
media.frames = {value = 16, certainty = "peer", source = "b.py"}
[group.long]
group = "wide"
media.rule = "linspace_floor"
[[task]]
name = "a"
query_count = 5
data.name = "A"
[[task]]
name = "b"
group = "long"
measure = "recall@10"
[[task]]
name = "c"
group = ["wide"]
direction = "V->T"
query_count = {value = 7, certainty = "assumed"}
[[mean]]
name = "m"
of = ["a", "b"]
[[mean]]
name = "all"
of = ["m", "c"]
flat = true
"""


def test_groups_and_defaults_are_merged_with_their_facts() -> None:
    card = made(SHARED)
    a, b, c = card.tasks
    assert (a.media.frames, a.media.rule, a.data) == (4, "all", {"root": "R", "name": "A"})
    assert a.facts["query_count"].source == "Table 2"
    assert a.facts["media.rule"].certainty == "code"
    assert "media.frames" not in a.facts
    assert (b.media.frames, b.media.rule, b.direction) == (16, "linspace_floor", "T->V")
    assert b.facts["media.frames"].source == "b.py"
    assert not {"media.rule", "measure", "query_count"} & set(b.facts), (
        "a value given anew does not keep another's fact"
    )
    assert (c.direction, c.query_count, c.facts["query_count"].certainty) == ("V->T", 7, "assumed")
    assert card.means[0].facts["of"].source == "Table 3"


def test_a_flat_mean_is_over_tasks_and_needs_each_of_them() -> None:
    card = made(SHARED)
    means = mean_values(card.means, {"a": 0.0, "b": 0.3, "c": 0.9})
    assert means["m"].value == pytest.approx(0.15)
    assert means["all"].value == pytest.approx(0.4)
    partial = mean_values(card.means, {"a": 0.0, "c": 0.9})
    assert (partial["all"].value, partial["all"].missing) == (None, ("b",))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('group.g = {group = "g"}\ntask = [{name = "a", measure = "mrr", group = "g"}]', "group g is its own group"),
        (
            'group.audio = {}\ntask = [{name = "a", measure = "mrr", group = "audi"}]',
            "task a: there is no [group.audi]; did you mean audio?",
        ),
        (
            'task = [{name = "a", measure = "mrr", media = {frame = 3}}]',
            "task a, key media: there is an unknown field `frame`; known keys: frames, rule",
        ),
        (
            'task = [{name = "a", measure = "mrr", media = {rule = {value = "all", certainty = "sure"}}}]',
            "task a, key media.rule: certainty 'sure' is none of stated",
        ),
        (
            'task = [{name = "a", measure = "mrr", known_defects = [{kind = "blank"}]}]',
            "task a, key known_defects",
        ),
        ('task = [{name = "a", measure = "mrr", group = 3}]', "task a, key group: write the name of a group"),
        ('defaults = {media = 3}\ntask = [{name = "a", measure = "mrr"}]', "[defaults], key media: must be a table"),
        ('task = [{name = "a", measure = "mrr", grup = "g"}]', "unknown field `grup`; known keys: name, measure"),
        (
            'groups = {}\ntask = [{name = "a", measure = "mrr"}]',
            "known keys: suite, task, mean, defaults, group, include",
        ),
        ('include = [{suite = "mbier", tasks = ["*"]}]', "no suite and no folder named mbier: did you mean mbeir?"),
        ('include = [{suite = "mbeir"}]', "include mbeir: name its `tasks` or `means`"),
        ('include = [{suite = "mbeir", task = ["*"]}]', "include mbeir: Object contains unknown field `task`"),
        ('include = [{suite = "mbeir", tasks = ["nights"]}]', "no task matches nights; did you mean nights_task4?"),
        ('include = [{suite = "mbeir", means = ["AGV"]}]', "it has no mean named AGV; did you mean AVG?"),
        (
            'include = [{suite = "mbeir", tasks = ["*"], set = {"nights" = {split = "val"}}}]',
            "set: nights matches no task that is taken; did you mean nights_task4?",
        ),
        (
            'include = [{suite = "acm", tasks = ["*"]}]\ntask = [{name = "A->V", measure = "mrr"}]',
            "the name A->V is used 2 times",
        ),
    ],
)
def test_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        made(f'suite = {{name = "s"}}\n{text}')
    assert said in str(error.value)
    assert "card.toml" in str(error.value) or "mbier" in said


def test_an_own_card_may_include_shipped_suites_and_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "near.toml").write_text('suite = {name = "near"}\ntask = [{name = "n", measure = "mrr"}]\n')
    (tmp_path / "own.toml").write_text(
        'suite = {name = "own"}\ninclude = [{suite = "near", tasks = ["n"]}, {suite = "acm", tasks = ["A->?"]}]\n'
    )
    card = read_card(tmp_path / "own.toml")
    assert card.task_names() == ["n", "A->V", "A->I"]
    before = card.revision
    (tmp_path / "near.toml").write_text('suite = {name = "near"}\ntask = [{name = "n", measure = "map"}]\n')
    assert read_card(tmp_path / "own.toml").revision != before, "an included card is part of what the suite is"


def test_a_fact_of_a_whole_table_holds_for_each_of_its_values() -> None:
    card = made(
        """
        suite = {name = "s"}
        defaults = {measure = "mrr", media = {value = {frames = 4, rule = "all"}, certainty = "code", source = "a.py"}}
        task = [{name = "a", media = {frames = 8}}]
        """
    )
    assert (card.tasks[0].media.frames, card.tasks[0].media.rule) == (8, "all")
    assert {key: fact.source for key, fact in card.tasks[0].facts.items()} == {"media.rule": "a.py"}


def test_one_suite_may_be_included_twice() -> None:
    card = made(
        """
        suite = {name = "s"}
        include = [{suite = "acm", tasks = ["A->V"]}, {suite = "acm", tasks = ["V->A"], set = {"*" = {split = "val"}}}]
        """
    )
    assert [task.split for task in card.tasks] == ["test", "val"]
    assert card.included == {"acm": ("A->V",)}


def test_suites_that_include_each_other_are_refused(tmp_path: Path) -> None:
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{one}.toml").write_text(
            f'suite = {{name = "{one}"}}\ninclude = [{{suite = "{other}", tasks = ["*"]}}]\n'
        )
    with pytest.raises(UserError, match="a includes itself: a > b > a"):
        read_card(tmp_path / "a.toml")


# What the command line says of it.


def test_the_list_says_how_many_tasks_and_how_sure(command: Any) -> None:
    lines = command("suites").out.splitlines()
    told = {line.split()[0]: [int(cell) for cell in line.split()[1:5]] for line in lines[1:]}
    assert lines[0].split() == ["suite", "tasks", "facts", "assumed", "unknown", "title"]
    assert {name: told[name][0] for name in BENCHMARKS} == {
        "acm": 5,
        "mbeir": 16,
        "mbeir-union": 16,
        "mmeb-v2": 78,
        "mmeb-v2-momentseeker-1800": 78,
        "mmeb-v2-omniret": 35,
        "omniret": 71,
        "uvrb": 16,
    }
    for one in command("suites", "--json").json:
        facts = one["facts"]
        assert told[one["name"]] == [
            one["tasks"],
            sum(facts.values()),
            facts.get("assumed", 0),
            facts.get("unknown", 0),
        ]
        assert len(one["unknown_tasks"]) == (10 if one["name"] == "omniret" else 0)
        distinct = {(key, fact.certainty, fact.source) for _, key, fact in suite(one["name"]).facts()}
        assert sum(facts.values()) == len(distinct), "a fact that tasks share counts once"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_suite_is_shown_whole(command: Any, name: str) -> None:
    card = suite(name)
    shown = command("suites", name).out
    lines = shown.splitlines()
    for task in card.tasks:
        row = next(line for line in lines if line.startswith(f"{task.name} "))
        assert f"{task.printed} = {task.measure}" in row
        assert task.query_count is None or f" {task.query_count:,} " in row
        assert task.instruction_per_row or not task.instruction or repr(task.instruction) in shown
    for mean in card.means:
        assert any(line.startswith(f"{mean.name} = mean of ") for line in lines)
    for _, _, fact in card.facts():
        assert fact.source in shown
    assert card.departs in shown
    told = command("suites", name, "--json").json
    assert [task["name"] for task in told["tasks"]] == card.task_names()
    assert told["tasks"][0]["measure"] == str(card.tasks[0].measure)
    assert told["tasks"][0]["facts"]["measure"]["source"] == card.tasks[0].facts["measure"].source
