"""Small data sets in the true layouts of the benchmarks, with real media, and what each means.

Each writer takes the folder for ``--data`` and the tasks of a card, and returns for each task the relevant candidates of each query
and the candidates it is ranked against, by the ids that the layout gives them.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import wave
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from omnirecall.media.audio import load_samples
from omnirecall.protocol.items import TaskData
from omnirecall.protocol.suites import Task
from omnirecall.sources.load import PACKAGE

MEDIA = PACKAGE / "starter" / "media"
Rows = Sequence[Mapping[str, Any]]
FEATURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
PROMPTS = "Represent {}", "Find {}", "Seek {}", "Get {}"


@dataclass
class Meant:
    """What a task is: relevant candidates by query, and the pool, shared or by query."""

    relevant: dict[str, dict[str, float]] = field(default_factory=dict)
    pool: set[str] = field(default_factory=set)
    pools: dict[str, set[str]] = field(default_factory=dict)
    exclude: dict[str, set[str]] = field(default_factory=dict)
    defects: dict[str, int] = field(default_factory=dict)


@cache
def starter(kind: str) -> list[Path]:
    """The starter's media of a kind, by name."""
    return sorted((MEDIA / kind).iterdir())


@cache
def jpeg(number: int) -> bytes:
    """A starter picture as JPEG."""
    out = io.BytesIO()
    picture = Image.open(starter("image")[number]).convert("RGBA")
    white = Image.new("RGBA", picture.size, "white")
    Image.alpha_composite(white, picture).convert("RGB").resize((64, 64)).save(out, "JPEG")
    return out.getvalue()


@cache
def wav(number: int) -> bytes:
    """A starter recording as WAV."""
    samples = load_samples(starter("audio")[number], 8000, "").values
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes((samples[:8000] * 32767).astype("<i2").tobytes())
    return out.getvalue()


@cache
def clip(number: int) -> bytes:
    """A starter film."""
    return starter("video")[number].read_bytes()


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def frames(folder: Path, number: int, count: int = 3) -> None:
    """A folder of stored frames, numbered from 1."""
    for place in range(count):
        put(folder / f"frame_{place + 1:04d}.jpg", jpeg((number + place) % 100))


