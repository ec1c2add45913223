"""The Embedder protocol: all that the house asks of a model, and what a user may choose about one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from omnirecall.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from omnirecall.media.types import DecodedItem
    from omnirecall.ranking import BFloat16, Ragged

    Vectors = NDArray[np.floating] | BFloat16 | Ragged

Role = Literal["query", "candidate"]
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What a user may choose about a model; None and absent arguments take the family's default.

    ``dtype``: one of DTYPES, of the weights and the arithmetic. ``revision``: a branch, tag or commit on a hub. ``args``: the
    family's own, by name.
    """

    device: str | None = None
    dtype: str | None = None
    revision: str | None = None
    args: Mapping[str, str] = field(default_factory=dict)

    def only(self, spec: str, *names: str, dtype: bool = False, revision: bool = False) -> None:
        """UserError for an option that the family of ``spec`` does not take."""
        if other := [name for name in self.args if name not in names]:
            taken = f"it takes {', '.join(names)}" if names else "it takes none"
            raise UserError(f"--model-arg {other[0]}: {spec} has no such argument; {taken}")
        if self.dtype is not None and not dtype:
            raise UserError(f"--dtype {self.dtype}: {spec} has no choice of dtype; leave --dtype out")
        if self.dtype not in (None, *DTYPES):
            raise UserError(f"--dtype {self.dtype}: write {', '.join(DTYPES)}")
        if self.revision is not None and not revision:
            raise UserError(f"--revision {self.revision}: {spec} has no revisions; leave --revision out")

    def flag(self, name: str, default: bool = False) -> bool:
        """An argument that is ``true`` or ``false``."""
        text = self.args.get(name, str(default).lower())
        if text not in ("true", "false"):
            raise UserError(f"--model-arg {name}={text}: write true or false")
        return text == "true"

    def number(self, name: str, default: int | None = None) -> int | None:
        """An argument that is a whole number of 1 or more."""
        text = self.args.get(name)
        if text is None:
            return default
        if not text.isdigit() or int(text) < 1:
            raise UserError(f"--model-arg {name}={text}: give a whole number of 1 or more")
        return int(text)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Vectors with what a reader of the results must know of each item; empty lists where there is nothing to tell.

    ``tokens_cut``: how many tokens of its text an item lost because the model takes no more. ``frame_tokens``: the most visual
    tokens that the model used for one of its frames or pictures.
    """

    vectors: Vectors
    tokens_cut: Sequence[int] = ()
    frame_tokens: Sequence[int] = ()


class Embedder(Protocol):
    """A model that turns items into vectors.

    All but ``encode`` is known without loading the model: a run whose vectors are all stored never loads it.
    """

    @property
    def name(self) -> str:
        """Short name for tables and folders."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever a vector would: weights, revision, dtype, preprocessing, options."""

    @property
    def dimension(self) -> int:
        """Length of a vector; under late interaction, of each token's vector."""

    @property
    def symmetric(self) -> bool:
        """True where the role of an item does not change its vector."""

    @property
    def late_interaction(self) -> bool:
        """True where an item has a vector for each token, compared by MaxSim; ``encode`` then gives ``Ragged``."""

    @property
    def sampling_rate(self) -> int:
        """Samples a second that the model takes for sound."""

    @property
    def default_prompt(self) -> str:
        """``model``: items carry the instruction and the model's own template places it; ``card``: the suite's own assembly is
        the text; ``none``: no instruction.
        """

    @property
    def media_tokens(self) -> Mapping[str, str]:
        """Modality to the word that marks such a medium in the model's text; under the prompt ``card`` the text holds it."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the results must know, such as late fusion of composed items."""

    def supports(self, modalities: Set[str]) -> bool:
        """Whether an item with exactly these parts can be embedded."""

    def encode(self, items: Sequence[DecodedItem], *, role: Role) -> Vectors | Encoded:
        """One vector per item, in order, in the model's own dtype: float of shape (len(items), dimension), ``BFloat16`` bits of
        that shape, or ``Ragged`` (values of shape (sum of tokens, dimension)); or these in an ``Encoded``.

        All items of one call have the same modalities and the same role.
        """
