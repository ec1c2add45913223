"""What `models --try` finds in models that are whole, and in models that are broken in one way each."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from omnirecall.errors import UserError
from omnirecall.media.types import DecodedItem
from omnirecall.models.load import load_model
from omnirecall.ranking import BFloat16, Ragged
from omnirecall.trial import DIRECTIONS, try_model


@dataclass
class Letters:
    """Counts of letter pairs of a text: near for texts that share letters. ``fault`` may spoil the vectors of a call."""

    fault: Callable[[Any, int, str], Any] = lambda vectors, calls, role: vectors
    symmetric: bool = True
    late_interaction: bool = False
    default_prompt: str = "none"
    claims: frozenset[str] = frozenset({"text"})
    name: str = "letters"
    fingerprint: str = "letters-1"
    dimension: int = 64
    sampling_rate: int = 16000
    media_tokens: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    calls: int = 0

    def supports(self, modalities: Set[str]) -> bool:
        return frozenset(modalities) == self.claims

    def encode(self, items: Sequence[DecodedItem], *, role: str) -> Any:
        self.calls += 1
        vectors = np.zeros((len(items), self.dimension), np.float32)
        for row, item in enumerate(items):
            text = f" {item.instruction if self.default_prompt == 'model' else ''} {item.text} ".lower()
            for one, other in pairwise(text):
                vectors[row, (31 * ord(one) + 7 * ord(other)) % self.dimension] += 1
        return self.fault(vectors, self.calls, role)


def failed(model: Any) -> set[str]:
    return {check.check for check in try_model(model) if not check.passed}


def test_a_whole_model_passes() -> None:
    checks = try_model(Letters())
    assert all(check.passed for check in checks), checks
    assert {check.of for check in checks} == {"text", "text to text"}
    assert len(checks) == 7


def _sorted(sign: int) -> Callable[[Any, int, str], Any]:
    """Rows by their lengths, as of a model that sorts its batch and does not put it back."""
    return lambda vectors, calls, role: vectors[np.argsort(sign * np.linalg.norm(vectors, axis=1), kind="stable")]


def _drift(vectors: Any, calls: int, role: str) -> Any:
    vectors[:, calls % 5] += 1
    return vectors


def _by_batch(vectors: Any, calls: int, role: str) -> Any:
    vectors[:, 0] += len(vectors)
    return vectors


def _by_role(vectors: Any, calls: int, role: str) -> Any:
    vectors[:, 0] += role == "query"
    return vectors


def _nan(vectors: Any, calls: int, role: str) -> Any:
    vectors[-1, 3] = np.nan
    return vectors


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (lambda vectors, calls, role: np.ones_like(vectors), {"different items differ", "order kept", "matched above mismatched"}),
        (lambda vectors, calls, role: np.sort(vectors, axis=0), {"order kept", "alone as in a batch"}),
        (_sorted(1), {"order kept"}),
        (_sorted(-1), {"order kept"}),
        (lambda vectors, calls, role: vectors[::-1], {"matched above mismatched"}),
        (_drift, {"same again"}),
        (_by_batch, {"alone as in a batch"}),
        (_by_role, {"roles are alike"}),
        (_nan, {"embeds"}),
        (lambda vectors, calls, role: vectors[:1], {"embeds"}),
        (lambda vectors, calls, role: vectors[:, :3], {"embeds"}),
        (lambda vectors, calls, role: 1 / 0, {"embeds"}),
    ],
    ids=["constant", "columns", "rising", "falling", "reversed", "drift", "batch", "role", "nan", "rows", "dimension", "raises"],
)  # fmt: skip
def test_each_fault_is_found(fault: Callable[[Any, int, str], Any], found: set[str]) -> None:
    assert found <= failed(Letters(fault))


def test_a_model_whose_roles_should_differ() -> None:
    assert failed(Letters(symmetric=False)) == {"instruction or role tells"}
    assert failed(Letters(_by_role, symmetric=False)) == set()
    assert "instruction or role tells" not in failed(Letters(default_prompt="model"))


def test_a_load_without_meaning_is_found() -> None:
    def scrambled(vectors: Any, calls: int, role: str) -> Any:
        seeds = [int(row @ np.arange(1, len(row) + 1)) for row in vectors]
        return np.stack([np.random.default_rng(seed).standard_normal(vectors.shape[1]) for seed in seeds]).astype("f4")

    assert failed(Letters(scrambled)) == {"matched above mismatched"}


def test_bfloat16_and_late_interaction() -> None:
    def halves(vectors: Any, calls: int, role: str) -> BFloat16:
        return BFloat16((vectors.view(np.uint32) >> 16).astype(np.uint16))

    def tokens(vectors: Any, calls: int, role: str) -> Ragged:
        return Ragged(np.repeat(vectors, 2, axis=0), np.arange(0, 2 * len(vectors) + 1, 2))

    assert failed(Letters(halves)) == set()
    assert failed(Letters(tokens, late_interaction=True)) == set()
    assert failed(Letters(late_interaction=True)) == {"embeds"}


def test_the_baselines_are_told_apart_from_models() -> None:
    directions = {check.of for check in try_model(load_model("random:8")) if not check.passed}
    assert len(directions) >= len(DIRECTIONS) - 1  # by chance one in 20 to 28 passes
    assert "different items differ" in failed(load_model("constant:8"))


def test_a_model_that_claims_nothing() -> None:
    with pytest.raises(UserError, match="claims no modality"):
        try_model(Letters(claims=frozenset()))


def test_a_model_that_says_it_uses_no_instructions_need_not_tell_them_apart() -> None:
    deaf = Letters(default_prompt="model", notes=("Instructions are not used.",))
    encode = deaf.encode
    deaf.encode = lambda items, role: encode([replace(item, instruction="") for item in items], role=role)  # type: ignore[method-assign]
    assert failed(deaf) == set()
    deaf.notes = ()
    assert failed(deaf) == {"instruction or role tells"}
