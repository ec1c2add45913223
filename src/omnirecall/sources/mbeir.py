"""The layout of M-BEIR: ``query/``, ``cand_pool/``, ``qrels/`` and ``instructions/``, media by path."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from omnirecall.errors import UserError
from omnirecall.protocol.items import Item, TaskData
from omnirecall.protocol.suites import Task
from omnirecall.sources.jsonl_items import JsonlItems
from omnirecall.sources.qrels import numbered_lines, read_qrels
from omnirecall.sources.tables import jsonl_rows, key, media_root, needed_file, split_of, under

CANDIDATE_MODALITY = {
    0: "image",
    1: "text",
    2: "image,text",
    3: "text",
    4: "image",
    6: "text",
    7: "image",
    8: "image,text",
}
"""By UniIR's task id (src/data/preprocessing/utils.py, MBEIR_TASK)."""


class _Query(msgspec.Struct):
    qid: str
    query_modality: str
    query_txt: str | None = None
    query_img_path: str | None = None


class _Candidate(msgspec.Struct):
    did: str
    modality: str
    txt: str | None = None
    img_path: str | None = None


def read_task(root: Path, task: Task) -> TaskData:
    """The rows of one of the sixteen tasks, on its local pool or, with ``data.pool = "union"``, on the union of all."""
    folder, name, split = media_root(root, task), key(task, "name"), split_of(task)
    union = key(task, "pool", "local") == "union"
    pool = f"global/mbeir_union_{split}" if union else f"local/mbeir_{key(task, 'pool_name', name)}"
    queries = needed_file(folder / "query" / split / f"mbeir_{name}_{split}.jsonl", task)
    qrels = needed_file(folder / "qrels" / split / f"mbeir_{name}_{split}_qrels.txt", task)
    candidates = needed_file(folder / "cand_pool" / f"{pool}_cand_pool.jsonl", task)
    prompts = read_prompts(needed_file(folder / "instructions" / "query_instructions.tsv", task), task)
    items = []
    empty = 0
    target = CANDIDATE_MODALITY[int(task.data["task_id"])]
    for number, row in jsonl_rows(queries, _Query):
        place = f"{queries}: line {number}: item {row.qid}"
        source = (row.qid.split(":")[0], row.query_modality, target)
        if source not in prompts:
            raise UserError(f"{place}: query_instructions.tsv has no prompt for {', '.join(source)}; fetch it again")
        text, image = format_string(row.query_txt), row.query_img_path
        empty += "text" in row.query_modality and not text
        items.append(
            Item(
                row.qid,
                text=text if text or not image else None,
                image=under(folder, image, place) if image else None,
                instruction=format_string(prompts[source]),
                literal=format_string(f"{format_string(prompts[source])} {row.query_txt or ''}"),
                cluster=f"{task.dataset}/{image}" if image else None,
            )
        )
    return TaskData(
        queries=items,
        candidates=_pool(folder, candidates, candidates.stat().st_mtime_ns),
        judgments=read_qrels(qrels, columns=5),
        defects={"empty-text": empty} if empty else {},
    )


@lru_cache(maxsize=1)
def _pool(folder: Path, path: Path, changed: int) -> JsonlItems[_Candidate]:
    """A pool; the last one is kept, since the tasks of a union share it."""
    return JsonlItems(path, _Candidate, _Candidates(folder, path))


class _Candidates:
    """Rows of a pool as items: UniIR's text, and no instruction."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.folder, self.path = folder, path

    def __call__(self, row: _Candidate) -> Item:
        text = format_string(row.txt)
        image = under(self.folder, row.img_path, self.path, row.did) if row.img_path else None
        return Item(row.did, text=text if text or image is None else None, image=image, instruction="")


def read_prompts(path: Path, task: Task) -> dict[tuple[str, str, str], str]:
    """The prompt of each (data set id, query modality, candidate modality): the first, or the one that ``data.prompt`` counts."""
    wanted = int(task.data.get("prompt", 1))
    prompts = {}
    for number, line in numbered_lines(path):
        fields = line.strip().split("\t")
        if number == 1:
            continue
        given = [prompt for prompt in fields[4:] if prompt]
        if len(given) < wanted:
            raise UserError(
                f"{path}: line {number}: {len(fields)} columns with {len(given)} prompts, and prompt {wanted} is wanted; they"
                f" are query_modality, cand_modality, dataset_name, dataset_id and the prompts"
            )
        prompts[fields[3], fields[0], fields[1]] = given[wanted - 1]
    return prompts


def format_string(text: str | None) -> str:
    """UniIR's clean-up of a text: no carriage returns, spaces or quotes around it, a capital first and a full stop last."""
    text = (text or "").replace("\r", "").strip().strip('"')
    if not text:
        return text
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".?!" else f"{text}."
