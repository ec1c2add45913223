"""Try a model before a long run: a few items of the starter suite in every combination that it claims to embed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from omnirecall.embedding.pipeline import Sizes, encoded, picked
from omnirecall.errors import RunError, UserError
from omnirecall.media.decode import decode_item
from omnirecall.media.types import DecodedItem
from omnirecall.models.base import Embedder, Role
from omnirecall.protocol.items import MODALITIES, Item
from omnirecall.protocol.suites import MediaPolicy
from omnirecall.ranking import score_pairs
from omnirecall.ranking.inputs import widen
from omnirecall.sources.load import data_root, load_suite, read_task

PAIRS = {"text": 12, "image": 12, "video": 12, "audio": 6}
"""Matched pairs of a direction, by the modality of its candidates; sound takes models longest."""
SAME = 1e-5
ALIKE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}
"""By the vectors' dtype: how far 1 - cosine of one item may lie from 0 when other items are in its batch."""
CLEAR = 2.0
"""Matched pairs must score above mismatched ones by so many standard errors; by chance (Student's t) one direction in 28 does with
12 pairs, and one in 20 with 6."""
DIRECTIONS = {
    "text-to-image": ("text", "image"),
    "text-to-video": ("text", "video"),
    "image-to-video": ("image", "video"),
    "text-to-speech": ("text", "audio"),
    "text-to-text": ("text", "text"),
}
"""Starter tasks to the modalities of their queries and candidates."""
INSTRUCTIONS = ("Find what shows the same thing.", "")


class Check(msgspec.Struct, frozen=True):
    """One thing that was tried with one combination of modalities or one direction, and what was found."""

    of: str
    check: str
    passed: bool
    found: str


def try_model(model: Embedder, advance: Callable[[int], None] = lambda _: None) -> list[Check]:
    """Every check of every combination and direction that the model claims; ``advance`` is told of each one done.

    What the model raises is a check that did not pass. UserError where it claims nothing.
    """
    claimed = [parts for parts in _combinations() if model.supports(frozenset(parts))]
    if not claimed:
        raise UserError(f"model {model.name}: claims no modality or combination")
    samples = _Samples(model)
    found: list[Check] = []
    for parts in claimed:
        found += _guarded("+".join(parts), _combination, model, samples.items(parts))
        advance(1)
    for name, sides in DIRECTIONS.items():
        if all(model.supports({side}) for side in sides):
            found += _guarded(" to ".join(sides), _direction, model, samples.pairs(name, *sides))
        advance(1)
    return found


def steps(model: Embedder) -> int:
    """How many steps ``advance`` is told of."""
    return sum(model.supports(frozenset(parts)) for parts in _combinations()) + len(DIRECTIONS)


def _combinations() -> Iterator[tuple[str, ...]]:
    for size in range(1, len(MODALITIES) + 1):
        yield from combinations(MODALITIES, size)


class _Samples:
    """Items of the starter suite, decoded for a model."""

    def __init__(self, model: Embedder) -> None:
        self.model = model
        self.suite = load_suite("starter")
        self.root = data_root(self.suite, None)

    def pairs(self, task: str, query: str, candidate: str) -> list[tuple[DecodedItem, DecodedItem]]:
        """The first queries of a task, each with a relevant candidate, no candidate twice; as many as PAIRS says."""
        data = read_task(self.root, next(one for one in self.suite.tasks if one.name == task))
        by_id = {item.id: item for item in data.candidates}
        found: list[tuple[DecodedItem, DecodedItem]] = []
        used: set[str] = set()
        for item in data.queries:
            relevant = next(
                (name for name, grade in data.judgments[item.id].items() if grade > 0 and name not in used), None
            )
            if relevant is not None and len(found) < PAIRS[candidate]:
                used.add(relevant)
                found.append((self._decoded(item, {query}), self._decoded(by_id[relevant], {candidate})))
        return found

    def items(self, parts: Sequence[str]) -> list[DecodedItem]:
        """Two items with exactly these parts, of two different things."""
        sources = {
            "text": "text-to-image",
            "image": "image-to-video",
            "video": "video-to-text",
            "audio": "speech-to-text",
        }
        made = [Item("first"), Item("second")]
        for part in parts:
            queries = read_task(
                self.root, next(task for task in self.suite.tasks if task.name == sources[part])
            ).queries
            made = [replace(item, **{part: getattr(queries[3 * row], part)}) for row, item in enumerate(made)]
        return [self._decoded(item, set(parts)) for item in made]

    def _decoded(self, item: Item, parts: set[str]) -> DecodedItem:
        left_out: dict[str, Any] = {part: None for part in MODALITIES if part not in parts}
        kept = replace(item, **left_out)
        return decode_item(kept, MediaPolicy(), self.model.sampling_rate, "")


