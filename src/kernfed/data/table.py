"""What reading a file gives (:class:`Table`), which columns are features, and the errors of data files.

Errors name the file, the column and the row. Rows are counted from 1, without the header.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.warn import warn
from kernfed.errors import DataError, IdentifierAmongFeatures

# Longer text in a label, site or id column is a document in the wrong column, and would fill the memory.
LONGEST_NAME = 1000
#: Kinds of columns that are features without being named: numbers, and lists where no other number is left.
NUMBER, NUMBERS = "number", "list of numbers"
#: Names under which programs store the numbers of rows, which say nothing about a row: pandas in Parquet and, like R,
#: in CSV, and what pandas makes of such a CSV when it is read and written again.
_ROW_NUMBERS = re.compile(r"__index_level_\d+__|(Unnamed: 0(\.\d+)*)?")
#: Rows from which distinct whole numbers are no accident: of any size, and without a gap. More columns than so many
#: which are like that are what the values of the table are like.
_ENOUGH_ROWS, _ENOUGH_WITHOUT_GAP, _MOST_IDENTIFIERS = 100, 20, 3


@dataclass(frozen=True, eq=False)
class Table:
    """Rows read from one file: features ``X`` (n, p) and, where asked for, what is known of each row (n,).

    ``columns`` names the p features (``emb[0]``, ``emb[1]``, ... of a list column), ``label`` the column of y.
    ``left_out`` names the other columns of the file with the reason of each (``index``, ``site``, ``text``, ...); it
    is empty where the features were named.
    """

    X: FloatArray
    y: npt.NDArray[Any] | None
    site: npt.NDArray[np.str_] | None
    ids: npt.NDArray[Any] | None
    columns: tuple[str, ...]
    source: Path
    label: str | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    persons: npt.NDArray[np.str_] | None = None

    def __len__(self) -> int:
        return len(self.X)


@dataclass(frozen=True)
class Wanted:
    """Columns as the caller of ``read_table`` named them; None where that was left to us, or is not wanted."""

    features: str | Sequence[str] | None = None
    label: str | None = None
    site: str | None = None
    ids: str | None = None
    persons: str | None = None


@dataclass(frozen=True)
class Roles:
    """Column names by what they are used for; ``features`` in the order of the columns of X.

    ``left_out`` says of each column that was not chosen why, where the choice was left to :func:`select_columns`.
    """

    features: tuple[str, ...]
    label: str | None = None
    site: str | None = None
    ids: str | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    persons: str | None = None

    @property
    def described(self) -> tuple[str, ...]:
        """The columns that describe rows, each once."""
        roles = (self.label, self.site, self.ids, self.persons)
        return tuple(dict.fromkeys(name for name in roles if name is not None))


def place(source: Path, column: str, row: int) -> str:
    """The start of a message about one cell; ``row`` counts from 0 here and from 1 in the text."""
    return f"{source}: column {column!r}, row {row + 1}"


def select_columns(source: Path, names: Sequence[str], kinds: Sequence[str], wanted: Wanted) -> Roles:
    """Roles of the columns ``names`` of a file, given in file order with the kind of each.

    ``wanted.features`` is a sequence of names, or text: one name, ``first:last`` for a range in file order with
    both ends, several of these separated by commas, or None for every column of kind ``NUMBER`` without another
    role, or those of kind ``NUMBERS`` where there is none. Row numbers are features only when named.
    """
    counts = Counter(names)
    features = wanted.features
    roles = ("persons", "label", "site", "ids")  # a column may be the id of a row and of its person
    taken = {name: role for role in roles if (name := getattr(wanted, role)) is not None}
    for name in taken:
        _check_column(source, counts, name)
    left_out: dict[str, str] = {}
    if features is None:
        by_kind = [
            (name, taken.get(name) or ("index" if _ROW_NUMBERS.fullmatch(name) else kind))
            for name, kind in zip(names, kinds, strict=True)
        ]
        chosen_kind = NUMBER if any(kind == NUMBER for _, kind in by_kind) else NUMBERS
        chosen = [name for name, kind in by_kind if kind == chosen_kind]
        left_out = {name: kind for name, kind in by_kind if kind != chosen_kind}
    elif isinstance(features, str):
        chosen = _parse_features(source, names, counts, features)
    else:
        chosen = list(features)
    if not chosen:
        raise DataError(
            f"{source}: no column to learn from, name one with features= (on the command line --features); "
            f"the columns are {listing(names)}"
        )
    for name, times in Counter(chosen).items():
        _check_column(source, counts, name)
        if name in taken:
            raise DataError(f"{source}: column {name!r} cannot be a feature, it is the {taken[name]} column")
        if times > 1:
            raise DataError(f"{source}: column {name!r} is named {times} times among the features")
    return Roles(tuple(chosen), wanted.label, wanted.site, wanted.ids, left_out, wanted.persons)


def warn_of_identifiers(table: Table, columns: Iterable[str]) -> None:
    """Warn of features among ``columns`` of the file that number the rows, all of them or those of each site."""
    known = set(columns)
    groups = [[slice(None)], _large_sites(table.site)]
    identifiers = [
        name
        for name, values in zip(table.columns, table.X.T, strict=True)
        if name in known and any(rows and all(_number_rows(values[part]) for part in rows) for rows in groups)
    ]
    if not 0 < len(identifiers) <= _MOST_IDENTIFIERS:
        return
    named = listing(identifiers)
    one = len(identifiers) == 1
    said = (f"column {named} has", "is a feature") if one else (f"columns {named} have", "are features")
    warn(
        f"{table.source}: {said[0]} a different whole number in every row, as identifiers do, and {said[1]}; "
        "leave identifiers out with ids= (on the command line --id), or name the features with features= (--features)",
        IdentifierAmongFeatures,
    )


def _large_sites(site: npt.NDArray[np.str_] | None) -> list[Any]:
    """Rows of each site that has enough of them to tell whether a column numbers them."""
    if site is None:
        return []
    _, codes, counts = np.unique(site, return_inverse=True, return_counts=True)
    return [np.flatnonzero(codes == code) for code in np.flatnonzero(counts >= _ENOUGH_WITHOUT_GAP)]


def _number_rows(values: FloatArray) -> bool:
    """Whether ``values`` (n,) are distinct whole numbers, in too many rows for an accident."""
    for part in (values[:_ENOUGH_ROWS], values):  # nearly every column is told by its first rows
        ordered = np.sort(part)
        if (ordered != np.rint(ordered)).any() or (np.diff(ordered) == 0).any():
            return False
    without_gap = ordered[-1] - ordered[0] == len(values) - 1
    return len(values) >= (_ENOUGH_WITHOUT_GAP if without_gap else _ENOUGH_ROWS)


def _parse_features(source: Path, names: Sequence[str], counts: Counter[str], text: str) -> list[str]:
    if text in counts:  # a name may itself hold a comma or a colon
        return [text]
    chosen: list[str] = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        if part in counts or not colon:
            chosen.append(part)
            continue
        _check_column(source, counts, first)
        _check_column(source, counts, last)
        start, stop = names.index(first), names.index(last)
        if start > stop:
            raise DataError(f"{source}: features {part!r} must go forward, but column {last!r} comes first")
        chosen += names[start : stop + 1]
    return chosen


def _check_column(source: Path, counts: Counter[str], name: str) -> None:
    if name not in counts:
        raise DataError(f"{source}: there is no column {name!r}; the columns are {listing(counts)}")
    if counts[name] > 1:
        raise DataError(f"{source}: column {name!r} occurs {counts[name]} times, names must be distinct")


def listing(names: Iterable[object], most: int = 20) -> str:
    """Names for a message, as :func:`shortened` does."""
    return shortened([repr(name) for name in names], most) or "none"


def shortened(words: Sequence[str], most: int) -> str:
    """Words with commas; a long list is cut in the middle, so that the last ones are seen too."""
    if len(words) > most:
        half = most // 2
        words = [*words[:half], f"... ({len(words) - 2 * half} more) ...", *words[-half:]]
    return ", ".join(words)


def check_block(source: Path, block: FloatArray, first_row: int, columns: Sequence[str]) -> None:
    """Refuse NaN and infinity in rows ``first_row`` and following."""
    finite = np.isfinite(block)
    if finite.all():
        return
    row, column = divmod(int(np.argmin(finite)), block.shape[1])
    raise DataError(
        f"{place(source, columns[column], first_row + row)}: expected a finite {block.dtype} number, "
        f"got {block[row, column]}"
    )


def check_finite_labels(source: Path, column: str, values: npt.NDArray[Any]) -> None:
    """Refuse NaN and infinity among labels or ids (n,)."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise DataError(f"{place(source, column, row)}: expected a finite number, got {values[row]}")


def unreadable(source: Path, kind: str, error: Exception) -> DataError:
    """A library's complaint about a whole file, cut to its first sentence."""
    detail = (str(error) or type(error).__name__).splitlines()[0].split(". ")[0].rstrip(".:")
    return DataError(f"{source}: cannot be read as {kind}, it is damaged or of another kind ({detail})")


def check_classes(table: Table, classes: npt.ArrayLike) -> None:
    """Refuse labels of ``table`` that are not among ``classes``: a class met at prediction only."""
    if table.y is None:
        raise DataError(f"{table.source}: the labels were not read, name their column with label=")
    known = dict.fromkeys(np.asarray(classes, dtype=object).tolist())
    distinct, first = np.unique(table.y, return_index=True)
    unknown = [int(row) for value, row in zip(distinct.tolist(), first, strict=True) if value not in known]
    if unknown:
        row = min(unknown)
        raise DataError(
            f"{place(table.source, table.label or 'label', row)}: class {table.y[row].item()!r} was not met "
            f"in training; the classes are {listing(known)}"
        )
