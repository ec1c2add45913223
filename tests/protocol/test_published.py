"""From the published values of tasks the cards' trees give every published mean, but for misprints that are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnirecall.errors import UserError
from omnirecall.protocol.cards import read_card, shipped_card, shipped_cards
from omnirecall.protocol.published.rows import PUBLISHED, PublishedRow, published_rows, read_published
from omnirecall.protocol.suites import MeanValue, Suite, mean_values

ABILITIES = ("CG", "S", "T", "PR", "FG", "LC", "TXT", "CMP", "VIS")
ROUNDING = 0.0011
"""Values are printed with three decimals, and so are the values they are means of."""


def suite(name: str) -> Suite:
    return read_card(shipped_card(name))


def named(name: str, model: str, source: str = "") -> PublishedRow:
    found = [row for row in read_published(name) if row.model == model and source in row.source]
    assert len(found) == 1
    return found[0]


def means_from_tasks(card: Suite, row: PublishedRow) -> dict[str, MeanValue]:
    """The card's means, from the values that the row has for tasks, under their present or an older name."""
    values = {}
    for task in card.tasks:
        for name in (task.name, *task.old_names):
            if name in row.values:
                values[task.name] = row.values[name]
    return mean_values(card.means, values)


def whole_rows() -> list[PublishedRow]:
    rows = [row for row in read_published("uvrb") if "MSRVTT" in row.values]
    assert len(rows) == 16
    return rows


@pytest.mark.parametrize("row", whole_rows(), ids=lambda row: row.model)
def test_uvrb_every_mean_of_every_model(row: PublishedRow) -> None:
    means = means_from_tasks(suite("uvrb"), row)
    assert set(means) == {*ABILITIES, "AVG_D", "AVG_A"} <= set(row.values)
    off = {name for name, mean in means.items() if abs((mean.value or 0) - row.values[name]) > ROUNDING}
    assert off == set(row.misprints)


def test_uvrb_the_misprints_are_those_of_two_models() -> None:
    assert {row.model: set(row.misprints) for row in whole_rows() if row.misprints} == {
        "GME-2B": {"AVG_A"},
        "VLM2Vec-V2": {"CG", "TXT", "AVG_A", "AVG_D"},
    }
    card = suite("uvrb")
    gme = means_from_tasks(card, named("uvrb", "GME-2B"))
    assert named("uvrb", "GME-2B").values["AVG_A"] == 0.416
    assert gme["AVG_A"].value == pytest.approx(0.516, abs=ROUNDING)
    vlm2vec = means_from_tasks(card, named("uvrb", "VLM2Vec-V2"))
    for name, value in {"CG": 0.486, "TXT": 0.583, "AVG_A": 0.535, "AVG_D": 0.506}.items():
        assert vlm2vec[name].value == pytest.approx(value, abs=ROUNDING)


def test_uvrb_a_tree_without_its_levels_would_be_noticed() -> None:
    row = named("uvrb", "GVE-7B")
    card = suite("uvrb")
    flat = [sum(row.values[task] for task in card.below(name)) / len(card.below(name)) for name in ("FG", "TXT")]
    assert flat == pytest.approx([0.548, 0.602], abs=ROUNDING)
    assert [row.values[name] for name in ("FG", "TXT")] == [0.570, 0.657]


PRINTED_MMEB = {
    "VLM2Vec-V2.0-Qwen2VL-2B": (64.85, 34.58, 65.36, 58.02),
    "gme-Qwen2-VL-2B-Instruct": (51.89, 33.64, 72.71, 54.08),
    "colpali-v1.3": (34.89, 28.17, 70.97, 44.44),
}


@pytest.mark.parametrize("model", PRINTED_MMEB)
def test_mmeb_v2_every_mean_of_release_v2_0_0(model: str) -> None:
    row = named("mmeb-v2-momentseeker-1800", model)
    means = means_from_tasks(suite("mmeb-v2-momentseeker-1800"), row)
    names = ("Image", "Video", "VisDoc", "Overall")
    assert [100 * (means[name].value or 0) for name in names] == pytest.approx(PRINTED_MMEB[model], abs=0.005)
    assert [100 * row.values[name] for name in names] == pytest.approx(PRINTED_MMEB[model], abs=1e-9)
    assert all(mean.complete for mean in means.values())


def test_mmeb_v2_the_mean_over_modalities_is_another() -> None:
    row = named("mmeb-v2-momentseeker-1800", "VLM2Vec-V2.0-Qwen2VL-2B")
    assert sum(row.values[name] for name in ("Image", "Video", "VisDoc")) / 3 == pytest.approx(0.5493, abs=5e-5)


def test_mmeb_v2_the_groups_of_the_omniret_paper() -> None:
    card = suite("mmeb-v2-omniret")
    means = means_from_tasks(card, named("mmeb-v2-momentseeker-1800", "VLM2Vec-V2.0-Qwen2VL-2B"))
    printed = named("mmeb-v2-omniret", "VLM2VecV2").values
    for name in ("I-CLS", "I-RET", "V-CLS", "V-RET"):
        assert 100 * (means[name].value or 0) == pytest.approx(printed[name], abs=0.051), name
    assert 100 * (means["V-MRET"].value or 0) == pytest.approx(36.8, abs=0.051), "as later tables have it"
    assert printed["V-MRET"] == 38.5


