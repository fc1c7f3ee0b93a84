"""Raw tables on the command line: when a table needs a preparation, whose it is, and what labels are for."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.cli.tables import check_ids, read_rows
from kernfed.errors import DataError, InputError

if TYPE_CHECKING:
    from kernfed.cli.command import Learning
    from kernfed.data import Preparation, RawTable, Table

PreparationOption = Annotated[
    str,
    typer.Option(
        "--preparation",
        help="auto (where columns are not all complete numbers), none, or a file of `kernfed prepare`.",
    ),
]
TextColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--text",
        help="Column of text to learn from: NAME, or NAME=ENCODER for a folder in KERNFED_ENCODERS; repeatable.",
    ),
]
#: More different whole numbers than the first are classes only if somebody says so; so are more than the second where
#: fewer rows than the third share one, on average.
_MANY, _SOME, _ROWS_EACH = 50, 20, 10
#: Share of the largest class from which classes are unequal.
_UNEQUAL = 0.7


def read_rows_or_raw(
    path: Path,
    preparation: str,
    *,
    private: bool,
    features: str | None,
    label: str,
    site: str | None,
    ids: str | None,
) -> "Table | RawTable":
    """The table to learn from: as numbers where all of it is, otherwise raw, for sites to agree on a preparation.

    Under privacy there is no raw table without a preparation, for statistics are no release.
    """
    from kernfed.data.raw import RAW_SUFFIXES, read_raw_table

    named: dict[str, Any] = {"features": features, "label": label, "site": site, "ids": ids}
    is_file = preparation not in ("auto", "none")
    if path.suffix.lower() not in RAW_SUFFIXES or preparation == "none" or (private and not is_file):
        if is_file and path.suffix.lower() not in RAW_SUFFIXES:
            raise InputError(f"--preparation is for tables with named columns, {path} has none")
        return read_rows(path, **named)
    if not is_file and not _has_other_kinds(path, named):
        try:
            return read_rows(path, **named)
        except DataError:  # a gap, or words below numbers; what is wrong with names is told again below
            pass
    table = read_raw_table(path, **named)
    check_ids(table.ids, table.site)
    return table


def text_encoders(given: list[str] | None, preparation: str) -> dict[str, str]:
    """Encoders of columns of text by column; refused where a preparation that is there already decides."""
    from kernfed.data.encoders import USUAL_ENCODER, find_encoder

    if given and preparation != "auto":
        raise InputError("--text is for --preparation auto; a file of `kernfed prepare --text` says it itself")
    texts = {}
    for word in given or []:
        column, _, encoder = word.partition("=")
        texts[column] = find_encoder(encoder or USUAL_ENCODER).name
    return texts


def agreed(federation: Any, preparation: str, texts: dict[str, str] | None = None) -> "Preparation":
    """The preparation that the sites of ``federation`` use from now on: of a file, or of their statistics."""
    from kernfed.data import Preparation, Rules
    from kernfed.federation.preparing import agree, use

    if preparation == "auto":
        return agree(federation, rules=Rules(texts=texts or {}))
    chosen = Preparation.load(preparation)
    use(federation, chosen)
    return chosen


def prepare_sites(
    federation: Any, preparation: str, min_replies: int | None = None, texts: dict[str, str] | None = None
) -> None:
    """Let sites elsewhere use the preparation of a file, or agree on one where they have raw tables."""
    from kernfed.data import Preparation, Rules
    from kernfed.federation.preparing import agree_where_raw, use

    if preparation == "auto":
        agree_where_raw(federation, rules=Rules(texts=texts or {}), min_replies=min_replies)
    elif preparation != "none":
        use(federation, Preparation.load(preparation), min_replies=min_replies)


def learning_for_labels(learning: "Learning", y: Any, label: str) -> tuple["Learning", str]:
    """The same learning for what labels are: classes, or values to regress on; and a sentence that says which and why.

    A learner that knows classes only makes room for ridge where labels are values.
    """
    from kernfed.site.fields import learner_settings

    task, why = _task(learning.values.get("task"), y, label)
    values = {name: value for name, value in learning.values.items() if name != "task"}
    knows = "task" in learner_settings(learning.learner).names
    if knows:
        return replace(learning, values={**values, "task": task}), why
    if task == "classify":
        return replace(learning, values=values), why
    return replace(learning, learner="ridge", values={**values, "task": task}), f"{why}, with --learner ridge"


def _task(given: Any, y: Any, label: str) -> tuple[str, str]:
    """What labels are for, and why."""
    import numpy as np

    if given is not None:
        word = str(getattr(given, "value", given))
        return word, f"{label!r}: {'classes' if word == 'classify' else 'values'}, as --task says"
    distinct = len(np.unique(y))
    if y.dtype.kind == "f" and (y != np.floor(y)).any():
        return "regress", f"{label!r} holds fractions: learning values (regression)"
    numbers = y.dtype.kind in "iuf"
    if numbers and (distinct > _MANY or (distinct > _SOME and len(y) < _ROWS_EACH * distinct)):
        raise InputError(
            f"{label!r} holds {distinct:,} different whole numbers in {len(y):,} rows: say --task classify if each "
            "is a class, or --task regress if they are amounts"
        )
    return "classify", f"{label!r} holds {distinct} different {'numbers' if numbers else 'words'}: learning classes"


def majority_of(outcome: Any) -> dict[str, Any]:
    """Of an evaluation the class of most rows, its share, and figures that classes of unequal size do not distort."""
    pooled = outcome.pooled
    names = [*outcome.classes_.tolist(), "a class that the model does not know"]
    largest, share = pooled.majority
    return {
        "majority": names[largest],
        "majority_share": share,
        "balanced_accuracy": pooled.balanced_accuracy,
        "auc": pooled.mean_auc,
        "f1": pooled.mean_f1,
        "alarm": pooled.alarm,
    }


def majority_words(told: dict[str, Any]) -> str:
    """Balanced accuracy, area under the curve, and what always saying the largest class would give."""
    area = "" if told["auc"] != told["auc"] else f", AUC {told['auc']:.4f}"
    return (
        f"balanced accuracy {told['balanced_accuracy']:.2%}{area}; always saying {told['majority']!r} would be right "
        f"for {told['majority_share']:.2%}"
    )


def imbalance(y: Any) -> list[str]:
    """What to know of classes that are far from equal, in sentences."""
    import numpy as np

    labels, counts = np.unique(y, return_counts=True)
    largest, share = labels[counts.argmax()], counts.max() / counts.sum()
    if share < max(_UNEQUAL, 1.5 / len(labels)) or len(labels) < 2:
        return []
    return [
        f"Classes are unequal: always saying {largest.item()!r} would be right for {share:.1%} of these rows, so that "
        "accuracy alone says little; look at balanced accuracy (kernfed evaluate)."
    ]


def _has_other_kinds(path: Path, named: dict[str, Any]) -> bool:
    """Whether a column that nobody named is neither number nor list, as far as types, or the first row, tell."""
    from kernfed.data.read import column_kinds
    from kernfed.data.table import NUMBER, NUMBERS

    kinds = column_kinds(path, **named)
    return any(kind not in (NUMBER, NUMBERS) for kind in kinds.values())
