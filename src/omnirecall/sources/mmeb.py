"""MMEB-V2's image tasks, and what its image, video and document readers share.

Rows hold a query and its own list of candidates. A candidate's id is the name by which the authors' code keeps it: two entries of
one name are one candidate, the first. Texts are assembled as that code's parsers do, byte for byte, in ``Item.literal``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnirecall.errors import UserError
from omnirecall.protocol.items import TOKENS, Item, TaskData
from omnirecall.protocol.suites import Task
from omnirecall.sources.tables import (
    first_folder,
    hub,
    key,
    media_root,
    rows_folder,
    split_of,
    table_files,
    table_rows,
    under,
)

IMAGE, VIDEO = TOKENS["image"], TOKENS["video"]
IMAGE_PARSERS = ("image_cls", "image_i2t", "image_qa", "image_t2i", "image_i2i_vg")


@dataclass(slots=True)
class Gathered:
    """Rows as they are read: queries, their lists, and each distinct candidate once."""

    queries: list[Item] = field(default_factory=list)
    candidates: dict[str, Item] = field(default_factory=dict)
    judgments: dict[str, dict[str, float]] = field(default_factory=dict)
    pools: dict[str, list[str]] = field(default_factory=dict)
    defects: Counter[str] = field(default_factory=Counter)

    def add(self, query: Item, listed: Sequence[Item], relevant: Iterable[str]) -> None:
        """One row. An id that the list repeats is counted and stands once."""
        pool: dict[str, None] = {}
        for item in listed:
            pool[self.candidates.setdefault(item.id, item).id] = None
        self.defects["duplicate-candidate"] += len(listed) - len(pool)
        self.queries.append(query)
        self.pools[query.id] = list(pool)
        self.judgments[query.id] = dict.fromkeys(relevant, 1.0)

    def data(self, task: Task) -> TaskData:
        """The rows with the lists as pools if the card wants pools per query, and one pool otherwise."""
        return TaskData(
            queries=self.queries,
            candidates=list(self.candidates.values()),
            judgments=self.judgments,
            pools=self.pools if task.pool == "per-query" else None,
            defects=+self.defects,
        )


def spoken(instruction: str, text: str = "", medium: str = "") -> str:
    """The instruction, then the text, with the medium's token before both (``process_input_text``)."""
    prompt = f"{instruction} {text}" if text else instruction
    return f"{medium} {prompt}" if medium else prompt


def row_files(root: Path, task: Task, config: str | None = None) -> list[Path]:
    """The files of the task's rows."""
    return table_files(rows_folder(root, task), hub(task, "config") if config is None else config, split_of(task), task)


def read_images(root: Path, task: Task) -> TaskData:
    """The rows of an image task; index 0 of the target lists is the positive."""
    parser, name = key(task, "parser"), key(task, "name")
    if parser not in IMAGE_PARSERS:
        raise UserError(f"task {task.name}: unknown parser {parser}; there are {', '.join(IMAGE_PARSERS)}")
    files = row_files(root, task, hub(task, "config") or name)
    folder = media_root(root, task) / key(task, "images", "image-tasks")
    first_folder([folder], task)
    gathered = Gathered()
    columns = ["qry_inst", "qry_text", "qry_img_path", "tgt_text"]
    wants_images = parser in ("image_t2i", "image_i2i_vg")
    for number, row in enumerate(table_rows(files, columns + ["tgt_inst", "tgt_img_path"] * wants_images)):
        place = f"{files[0].parent}: row {number}"
        listed = list(_image_candidates(row, parser, folder, place)) if wants_images else _texts(row["tgt_text"])
        if not listed:
            raise UserError(f"{place}: the list of targets is empty; fetch the file again")
        query = _image_query(row, parser, name, folder, place)
        gathered.add(
            _with(query, str(number), f"{task.dataset or name}/{_source(row, wants_images)}"), listed, [listed[0].id]
        )
        gathered.defects["image-token-in-text"] += query.image is None and IMAGE in row["qry_inst"]
    return gathered.data(task)


def _with(query: Item, name: str, cluster: str) -> Item:
    return Item(name, query.text, query.image, instruction=query.instruction, cluster=cluster, literal=query.literal)


def _source(row: Mapping[str, Any], wants_images: bool) -> str:
    return str(row["qry_img_path"] or (row["tgt_img_path"][0] if wants_images else ""))


def _texts(texts: Iterable[str]) -> list[Item]:
    return [Item(text, text=text, instruction="") for text in texts]


def _bare(instruction: str) -> str:
    return instruction.replace(IMAGE, "")


def _image_query(row: Mapping[str, Any], parser: str, name: str, folder: Path, place: str) -> Item:
    """The query of a row, and its text as image_cls_dataset.py, image_qa_dataset.py and image_t2i_eval.py make it."""
    instruction, text = row["qry_inst"], row["qry_text"] or ""
    if parser == "image_t2i":
        literal = f"{instruction} {text}\n" + ("\n" if name == "VisDial" else "")
        image = None
    else:
        own = _bare(instruction)
        own = f"\n{own.strip()}" if parser in ("image_qa", "image_i2i_vg") else own
        literal = spoken(own, text, IMAGE).replace(" \n", "\n") + "\n"
        image = under(folder, row["qry_img_path"] or "", place)
    return Item("", text.strip() or None, image, instruction=_bare(instruction).strip(), literal=literal)


def _image_candidates(row: Mapping[str, Any], parser: str, folder: Path, place: str) -> Iterator[Item]:
    """The targets of a row, by image, or by image and caption, as image_t2i_eval.py and image_i2i_vg_dataset.py make them."""
    instruction, captions, paths = _bare(row["tgt_inst"]), row["tgt_text"] or [""], row["tgt_img_path"]
    captioned = bool(captions[0].strip())
    if len(captions) < len(paths):
        if captioned or parser == "image_i2i_vg":
            raise UserError(f"{place}: {len(captions)} captions for {len(paths)} images; fetch the file again")
        captions = [""] * len(paths)
    for path, caption in zip(paths, captions, strict=False):
        literal = spoken(f"{instruction} {caption}" if captioned else instruction, medium=IMAGE).replace(" \n", "\n")
        yield Item(
            path if parser == "image_t2i" else f"{path}:" + caption.strip('"'),
            text=(caption if captioned else "").strip() or None,
            image=under(folder, path, place),
            instruction=instruction.strip(),
            literal=literal if parser == "image_i2i_vg" and not captioned else f"{literal}\n",
        )