def jsonl(path: Path, rows: Rows) -> None:
    put(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def table(path: Path, rows: Rows, media: Iterable[str] = ()) -> None:
    """A parquet file; the columns of ``media`` are the hub's features, bytes and a name."""
    names = list(rows[0])
    columns = {
        name: pa.array(
            [{"bytes": row[name], "path": f"{place}"} for place, row in enumerate(rows)]
            if name in media
            else [row[name] for row in rows],
            FEATURE if name in media else None,
        )
        for name in names
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=2)


def config(folder: Path, name: str, split: str, rows: Rows, media: Iterable[str] = ()) -> None:
    """A config of a data set as the hub stores it."""
    table(folder / name / f"{split}-00000-of-00001.parquet", rows, media)


# UVRB


def write_uvrb(root: Path, tasks: Sequence[Task]) -> dict[str, Meant]:
    """Three films and three queries a task; CMRB and LoVR-TH have two relevant films for one query, MS-TI and MS-TV lists."""
    meant = {}
    for number, task in enumerate(tasks):
        name = task.data["name"]
        folder = root / "UVRB" / name / "UVRB" / name
        for film in range(3):
            put(folder / "videos" / f"v{film}.mp4", clip(number % 4 + film))
        put(folder / "images" / "i0.jpg", jpeg(number))
        corpus = [{"id": f"{name}-c{film}", "video": f"v{film}.mp4"} for film in range(3)]
        queries = []
        for query in range(3):
            parts = {
                "I->V": {"image": "i0.jpg"},
                "V->V": {"video": f"v{query}.mp4"},
                "I,T->V": {"text": f"and then {query}", "image": "i0.jpg"},
                "T,V->V": {"text": f"and then {query}", "video": "v2.mp4"},
            }.get(task.direction, {"text": f"a film, number {query}", "image": ""})
            queries.append({"id": f"{name}-q{query}", **parts})
        relevant = {f"{name}-q{query}": [f"{name}-c{query}"] for query in range(3)}
        if task.name in ("CMRB", "LoVR-TH"):
            relevant[f"{name}-q0"].append(f"{name}-c2")
        local = task.pool == "per-query"
        instances: list[dict[str, Any]] = [
            {"qid": query, "pos": [one]} for query, some in relevant.items() for one in some
        ]
        if local:
            instances = [{**row, "neg": [f"{name}-c{(place + 1) % 3}"]} for place, row in enumerate(instances)]
        for part, rows in (("corpus", corpus), ("queries", queries), ("instances", instances)):
            jsonl(folder / "jsonl" / f"{part}.jsonl", rows)
        meant[task.name] = Meant(
            {query: dict.fromkeys(some, 1.0) for query, some in relevant.items()},
            {row["id"] for row in corpus},
            {row["qid"]: {*row["pos"], *row["neg"]} for row in instances} if local else {},
        )
    return meant


# M-BEIR

KINDS = {"I": "image", "T": "text", "I,T": "image,text"}


def write_mbeir(root: Path, tasks: Sequence[Task]) -> dict[str, Meant]:
    """Three queries and four candidates a task, and the union; one query of OVEN and InfoSeek has a positive outside its pool."""
    folder, meant, prompts, union = root / "M-BEIR", {}, [], []
    for number, task in enumerate(tasks):
        data, name = task.data["dataset_id"], task.data["name"]
        query_kind, target_kind = (KINDS[side] for side in task.direction.split("->"))
        base = 100 * task.data["task_id"]

        def part(kind: str, words: str, image: str) -> tuple[str | None, str | None]:
            return words if "text" in kind else None, f"mbeir_images/{image}" if "image" in kind else None

        queries, pool, qrels = [], [], []
        for place in range(4):
            text, image = part(target_kind, f'  "candidate {place} of {name}"\r', f"{name}/c{place}.jpg")
            pool.append(
                {
                    "did": f"{data}:{base + place}",
                    "txt": text,
                    "img_path": image,
                    "modality": target_kind,
                    "src_content": None,
                }
            )
            put(folder / "mbeir_images" / name / f"c{place}.jpg", jpeg(number + place))
        relevant: dict[str, dict[str, float]] = {}
        for place in range(3):
            text, image = part(query_kind, f"query {place} of {name}?", f"{name}/q{place}.jpg")
            put(folder / "mbeir_images" / name / f"q{place}.jpg", jpeg(50 + number + place))
            qid = f"{data}:{base + place}"
            relevant[qid] = {f"{data}:{base + place}": 1.0}
            if place == 0 and task.dataset in ("OVEN", "InfoSeek"):
                relevant[qid][f"{11 - data}:{base + 3}"] = 1.0  # OVEN's lie in InfoSeek's pool, and the other way round
            queries.append(
                {"qid": qid, "query_txt": text, "query_img_path": image, "query_modality": query_kind,
                 "pos_cand_list": list(relevant[qid]), "neg_cand_list": []}
            )  # fmt: skip
            qrels += [f"{qid} 0 {did} 1 {task.data['task_id']}" for did in relevant[qid]]
        jsonl(folder / "query" / "test" / f"mbeir_{name}_test.jsonl", queries)
        jsonl(folder / "cand_pool" / "local" / f"mbeir_{task.data.get('pool_name', name)}_cand_pool.jsonl", pool)
        put(folder / "qrels" / "test" / f"mbeir_{name}_test_qrels.txt", ("\n".join(qrels) + "\n").encode())
        prompts.append(
            "\t".join([query_kind, target_kind, task.dataset, str(data), *(p.format(name) for p in PROMPTS)])
        )
        union += pool
        meant[task.name] = Meant(relevant, {row["did"] for row in pool})
    jsonl(folder / "cand_pool" / "global" / "mbeir_union_test_cand_pool.jsonl", union)
    if tasks[0].data["pool"] == "union":
        for one in meant.values():
            one.pool = {row["did"] for row in union}
    header = "query_modality\tcand_modality\tdataset_name\tdataset_id\tprompt_1\tprompt_2\tprompt_3\tprompt_4"
    put(folder / "instructions" / "query_instructions.tsv", "\n".join([header, *prompts, ""]).encode())
    return meant


# MMEB-V2


def write_mmeb(root: Path, tasks: Sequence[Task]) -> dict[str, Meant]:
    """Two rows a task or three; Visual7W lists one string twice, WebQA's instruction holds the image token."""
    writers = {"mmeb-image": _mmeb_image, "mmeb-video": _mmeb_video, "mmeb-visdoc": _mmeb_visdoc}
    meant = {task.name: writers[task.data["layout"]](root, task) for task in tasks}
    return meant


def _mmeb_image(root: Path, task: Task) -> Meant:
    name, parser = task.data["name"], task.data["parser"]
    images = root / "MMEB-V2" / "image-tasks"
    meant, rows = Meant(), []
    for row in range(2):
        for place in range(3):
            put(images / name / f"{row}{place}.jpg", jpeg(10 * row + place))
        put(images / name / f"q{row}.jpg", jpeg(30 + row))
        query = {
            "qry_inst": "<|image_1|> Represent the given image\n",
            "qry_text": f"query {row}",
            "qry_img_path": f"{name}/q{row}.jpg",
        }
        if parser == "image_t2i":
            token = "<|image_1|> " if name in ("WebQA", "EDIS") else ""
            query = {"qry_inst": f"{token}Find it:", "qry_text": f"query {row}", "qry_img_path": ""}
        if parser in ("image_t2i", "image_i2i_vg"):
            captioned = "I,T" in task.direction.split("->")[1]
            texts = [f"caption {row}{place}" if captioned else "" for place in range(3)]
            paths = [f"{name}/{row}{place}.jpg" for place in range(3)]
            target = {"tgt_inst": "<|image_1|> Represent the given image.", "tgt_text": texts, "tgt_img_path": paths}
            ids = (
                paths if parser == "image_t2i" else [f"{path}:{text}" for path, text in zip(paths, texts, strict=True)]
            )
        else:
            ids = [f"label {(row + place) % 3}" for place in range(3)] + ["label 2"] * (name == "Visual7W")
            target = {"tgt_inst": "", "tgt_text": ids, "tgt_img_path": [""] * len(ids)}
        rows.append({**query, **target})
        meant.relevant[str(row)] = {ids[0]: 1.0}
        meant.pools[str(row)] = set(ids)
        meant.pool |= set(ids)
    meant.defects = {"duplicate-candidate": 2} if name == "Visual7W" else {}
    if name in ("WebQA", "EDIS"):
        meant.defects = {"image-token-in-text": 2}
    config(root / task.data["hub"]["repo"], name, "test", rows)
    return meant


def _mmeb_visdoc(root: Path, task: Task) -> Meant:
    folder, split = root / task.data["hub"]["repo"], task.data["hub"]["split"]
    corpus = [{"corpus-id": place, "image": jpeg(60 + place)} for place in range(3)]
    queries = [{"query-id": place, "query": f"which page is {place}?", "language": "english"} for place in range(2)]
    grades = {("0", "0"): 3.0, ("0", "1"): 2.0, ("1", "2"): 1.0}
    qrels = [
        {"query-id": int(query), "corpus-id": int(page), "score": int(grade)} for (query, page), grade in grades.items()
    ]
    qrels.append({"query-id": 1, "corpus-id": 0, "score": 0})
    config(folder, "corpus", split, corpus, ["image"])
    config(folder, "queries", split, queries)
    config(folder, "qrels", split, qrels)
    return Meant({"0": {"0": 3.0, "1": 2.0}, "1": {"2": 1.0}}, {"0", "1", "2"})


def _mmeb_video(root: Path, task: Task) -> Meant:
    parser = task.data["parser"]
    stored = root / "MMEB-V2" / task.data["frames"]
    repository, split = root / task.data["hub"]["repo"], task.data["hub"]["split"]
    writer: Callable[[Path, Task], tuple[Rows, Meant]] = {
        "video_classification": _labels, "ssv2": _labels, "moment_retrieval": _moments, "momentseeker": _momentseeker,
        "mvbench": _questions, "videomme": _questions, "nextqa": _questions, "egoschema": _questions, "activitynetqa": _questions,
    }.get(parser, _retrieval)  # fmt: skip
    rows, meant = writer(stored, task)
    if parser == "mvbench":
        from omnirecall.sources.mmeb_video import MVBENCH

        for subset in MVBENCH:
            table(
                repository / subset / f"{split}-00000-of-00001.parquet",
                [row for row in rows if row["subset"] == subset],
            )
    elif parser == "momentseeker":
        jsonl(repository / f"{split}.jsonl", rows)
    else:
        config(repository, task.data["hub"].get("config", "data"), split, rows)
    return meant


def _labels(stored: Path, task: Task) -> tuple[Rows, Meant]:
    from omnirecall.sources.mmeb_video import LABELS

    ssv2 = task.data["parser"] == "ssv2"
    labels = ["Closing something", "Folding something", "Holding something"]
    if not ssv2:
        labels = json.loads(LABELS.read_text())[task.data["name"]]
    rows, meant = [], Meant(pool=set(labels))
    for row in range(2):
        frames(stored / f"video{row}", row)
        rows.append({"video_id": f"video{row}", "pos_text": labels[row], **({"neg_text": labels} if ssv2 else {})})
        meant.relevant[str(row)] = {labels[row]: 1.0}
        if ssv2:
            meant.pools[str(row)] = set(labels)
    return rows, meant


def _questions(stored: Path, task: Task) -> tuple[Rows, Meant]:
    from omnirecall.sources.mmeb_video import MVBENCH

    parser, rows, meant = task.data["parser"], [], Meant()
    subsets = MVBENCH if parser == "mvbench" else ("",)
    options = ["A. red.", "B. green.", "C. blue.", "D. grey."]
    for number, subset in enumerate(subsets):
        question, folder = f"which colour {number}?", stored / subset
        if parser == "mvbench":
            rows.append(
                {
                    "question": question,
                    "video": "a.mp4",
                    "candidates": ["red", "green", "blue"],
                    "answer": "green",
                    "subset": subset,
                }
            )
            ids, right = ["(A) red", "(B) green", "(C) blue"], "(B) green"
            frames(folder / "a.mp4", number % 5)
        elif parser == "videomme":
            rows.append({"question": question, "videoID": "a", "options": options, "answer": "C"})
            ids, right = options, "C. blue."
        elif parser == "egoschema":
            rows.append({"question": question, "video_idx": "a", "option": options, "answer": "1"})
            ids, right = options, "B. green."
        elif parser == "nextqa":
            ids, right = [f"answer {place}" for place in range(5)], "answer 3"
            rows.append(
                {"question": question, "video": 7, "answer": 3, **{f"a{place}": name for place, name in enumerate(ids)}}
            )
        else:
            rows.append({"question": question, "video_name": "a", "answer": "no"})
            ids, right = ["yes", "no"], "no"
        meant.relevant[str(number)], meant.pools[str(number)] = {right: 1.0}, set(ids)
        meant.pool |= set(ids)
    if parser != "mvbench":
        frames(stored / {"nextqa": "7", "activitynetqa": "v_a"}.get(parser, "a"), 3, 10)
    return rows, meant


def _retrieval(stored: Path, task: Task) -> tuple[Rows, Meant]:
    kind: Callable[[int], dict[str, Any]] = {
        "msrvtt": lambda row: {"video_id": f"v{row}", "video": f"v{row}.mp4", "caption": f"caption {row}"},
        "msvd": lambda row: {"video_id": f"v{row}", "video": f"v{row}.avi", "caption": [f"caption {row}", "another"]},
        "didemo": lambda row: {"video": f"videos/v{row}.mp4", "caption": f"caption {row}"},
        "youcook2": lambda row: {"id": f"v{row}", "video_path": f"v{row}.mp4", "sentence": f"caption {row}"},
        "vatex": lambda row: {"videoID": f"v{row}", "enCap": [f"caption {row}", "another"]},
    }[task.data["parser"]]
    for row in range(3):
        frames(stored / f"v{row}", 5 * row)
    meant = Meant({str(row): {f"v{row}": 1.0} for row in range(3)}, {f"v{row}" for row in range(3)})
    return [kind(row) for row in range(3)], meant


def _moments(stored: Path, task: Task) -> tuple[Rows, Meant]:
    rows, meant = [], Meant()
    for row in range(2):
        clips = ["positive", "negative_1", "negative_2"]
        for place, name in enumerate(["query", *clips]):
            frames(stored / f"film{row}" / name, 4 * row + place, 8)
        rows.append({"query": f"the moment {row}", "video_path": f"somewhere/film{row}.mp4"})
        ids = [f"film{row}/{name}" for name in clips]
        meant.relevant[str(row)], meant.pools[str(row)] = {ids[0]: 1.0}, set(ids)
        meant.pool |= set(ids)
    return rows, meant


def _momentseeker(stored: Path, task: Task) -> tuple[Rows, Meant]:
    rows, meant = [], Meant(defects={"duplicate-row": 1})
    for row, shown in enumerate(["", "picture.jpg", "films/q.mp4"]):
        positives, negatives = [f"films/p{row}.mp4", f"films/r{row}.mp4"], [f"films/n{row}.mp4"]
        for place, name in enumerate(positives + negatives):
            frames(stored / "video_frames" / name.replace("/", "_").removesuffix(".mp4"), 3 * row + place, 4)
        rows.append({
            "query": f"the moment {row}", "input_frames": shown,
            "positive_frames": [{"output_path": name} for name in positives],
            "negative_frames": [{"output_path": name} for name in negatives],
        })  # fmt: skip
        right = [f"films_p{row}", f"films_r{row}"]
        meant.relevant[str(row)] = dict.fromkeys(right, 1.0)
        meant.pools[str(row)] = {*right, f"films_n{row}"}
        meant.pool |= meant.pools[str(row)]
    rows.append(rows[1])
    if task.version == "1800":
        meant.relevant["3"], meant.pools["3"] = meant.relevant["1"], meant.pools["1"]
    put(stored / "query_picture.jpg", jpeg(70))
    frames(stored / "video_frames" / "films_q", 80, 4)
    return rows, meant


# ACM


def write_acm(root: Path, tasks: Sequence[Task]) -> dict[str, Meant]:
    """Four clips, two of them asked about; three composed queries."""
    folder = root / "ACM"
    clips = [f"clip{place}" for place in range(4)]
    for place, name in enumerate(clips):
        put(folder / "media" / "audios" / f"{name}.wav", wav(place))
        put(folder / "media" / "videos" / f"{name}.mp4", clip(place))
        put(folder / "media" / "images" / f"{name}.jpg", jpeg(place))
    paths = {"audio": "audios/{}.wav", "video": "videos/{}.mp4", "image": "images/{}.jpg"}
    rows = [
        {"id": name, **{f"{part}_path": f"media/{path.format(name)}" for part, path in paths.items()}} for name in clips
    ]
    config(folder, "audio_visual_candidates", "test", rows)
    config(folder, "audio_visual_queries", "test", [{"id": name} for name in clips[:2]])
    config(
        folder, "composed_audio_retrieval_candidates", "test",
        [{"audio_id": name, "audio_path": f"media/audios/{name}.wav"} for name in clips],
    )  # fmt: skip
    targets = {"s0": ("clip0", "clip2"), "s1": ("clip0", "clip3"), "s2": ("clip1", "clip2")}
    config(
        folder, "composed_audio_retrieval_queries", "test",
        [
            {"sample_id": name, "modified_text": f"but louder {name}", "src_audio_path": f"media/audios/{source}.wav",
             "tgt_audio_path": f"media/audios/{target}.wav", "tgt_audio_id": target}
            for name, (source, target) in targets.items()
        ],
    )  # fmt: skip
    composed = Meant({name: {target: 1.0} for name, (_, target) in targets.items()}, set(clips))
    paired = Meant({name: {name: 1.0} for name in clips[:2]}, set(clips))
    return {task.name: composed if "text" in task.data["from"] else paired for task in tasks}


# The rest of the OmniRet evaluation


def write_beir(root: Path, tasks: Sequence[Task]) -> dict[str, Meant]:
    """Audio sets as corpus, queries and qrels; video sets as one table of pairs."""
    meant = {}
    for task in tasks:
        folder = root / task.data["hub"]["repo"]
        if task.data.get("pairs"):
            caption = next(task.data[role] for role in ("queries", "candidates") if task.data[role] != "video")
            rows = [{"video": clip(place), caption: f"caption {place}"} for place in range(3)]
            table(folder / "data" / "test-00000-of-00001.parquet", rows, ["video"])
            meant[task.name] = Meant({str(place): {str(place): 1.0} for place in range(3)}, {"0", "1", "2"})
            continue
        sounds = [
            {"id": f"a{place}", "modality": "audio", "audio": starter("audio")[place].read_bytes()}
            for place in range(2)
        ]
        texts = [{"id": f"t{place}", "modality": "text", "text": f"a sound, {place}"} for place in range(4)]
        pairs = [(f"a{place // 2}", f"t{place}") for place in range(4)]
        to_text = task.direction == "A->T"
        pairs = pairs if to_text else [(text, sound) for sound, text in pairs]
        queries, corpus = (sounds, texts) if to_text else (texts, sounds)
        config(folder, "corpus", "corpus", corpus, ["audio"])
        config(folder, "query", "test", queries, ["audio"])
        config(folder, "qrels", "test", [{"query-id": one, "corpus-id": other, "score": 1} for one, other in pairs])
        relevant: dict[str, dict[str, float]] = {}
        for one, other in pairs:
            relevant.setdefault(one, {})[other] = 1.0
        meant[task.name] = Meant(relevant, {row["id"] for row in corpus})
    return meant


def write_covr(root: Path, tasks: Sequence[Task]) -> dict[str, Meant]:
    """Three triplets; the first one's reference is the second one's target, and is masked."""
    (task,) = tasks
    folder = root / task.data["root"]
    names = [f"00{place}/{place}" for place in range(4)]
    for place, name in enumerate(names):
        put(folder / task.data["videos"] / f"{name}.mp4", clip(place))
    triplets = [(names[1], names[0]), (names[0], names[1]), (names[3], names[2])]
    path = folder / task.data["annotations"]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["txt1", "txt2", "edit", "pth1", "pth2", "scores"])
        writer.writerows(
            ["", "", f"make it {place}", source, target, "[]"] for place, (source, target) in enumerate(triplets)
        )
    return {
        task.name: Meant(
            {str(place): {target: 1.0} for place, (_, target) in enumerate(triplets)},
            {target for _, target in triplets},
            exclude={"0": {names[1]}, "1": {names[0]}},
        )
    }


