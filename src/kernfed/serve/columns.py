"""What a model needs of the rows of a request, however they are written."""

from dataclasses import dataclass
from typing import Any

from kernfed.base.checks import FloatArray
from kernfed.data.preparation import Preparation
from kernfed.errors import InputError
from kernfed.serve.requests import RequestError

#: Characters of one cell of text, at most: columns of text take as much for every row as for the longest.
MOST_CHARACTERS = 1_000


@dataclass(frozen=True)
class Columns:
    """What a model needs of a row. names : of its columns in order, () where they have none; width : how many."""

    names: tuple[str, ...]
    width: int
    preparation: Preparation | None = None

    @classmethod
    def of(cls, model: Any) -> "Columns":
        """The columns of a model: raw ones where it prepares them."""
        preparation: Preparation | None = getattr(model, "preparation", None)
        if preparation is not None:
            return cls(preparation.used, len(preparation.used), preparation)
        return cls(tuple(getattr(model, "feature_names_in_", ())), int(model.n_features_in_))


def check_words(name: str, longest: int) -> None:
    """Refuse a column of text whose longest cell is too long."""
    if longest > MOST_CHARACTERS:
        told = f"cells of column {name!r:.80} must have at most {MOST_CHARACTERS:,} characters, one has {longest:,}"
        raise RequestError(422, told)


def prepared(table: Any, preparation: Preparation) -> FloatArray:
    """The matrix of a raw table or an Arrow table."""
    try:
        return preparation.apply(table)[0]
    except InputError as error:
        raise RequestError(422, str(error)[:500]) from None
