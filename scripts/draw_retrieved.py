"""Draw what a run retrieved: a few queries of the starter suite beside their first pictures, the relevant ones framed.

``python scripts/draw_retrieved.py RUN OUT.png``
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow.parquet as pq
from PIL import Image, ImageDraw, ImageFont

from omnirecall.media.image import load_image
from omnirecall.media.video import load_frames
from omnirecall.protocol.items import Item
from omnirecall.protocol.suites import MediaPolicy
from omnirecall.results.record import read_run
from omnirecall.sources.load import data_root, load_suite, read_task

TILE, GAP, LABEL, SHOWN = 96, 10, 250, 6
RELEVANT, OTHER = "#1a7f37", "#d0d7de"


def main() -> None:
    """Read a run and draw six rows of three tasks."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("run", type=Path)
    arguments.add_argument("out", type=Path)
    given = arguments.parse_args()
    rows = [
        row
        for task, wanted in (("text-to-image", (2, 1)), ("image-to-video", (1, 1)), ("image+text-to-image", (1, 1)))
        for row in chosen_rows(given.run, task, *wanted)
    ]
    sheet = Image.new("RGB", (LABEL + (SHOWN + 1) * (TILE + GAP) + GAP, len(rows) * (TILE + 2 * GAP) + GAP), "white")
    for number, (label, query, candidates, relevant) in enumerate(rows):
        draw_row(sheet, GAP + number * (TILE + 2 * GAP), label, query, candidates, relevant)
    sheet.save(given.out, optimize=True)


def chosen_rows(run: Path, task: str, hits: int, misses: int) -> list[tuple[str, Item, list[Item], set[str]]]:
    """The first ``hits`` queries answered at rank 1 and the first ``misses`` that were not, with their candidates."""
    suite = load_suite(read_run(run).suite)
    data = read_task(data_root(suite, None), suite.task(task))
    queries = {item.id: item for item in data.queries}
    candidates = {item.id: item for item in data.candidates}
    rows: dict[bool, list[tuple[str, Item, list[Item], set[str]]]] = {True: [], False: []}
    for entry in pq.read_table(run / "tasks" / f"{task}.parquet").to_pylist():
        relevant = set(entry["relevant_ids"])
        query = queries[entry["query_id"]]
        label = query.text or task
        rows[entry["top_ids"][0] in relevant].append(
            (label, query, [candidates[name] for name in entry["top_ids"][:SHOWN]], relevant)
        )
    return rows[True][:hits] + rows[False][:misses]


def draw_row(sheet: Image.Image, top: int, label: str, query: Item, candidates: list[Item], relevant: set[str]) -> None:
    """Label, the query's picture if it has one, then the candidates in order."""
    pen = ImageDraw.Draw(sheet)
    pen.text((GAP, top + TILE // 2 - 10), label[:30], fill="black", font=ImageFont.load_default(17))
    if query.image is not None:
        sheet.paste(tile(query), (LABEL - TILE // 2, top))
    for place, item in enumerate(candidates):
        left = LABEL + TILE + GAP + place * (TILE + GAP)
        sheet.paste(tile(item), (left, top))
        frame = RELEVANT if item.id in relevant else OTHER
        pen.rectangle((left - 3, top - 3, left + TILE + 2, top + TILE + 2), outline=frame, width=3)


def tile(item: Item) -> Image.Image:
    """The item's picture, or its video's middle frame, in a square."""
    if item.image is not None:
        picture = load_image(item.image, item.id)
    elif item.video is not None:
        picture = Image.fromarray(load_frames(item.video, MediaPolicy(frames=3), item.id).pixels[1])
    else:
        raise SystemExit(f"{item.id} has neither picture nor video")
    return picture.resize((TILE, TILE), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    main()
