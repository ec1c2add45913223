"""The Embedder protocol: all that the house asks of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    import numpy as np
    from numpy.typing import NDArray

    from omnirecall.media.types import DecodedItem

Role = Literal["query", "candidate"]


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
        """Length of a vector."""

    @property
    def symmetric(self) -> bool:
        """True where the role of an item does not change its vector."""

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

    def encode(self, items: Sequence[DecodedItem], *, role: Role) -> NDArray[np.float32]:
        """Vectors of shape (len(items), dimension), one row per item, in order."""
