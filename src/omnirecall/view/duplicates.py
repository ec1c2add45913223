"""False negatives: candidates ranked above a relevant one although they hold what it holds.

Two items are the same where each of their parts is: bytes of media, words of texts. They are near where each part is the same or
near: texts whose words are the same in another order; pictures of like shape that, made 32 by 32, differ nowhere by more than NEAR
(any channel, means over two by two); videos of which this holds for the first, middle and last frame that the model saw; sounds
whose decoded samples are equal.

NEAR was measured on the 372 renders of the starter suite: copies at JPEG quality 50, at 3/4 and at twice the size differ by at most
22, 17 for 19 in 20 of the worst kind; of the 69,006 pairs of different renders two differ by less than 46.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
import sqlite3
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from omnirecall.embedding.plan import media_digest
from omnirecall.errors import UserError
from omnirecall.protocol.items import MediaRef
from omnirecall.protocol.suites import MediaPolicy
from omnirecall.view.items import Index, ShownItem
from omnirecall.view.media import allowed

NEAR = 20.0
"""Of 255."""
SIDE = 32
"""Pixels of the small pictures that are compared."""
MOST_RELEVANT = 5
"""Relevant candidates of one query that are compared, the highest first."""
BATCH = 1024
COLUMNS = (
    "query",
    "candidate",
    "candidate_rank",
    "candidate_score",
    "relevant",
    "relevant_rank",
    "relevant_score",
    "kind",
    "how",
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A candidate above a relevant one of the same content. ``row``: the query's; ``kind``: same or near; ``how``: by what."""

    row: int
    query: str
    candidate: str
    candidate_rank: int
    candidate_score: float
    relevant: str
    relevant_rank: int
    relevant_score: float
    kind: str
    how: str


@dataclass(slots=True)
class Contents:
    """What items are made of, each medium looked at once."""

    index: Index
    root: Path
    policy: MediaPolicy
    items: dict[str, ShownItem] = field(default_factory=dict)
    _digests: dict[str, str] = field(default_factory=dict)
    _looks: dict[tuple[str, str], Any] = field(default_factory=dict)

    def compare(self, one: str, other: str) -> tuple[str, str]:
        """(same, near or "", by what) of two candidates."""
        a, b = self.items.get(one), self.items.get(other)
        if a is None or b is None or a.parts != b.parts:
            return "", ""
        found = [self._texts(a.text, b.text)] if a.text or b.text else []
        for part in a.media:
            if found and not found[-1][0]:
                return "", ""
            found.append(self._media(part, a.media[part], b.media[part]))
        if not found or not all(kind for kind, _ in found):
            return "", ""
        return "same" if all(kind == "same" for kind, _ in found) else "near", "; ".join(how for _, how in found)

    @staticmethod
    def _texts(one: str | None, other: str | None) -> tuple[str, str]:
        if one == other:
            return "same", "text equal"
        a, b = words(one or ""), words(other or "")
        if a and a == b:
            return "same", "text equal but for case, marks and blanks"
        return ("near", "text of the same words") if a and sorted(a) == sorted(b) else ("", "")

    def _media(self, part: str, one: tuple[str, MediaRef], other: tuple[str, MediaRef]) -> tuple[str, str]:
        if one[0] == other[0] or self._digest(*one) == self._digest(*other) != "":
            return "same", f"{part} equal"
        a, b = self._look(part, *one), self._look(part, *other)
        if a is None or b is None:
            return "", ""
        if part == "audio":
            return ("near", "audio equal once decoded") if a == b else ("", "")
        if len(a) != len(b):
            return "", ""
        most = max(difference(x, y) for x, y in zip(a, b, strict=True))
        return ("near", f"{part} near ({most:.0f} of 255)") if most <= NEAR else ("", "")

    def _digest(self, name: str, ref: MediaRef) -> str:
        if name not in self._digests:
            try:
                self._digests[name] = media_digest(allowed(ref, self.root))
            except (UserError, OSError):
                self._digests[name] = ""
        return self._digests[name]

    def _look(self, part: str, name: str, ref: MediaRef) -> Any:
        if (part, name) not in self._looks:
            try:
                self._looks[part, name] = look(part, allowed(ref, self.root), self.policy)
            except Exception:  # a file may be damaged in any way; it then resembles nothing
                self._looks[part, name] = None
        return self._looks[part, name]