WRITERS: dict[str, Callable[[Path, Sequence[Task]], dict[str, Meant]]] = {
    "uvrb": write_uvrb,
    "mbeir": write_mbeir,
    "mmeb-image": write_mmeb,
    "mmeb-video": write_mmeb,
    "mmeb-visdoc": write_mmeb,
    "acm": write_acm,
    "beir-parquet": write_beir,
    "covr": write_covr,
}


def write(root: Path, tasks: Iterable[Task]) -> dict[str, Meant]:
    """The miniature of every task, each in its layout."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.data["layout"], []).append(task)
    meant: dict[str, Meant] = {}
    for layout, some in groups.items():
        meant |= WRITERS[layout](root, some)
    return meant


def fresh(folder: Path, made: Path) -> Path:
    """A copy of a miniature that may be spoiled."""
    return Path(shutil.copytree(made, folder))


def assert_meant(data: TaskData, meant: Meant, name: str) -> None:
    """Assert that what was read is what the writer meant: judged pairs, pools, exclusions and handled defects."""
    judged = {query: {one: grade for one, grade in row.items() if grade > 0} for query, row in data.judgments.items()}
    assert judged == meant.relevant, name
    assert {item.id for item in data.queries} == set(meant.relevant), name
    assert {item.id for item in data.candidates} == meant.pool, name
    assert {query: set(pool) for query, pool in (data.pools or {}).items()} == meant.pools, name
    assert {query: set(names) for query, names in data.exclude.items()} == meant.exclude, name
    assert dict(data.defects) == meant.defects, name


def assert_ran(run: Mapping[str, Any], meant: Mapping[str, Meant]) -> None:
    """Assert that a run of a miniature has a value for every task, over the queries and pools that the writer meant."""
    assert set(run["tasks"]) == set(meant)
    for name, task in run["tasks"].items():
        assert task["status"] == "ok", (name, task["reason"])
        assert task["queries"] == len(meant[name].relevant), name
        assert task["pool"] == len(meant[name].pool), name
        table = pq.read_table(Path(run["folder"]) / "tasks" / f"{name}.parquet").to_pylist()
        assert {row["query_id"]: dict(zip(row["relevant_ids"], row["grades"], strict=True)) for row in table} == meant[
            name
        ].relevant
        for row in table:
            pool = meant[name].pools.get(row["query_id"], meant[name].pool) - meant[name].exclude.get(
                row["query_id"], set()
            )
            assert row["pool_size"] == len(pool), name
            assert set(row["top_ids"]) <= pool, name
    assert all(mean["complete"] for mean in run["means"].values())