# direction means of M-BEIR rows, recomputed independently of the card, in percent
MBEIR_MEANS = """
CLIP-L 26.1 36.2 42.7 37.0 44.2 22.4 10.1 32.6
SigLIP 28.9 39.8 51.1 47.4 35.2 27.4 18.6 34.5
UniIR-BLIP_FF 33.0 80.0 47.2 43.1 65.3 31.7 40.7 44.4
UniIR-CLIP_SF 32.0 84.7 51.2 47.2 69.0 36.7 34.5 58.2
MM-Embed-7B 32.4 95.9 49.9 43.1 76.9 42.2 37.9 60.9
LamRA-Ret-2B 28.7 82.5 48.9 44.2 66.0 47.7 38.3 66.5
LamRA-Ret-7B 32.1 86.0 53.5 50.6 71.9 53.1 43.2 69.8
"""


@pytest.mark.parametrize("line", MBEIR_MEANS.strip().splitlines(), ids=lambda line: line.split()[0])
def test_mbeir_directions(line: str) -> None:
    model, *values = line.split()
    means = means_from_tasks(suite("mbeir"), named("mbeir", model, "ELVA"))
    order = ("I->I", "T->T", "I->T", "T->I", "T->I,T", "I,T->T", "I,T->I", "I,T->I,T")
    assert [means[name].value for name in order] == pytest.approx([float(value) for value in values], abs=0.0501)


def test_mbeir_average() -> None:
    card = suite("mbeir")
    clip = means_from_tasks(card, named("mbeir", "UniIR-CLIP_SF", "ELVA"))["AVG"].value
    assert clip == pytest.approx(50.57, abs=0.005)
    rows = [row for row in read_published("mbeir") if "AVG" in row.values]
    assert len(rows) == 10
    off = {
        row.model for row in rows if abs((means_from_tasks(card, row)["AVG"].value or 0) - row.values["AVG"]) > 0.0501
    }
    assert off == {row.model for row in rows if "AVG" in row.misprints} == {"LamRA-Ret-2B"}


def test_two_sources_of_one_model_agree() -> None:
    reprint, fixed = named("mbeir", "UniIR-CLIP_SF", "ELVA"), named("mbeir", "UniIR-CLIP_SF", "pyserini")
    assert (reprint.unit, fixed.unit) == ("percent", "fraction")
    card = suite("mbeir")
    for name in card.task_names():
        gap = 0.07 if name == "edis_task2" else 0.015
        assert reprint.share(name) == pytest.approx(fixed.share(name), abs=gap), name


def test_every_file_belongs_to_a_suite_and_names_what_is_in_it() -> None:
    files = sorted(path.stem for path in PUBLISHED.glob("*.csv"))
    assert files
    assert set(files) <= set(shipped_cards())
    for name in files:
        card = suite(name)
        known = {*card.task_names(), *(mean.name for mean in card.means)}
        known |= {old for task in card.tasks for old in task.old_names}
        for row in read_published(name):
            assert set(row.values) <= known, row.model
            assert {*row.misprints, *row.differs} <= known
            assert row.model
            assert row.source
            most = 1 if row.unit == "fraction" else 100
            assert all(0 <= value <= most for value in row.values.values())
            assert max(row.values.values()) > most / 100


def test_what_a_model_saw_in_training_is_marked() -> None:
    assert "PE-Video" in named("uvrb", "GVE-7B").seen
    assert named("mbeir", "UniIR-CLIP_SF", "ELVA").seen
    assert not named("mbeir", "CLIP-L").seen
    assert named("acm", "OmniRet").seen


def test_nothing_stands_beside_what_is_not_known() -> None:
    written = named("omniret", "OmniRet").values
    assert {"V->T", "T->V"} <= set(written)
    shown = [row.values for row in published_rows(suite("omniret"))]
    assert shown
    for values in shown:
        assert not {"V->T", "T->V", "AVG"} & set(values)
    assert any(values.get("A->T") == 66.8 for values in shown)


def test_a_suite_shows_the_rows_of_those_it_takes_over_and_no_others() -> None:
    rows = published_rows(suite("omniret"))
    assert any("nights_task4" in row.values for row in rows), "of mbeir"
    assert any("A,T->A" in row.values for row in rows), "of acm"
    assert any("ImageNet-1K" in row.values and "OK-VQA" not in row.values for row in rows), "of part of mmeb-v2"
    union = published_rows(suite("mbeir-union"))
    assert [row.values["webqa_task1"] for row in union] == [0.8342], "the pool differs from that of mbeir's rows"


def test_values_of_other_data_do_not_stand_beside() -> None:
    rows = published_rows(suite("mmeb-v2-momentseeker-1800"))
    whole = next(row for row in rows if "v2.0.0" in row.source and row.model.startswith("VLM2Vec-V2"))
    assert "MomentSeeker" in whole.values
    assert not {"VisDoc", "Overall", "ViDoSeek-page", "ViDoSeek-page-fixed"} & set(whole.values)
    later = next(row for row in rows if "v2.1" in row.source)
    assert "MomentSeeker" not in later.values
    assert "ViDoSeek-page-fixed" in later.values
    assert named("mmeb-v2", "VLM2Vec-V2.0-Qwen2VL-2B").values["ViDoSeek-page-fixed"] == pytest.approx(0.803, abs=5e-4)


HEADER = "model,source,unit,seen,misprints,differs,note,a\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEADER + "m,s,fraction,,,,,x\n", "line 2: could not convert string to float: 'x'"),
        (HEADER + "m,s,promille,,,,,0.5\n", "line 2: Invalid enum value 'promille'"),
        (HEADER + "m,s,fraction,,,,,0.5,0.6\n", "line 2: 8 columns are named in the first line; give as many"),
        (HEADER + "m,s,fraction\n", "line 2: 8 columns are named"),
    ],
)
def test_a_damaged_file_is_refused_by_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(UserError) as error:
        read_published("s", tmp_path)
    assert said in str(error.value)