@lru_cache(maxsize=200_000)
def words(text: str) -> tuple[str, ...]:
    """The words of a text: compatibility forms made one, case folded, marks and blanks dropped."""
    return tuple(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


def look(part: str, ref: MediaRef, policy: MediaPolicy) -> Any:
    """What a medium is compared by: its pictures made small, or the hash of its samples."""
    from omnirecall.media.audio import load_samples
    from omnirecall.media.image import load_image
    from omnirecall.media.video import load_frames
    from omnirecall.sources.packed import unpacked

    ref = unpacked(ref)
    if part == "image":
        return [small(load_image(ref, ""))]
    if part == "video":
        from PIL import Image

        pixels = load_frames(ref, policy, "").pixels
        return [small(Image.fromarray(pixels[place])) for place in (0, len(pixels) // 2, len(pixels) - 1)]
    samples = load_samples(ref, 16000, "", policy)
    return hashlib.blake2b(samples.values.tobytes(), digest_size=16).hexdigest()


def small(picture: Any) -> tuple[float, Any]:
    """(width over height, the picture made SIDE by SIDE as float32 of shape (SIDE, SIDE, 3))."""
    from PIL import Image

    pixels = np.asarray(picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX), np.float32)
    return picture.width / picture.height, pixels


def difference(one: tuple[float, Any], other: tuple[float, Any]) -> float:
    """The largest difference of two small pictures in any channel, means over two by two pixels; 255 for another shape."""
    if not 0.95 < one[0] / other[0] < 1.05:
        return 255.0
    most = np.abs(one[1] - other[1]).max(2)
    return float(most.reshape(SIDE // 2, 2, SIDE // 2, 2).mean((1, 3)).max())


def write_duplicates(ranks: Path, items: Path, root: Path, policy: MediaPolicy, out: Path) -> None:
    """Go through a task's ranks and write the pairs found as a database; how far it is stands in a file beside it."""
    import pyarrow.parquet as pq

    temporary, said = out.with_suffix(".tmp"), out.with_suffix(".progress")
    temporary.unlink(missing_ok=True)
    contents = Contents(Index(items), root, policy)
    with closing(sqlite3.connect(temporary)) as found, pq.ParquetFile(ranks) as file:
        found.execute("pragma journal_mode = off")
        found.execute(f"create table pair (row, {', '.join(COLUMNS)})")
        total, done = file.metadata.num_rows, 0
        columns = ["query_id", "relevant_ids", "greater", "positive_scores", "top_ids", "top_scores"]
        for batch in file.iter_batches(BATCH, columns=columns):
            rows = batch.to_pylist()
            wanted = {
                name for row in rows for name in (*row["top_ids"], *row["relevant_ids"][:50])
            } - contents.items.keys()
            contents.items |= contents.index.items("c", wanted)
            for place, row in enumerate(rows):
                for pair in _pairs(done + place, row, contents):
                    values = [getattr(pair, column) for column in ("row", *COLUMNS)]
                    found.execute(f"insert into pair values ({', '.join('?' * len(values))})", values)
                if place % 64 == 0:
                    said.write_text(f"{done + place} {total}")
            done += len(rows)
        found.commit()
    temporary.replace(out)
    said.unlink(missing_ok=True)


def _pairs(place: int, row: dict[str, Any], contents: Contents) -> Iterator[Pair]:
    ranked = [
        (greater, name, score)
        for name, greater, score in zip(row["relevant_ids"], row["greater"], row["positive_scores"], strict=True)
        if greater >= 0
    ]
    relevant = set(row["relevant_ids"])
    for greater, name, score in sorted(ranked)[:MOST_RELEVANT]:
        for rank, (candidate, its_score) in enumerate(zip(row["top_ids"], row["top_scores"], strict=True), 1):
            if rank > greater:
                break
            if candidate not in relevant:
                kind, how = contents.compare(candidate, name)
                if kind:
                    yield Pair(place, row["query_id"], candidate, rank, its_score, name, greater + 1, score, kind, how)


class Found:
    """The pairs that a finished search found."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)

    def counts(self) -> dict[str, int]:
        """How many pairs there are, of which kind, and in how many queries."""
        with closing(self._open()) as found:
            kinds = dict(found.execute("select kind, count(*) from pair group by kind"))
            queries = found.execute("select count(distinct row) from pair").fetchone()[0]
        return {"same": kinds.get("same", 0), "near": kinds.get("near", 0), "queries": queries}

    def pairs(self, first: int = 0, most: int = -1) -> list[Pair]:
        """Pairs in the order of same before near, then of the queries."""
        with closing(self._open()) as found:
            rows = found.execute(
                f"select row, {', '.join(COLUMNS)} from pair order by kind = 'near', row, candidate_rank limit ? offset ?",
                (most, first),
            )
            return [Pair(*row) for row in rows]


def as_csv(pairs: list[Pair]) -> str:
    """One line a pair, with the names of COLUMNS."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([getattr(pair, column) for column in COLUMNS] for pair in pairs)
    return out.getvalue()


def as_rows(pairs: list[Pair]) -> list[dict[str, Any]]:
    """The same as dictionaries."""
    return [{column: getattr(pair, column) for column in COLUMNS} for pair in pairs]