def _guarded(of: str, work: Callable[..., Iterator[Check]], model: Embedder, items: Any) -> Iterator[Check]:
    """The checks, up to the first at which the model fails altogether."""
    try:
        yield from work(of, model, items)
    except (UserError, RunError) as error:
        yield Check(of, "embeds", False, str(error))
    except Exception as error:  # whatever a model raises is what is wanted here
        yield Check(of, "embeds", False, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")


def _embed(model: Embedder, items: Sequence[DecodedItem], role: Role = "query", instruction: str = "") -> Any:
    spoken = instruction if model.default_prompt == "model" else ""
    return encoded(model, [replace(item, instruction=spoken) for item in items], role, Sizes()).vectors


def _combination(of: str, model: Embedder, items: list[DecodedItem]) -> Iterator[Check]:
    first, second = items
    batch = _embed(model, [first, second, first])  # which no sorting leaves in its order
    norms, kind = _norms(batch), _dtype(batch)
    yield Check(
        of, "embeds", True, f"{kind}, {model.dimension} dimensions, norms {norms.min():.3g} to {norms.max():.3g}"
    )
    inside = _cosines(batch, batch)
    distinct = 1 - float(inside[0, 1])
    yield Check(of, "different items differ", distinct > SAME, f"1 - cosine {distinct:.1e}")
    alone = _embed(model, [second])
    near = _cosines(alone, batch)[0]
    kept = bool(near[1] > near[0] and near[1] > near[2] and inside[2, 0] > inside[2, 1])
    yield Check(of, "order kept", kept, "" if kept else "rows do not follow the order of the items")
    apart = _apart(picked(batch, np.array([1])), alone)
    again = apart if apart <= SAME else _apart(alone, _embed(model, [second]))
    yield Check(of, "same again", again <= SAME, f"1 - cosine {again:.1e}, in another call")
    yield Check(of, "alone as in a batch", apart <= ALIKE[kind], f"1 - cosine {apart:.1e}, at most {ALIKE[kind]:.0e}")
    if len(first.modalities) > 1 and model.default_prompt != "model":
        return  # without instructions, each part alone tells whether roles do
    query = _embed(model, [second], "query", INSTRUCTIONS[0]) if model.default_prompt == "model" else alone
    roles = _apart(query, _embed(model, [second], "candidate", INSTRUCTIONS[1]))
    unused = model.symmetric and any("instructions are not used" in note.lower() for note in model.notes)
    if (model.default_prompt == "model" and not unused) or not model.symmetric:
        yield Check(of, "instruction or role tells", roles > SAME, f"1 - cosine {roles:.1e}")
    else:
        yield Check(of, "roles are alike", roles <= SAME, f"1 - cosine {roles:.1e}")


def _direction(of: str, model: Embedder, pairs: list[tuple[DecodedItem, DecodedItem]]) -> Iterator[Check]:
    n = len(pairs)
    queries = _embed(model, [query for query, _ in pairs], "query", INSTRUCTIONS[0])
    # The first comes last, so that a model that turns its batches round does not turn both sides alike.
    candidates = _embed(model, [candidate for _, candidate in (*pairs[1:], pairs[0])], "candidate", INSTRUCTIONS[1])
    scores = np.roll(_cosines(queries, candidates), 1, axis=1)
    matched = np.diag(scores)
    others = (scores.sum(axis=1) - matched) / (n - 1)
    gain = matched - others
    error = float(gain.std(ddof=1)) / n**0.5
    clear = float(gain.mean()) / error if error > 0 else 0.0
    first = int((scores.argmax(axis=1) == np.arange(n)).sum())
    said = f"matched {matched.mean():.3f}, mismatched {others.mean():.3f}, {clear:.1f} standard errors; {first} of {n} first"
    yield Check(of, "matched above mismatched", clear >= CLEAR, said)


def _cosines(queries: Any, candidates: Any) -> NDArray[np.float64]:
    """Every query's scores with every candidate, (n, m)."""
    n, m = _count(queries), _count(candidates)
    return score_pairs(queries, candidates, [list(range(m))] * n).scores.reshape(n, m)


def _apart(one: Any, other: Any) -> float:
    """The largest 1 - cosine of the same item's vectors."""
    return float(np.max(np.abs(1 - np.diag(_cosines(one, other)) / np.diag(_cosines(one, one)))))


def _count(vectors: Any) -> int:
    return len(vectors.offsets) - 1 if hasattr(vectors, "offsets") else len(_matrix(vectors))


def _matrix(vectors: Any) -> Any:
    values = getattr(vectors, "values", vectors)
    return getattr(values, "bits", values)


def _dtype(vectors: Any) -> str:
    return {"uint16": "bfloat16"}.get(str(_matrix(vectors).dtype), str(_matrix(vectors).dtype))


def _norms(vectors: Any) -> NDArray[np.float64]:
    norms: NDArray[np.float64] = np.linalg.norm(widen(_matrix(vectors)).astype(np.float64), axis=1)
    return norms


def trial_text(name: str, checks: Sequence[Check]) -> str:
    """The checks as a table, and how many passed."""
    of, check = (
        max([len(word), *(len(text) for text in texts)])
        for word, texts in (("of", [one.of for one in checks]), ("check", [one.check for one in checks]))
    )
    lines = [f"{'':<4} {'of':<{of}}  {'check':<{check}}  found"]
    lines += [
        f"{'pass' if one.passed else 'FAIL'} {one.of:<{of}}  {one.check:<{check}}  {one.found}".rstrip()
        for one in checks
    ]
    passed = sum(one.passed for one in checks)
    return "\n".join([*lines, f"{name}: {passed} of {len(checks)} checks passed"]) + "\n"
