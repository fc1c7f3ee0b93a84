"""What is done with a federation, once for tables, hubs and Flower: prepare, train, predict, evaluate, conform, change.

A command, a hub's job or a Flower run opens the federation and calls these. Options ``min_replies`` and ``timeout`` of
a job are those of every question it asks.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from kernfed.base.text import TextTable
from kernfed.data import Preparation, RawTable, Rules, Table
from kernfed.errors import InputError, KernfedError
from kernfed.federation import calibrate
from kernfed.federation import evaluate as evaluate_model
from kernfed.federation.asking import Federation
from kernfed.federation.preparing import agree, agree_where_raw, use
from kernfed.jobs.tables import TableFile, prepared_table, rows_by_site
from kernfed.kahm import FoldingModel
from kernfed.site.protocol.traffic import Traffic
from kernfed.testing.calibration import sure_columns
from kernfed.testing.outcomes import Evaluation
from kernfed.testing.predictors import answer_columns, is_regressor

#: Jobs that change a model, and the model's method that does it.
CHANGES = {"forget": "forget", "add-rows": "add_rows", "add-site": "add_site"}


def asks_sites(model: Any) -> bool:
    """Whether the machines of a model are at its sites, which answer for it."""
    return getattr(model, "hold", "machines") == "sites"


def connected(model: Any, federation: Federation) -> Any:
    """The model with ``federation`` to ask where its machines are at its sites; a model that is whole as it is."""
    return model.connect(federation) if asks_sites(model) else model


# Preparation and training -----------------------------------------------------------------------------------------


def prepare(
    federation: Federation,
    preparation: str = "auto",
    *,
    texts: Mapping[str, str] | None = None,
    raw: bool | None = None,
    **asking: Any,
) -> None:
    """Let sites use one preparation: of the file ``preparation``, or for "auto" one agreed on where tables are raw.

    ``texts`` are encoders of columns of text, by column; ``raw`` says whether tables are raw, where it is known, and
    otherwise the sites are asked. ``federation.preparation`` is what they use from then on.
    """
    if preparation not in ("auto", "none"):
        use(federation, Preparation.load(preparation), **asking)
    elif preparation == "auto" and raw is not False:
        rules = Rules(texts=dict(texts or {}))
        (agree if raw else agree_where_raw)(federation, rules=rules, **asking)


@contextmanager
def table_federation(
    rows: Table | RawTable, preparation: str, texts: Mapping[str, str] | None = None, **options: Any
) -> Iterator[tuple[Federation, Table]]:
    """A federation of the sites of a table, which agree on a preparation where it is raw, and the table as numbers.

    ``options`` are those of ``Federation.local``: seed, store and holdout.
    """
    if isinstance(rows, Table):
        with Federation.local(rows_by_site(rows, with_ids=True), columns=rows.columns, **options) as federation:
            yield federation, rows
        return
    with Federation.local(rows_by_site(rows, with_ids=True), **options) as federation:
        prepare(federation, preparation, texts=texts, raw=True)
        assert federation.preparation is not None
        yield federation, prepared_table(rows, federation.preparation)


@dataclass(frozen=True)
class Trained:
    """A model, the sites it was trained with, what left them, and figures on rows that they kept aside."""

    model: Any
    sites: tuple[str, ...]
    traffic: Traffic
    tested: Mapping[str, Any] = field(default_factory=dict)

    @property
    def missing(self) -> dict[str, str]:
        """Sites that took no part, with the reason."""
        return {site: str(reason) for site, reason in dict(self.model.missing_).items()}

    def to_json(self) -> dict[str, Any]:
        """What is known wherever a model was trained, as plain values."""
        return {
            "sites": list(self.sites),
            "missing": self.missing,
            "classes": self.model.classes_,
            **self.tested,
            "bytes_up": self.traffic.bytes_up,
            "bytes_down": self.traffic.bytes_down,
            "privacy": None if self.model.privacy is None else privacy_statement(self.model.privacy),
        }

    def site_table(self) -> TextTable:
        """Table of all sites, each with the reason why it is missing or a dot."""
        missing = self.missing
        return TextTable(("site", "missing"), [(site, missing.get(site, ".")) for site in self.sites])


def train(federation: Federation, learner: Any, *, test: bool = False, **asking: Any) -> Trained:
    """The model that ``learner`` makes with the sites; with ``test`` calibrated and tested on rows they keep aside."""
    model, tested = learner.fit(federation, **asking), {}
    if test:
        model, fits = _calibrated(model, federation, **asking)
        tested = {**figures(evaluate(model, federation, **asking)), "calibrated": fits}
    return Trained(model, tuple(federation.sites), federation.traffic, tested)


def _calibrated(model: Any, federation: Federation, **asking: Any) -> tuple[Any, bool]:
    """A model whose probabilities fit rows that it did not see, and whether they do.

    Fusions have fitted their temperature to left-out rows already, and so have models of released rows.
    """
    if not isinstance(model, FoldingModel) or model.privacy is not None:
        return model, hasattr(model, "choice_")
    try:
        return calibrate(model, federation, **asking), True
    except KernfedError:  # sites that kept nothing aside, of classes that the model knows
        return model, False


def privacy_statement(terms: Any) -> dict[str, Any]:
    """What a release promises, as one JSON object."""
    return {
        "mechanism": terms.kind,
        "element": (terms.element.epsilon, terms.element.delta),
        "record": (terms.record.epsilon, terms.record.delta),
        "promises": terms.lines(),
        "spent": dict(terms.spent),
    }


# Answers and tests ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Predicted:
    """Columns (n,) of a table of predictions, and the sites that did not answer, with the reason.

    The first column holds the predictions, of a single machine the distances; "answer" and "set" are there where they
    were asked for, and site, batch and score where machines of several sites decide.
    """

    columns: Mapping[str, npt.NDArray[Any]]
    missing: Mapping[str, str] = field(default_factory=dict)
    regressor: bool = False

    #: Columns that say who decided.
    EXPLAINED = ("site", "batch", "score")

    def to_json(self, *, explain: bool = False, whole: bool = False) -> dict[str, Any]:
        """Counts of labels or quartiles of values; with ``whole`` all predictions, with ``explain`` shares of sites."""
        first, values = next(iter(self.columns.items()))
        result: dict[str, Any] = {}
        if self.regressor:
            places = (0, 25, 50, 75, 100)
            result["quartiles"] = dict(
                zip((f"{place}%" for place in places), np.percentile(values, places).tolist(), strict=True)
            )
        else:
            result["counts"] = _tally(values)
        if "answer" in self.columns:
            result["abstained"] = int((self.columns["answer"] == "").sum())
        if whole:
            result["distances" if first == "distance" else "predictions"] = values
        if explain:
            counts = sorted(_tally(self.columns["site"]).items(), key=lambda entry: -entry[1])
            result["shares"] = {str(site): count / len(values) for site, count in counts}
        return result

    def views(self, *, explain: bool = False) -> list[TextTable | str]:
        """The same for people: labels with their shares, or quartiles."""
        summary, rows = self.to_json(explain=explain), len(next(iter(self.columns.values())))
        if self.regressor:
            lines = [(place, f"{value:.4g}") for place, value in summary["quartiles"].items()]
            views: list[TextTable | str] = [TextTable(("share below", "value"), lines)]
        else:
            counted = [(str(name), f"{n:,}", f"{n / rows:.1%}") for name, n in summary["counts"].items()]
            views = [TextTable(("label", "rows", "share"), counted)]
        if "abstained" in summary:
            views.append(f"no answer to {summary['abstained']:,} of {rows:,} rows")
        if explain:
            won = [(site, f"{share:.1%}") for site, share in list(summary["shares"].items())[:20]]
            views += ["", TextTable(("nearest site", "share of answers"), won)]
        return views


def _tally(values: npt.NDArray[Any]) -> dict[Any, int]:
    """How often each value (n,) is there, in the order of the values."""
    names, counts = np.unique(values, return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def predict(
    model: Any, rows: Any, *, coverage: float | None = None, abstain: float | None = None, **asking: Any
) -> Predicted:
    """What a model says of rows (n, p); with ``coverage`` or ``abstain`` also sets and answers, by a second scoring."""
    if hasattr(model, "distance"):
        return Predicted(
            {"distance": model.distance(rows), **sure_columns(model, rows, coverage, abstain)}, regressor=True
        )
    if not hasattr(model, "answer"):
        raise InputError(f"a {type(model).__name__} predicts nothing, expected a model of kernfed train or a machine")
    asking = asking if getattr(model, "connection", None) is not None else {}
    sure = sure_columns(model, rows, coverage, abstain, **asking)
    answer = model.answer(rows, **asking)
    columns = answer_columns(answer, list(getattr(model, "classes_", ()))) | sure
    return Predicted(columns, dict(answer.missing), is_regressor(model))


def evaluate(
    model: Any,
    federation: Federation | None = None,
    rows: Mapping[str, Any] | None = None,
    *,
    influence: bool = False,
    liars: int | None = None,
    **asking: Any,
) -> Any:
    """A test of a model: on the rows that sites keep aside, or on ``rows`` that are here, ``{site: (X, y)}``."""
    asked = model if federation is None else connected(model, federation)
    place = cast(Federation, federation)  # rows that are here are tested here
    return evaluate_model(asked, place, rows, influence=influence, liars=liars, **asking)


def figures(tested: Any) -> dict[str, Any]:
    """R^2 of a regressor; of a classifier accuracy and figures that classes of unequal size do not distort."""
    if not isinstance(tested, Evaluation):
        return {"tested": tested.pooled.rows, "r2": tested.r2}
    return {"tested": tested.pooled.rows, "accuracy": tested.accuracy, **majority_figures(tested)}


def majority_figures(tested: Evaluation) -> dict[str, Any]:
    """Of an evaluation the class of most rows and its share, balanced accuracy, areas and F1, and an alarm or None."""
    pooled = tested.pooled
    names = [*tested.classes_.tolist(), "a class that the model does not know"]
    largest, share = pooled.majority
    return {
        "majority": names[largest],
        "majority_share": share,
        "balanced_accuracy": pooled.balanced_accuracy,
        "auc": pooled.mean_auc,
        "f1": pooled.mean_f1,
        "alarm": pooled.alarm,
    }


def majority_line(found: Mapping[str, Any]) -> str:
    """Balanced accuracy, area under the curve, and what always saying the largest class would give."""
    area = "" if found["auc"] != found["auc"] else f", AUC {found['auc']:.4f}"
    return (
        f"balanced accuracy {found['balanced_accuracy']:.2%}{area}; always saying {found['majority']!r} would be right "
        f"for {found['majority_share']:.2%}"
    )


# Changes of a model -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A change of a model: ``kind`` of ``CHANGES`` at ``site``; ids of rows to forget, or a table of rows to add."""

    kind: str
    site: str
    rows: Sequence[int] = ()
    new: TableFile | None = None

    def check(self, model: Any, sites: Sequence[str] = ()) -> None:
        """Refuse a model that cannot change, a site that is not there or is already, and ``sites`` that are too few."""
        if not hasattr(model, CHANGES[self.kind]):
            raise InputError(
                f"job {self.kind!r} needs a folding model, got a {type(model).__name__}: train again with the rows of "
                "today"
            )
        if (self.site in model.sites) == (self.kind == "add-site"):
            there = ", ".join(map(repr, model.sites[:20]))
            problem = "takes part already" if self.kind == "add-site" else "is no site of the model"
            raise InputError(f"{self.site!r} {problem}, which has {there}")
        asked = {*model.sites, self.site} - ({self.site} if self.kind == "forget" and not self.rows else set())
        absent = sorted(asked - set(sites)) if sites and asks_sites(model) else []
        if absent:
            raise InputError(f"sites must name all that are asked, {absent[0]!r} is not among {', '.join(sites[:20])}")
        if self.kind == "add-rows":
            self._new_rows(model)

    def _new_rows(self, model: Any) -> Table:
        """Rows to add, with the columns of the model."""
        assert self.new is not None
        table = self.new.read(self.new.features or list(model.feature_names_in_) or None)
        if table.X.shape[1] != model.n_features_in_:
            raise InputError(f"new must have {model.n_features_in_} columns as the model has, got {table.X.shape[1]}")
        if table.ids is not None and table.ids.dtype.kind not in "iu":
            raise InputError(f"ids must be a column of whole numbers, {self.new.ids!r} holds {table.ids.dtype}")
        return table

    def apply(self, model: Any, federation: Federation) -> "Changed":
        """The model as it is afterwards; a whole site that is gone for good is not waited for and not asked."""
        if self.kind == "forget" and not self.rows and self.site not in federation.sites:
            reason = "it was not asked: whatever it keeps of the model is still there"
            return Changed(self.kind, without_site(model, self.site), {self.site: reason})
        asked = connected(model, federation)
        if self.kind == "add-site":
            return Changed(self.kind, asked.add_site(self.site))
        if self.kind == "add-rows":
            new = self._new_rows(model)
            return Changed(self.kind, asked.add_rows(self.site, new.X, new.y, new.ids), added=len(new))
        return Changed(self.kind, asked.forget(self.site, rows=list(self.rows) or None))


@dataclass(frozen=True)
class Changed:
    """A model after a change of ``kind``, and the sites that were not asked, with the reason."""

    kind: str
    model: Any
    not_asked: Mapping[str, str] = field(default_factory=dict)
    added: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Sites and classes of the model, who is missing, and how many rows came."""
        return {**model_facts(self.model, self.not_asked), **({} if self.added is None else {"added": self.added})}


def model_facts(model: Any, missing: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Sites, classes and missing sites of a model, as plain values."""
    members = {"members": list(model.sites)} if hasattr(model, "sites") else {}
    return {**members, "classes": model.classes_.tolist(), "missing": dict(missing or model.missing_)}


def without_site(model: Any, site: str) -> FoldingModel:
    """A model without a site that is gone for good: nobody is asked, and nothing is deleted at the site."""
    if not isinstance(model, FoldingModel):
        raise InputError(f"site {site!r} is not there, and a {type(model).__name__} needs it to forget it: train again")
    return model._without(site)


def row_ids(text: str) -> list[int]:
    """Row ids of a text such as 3,17,20."""
    try:
        return [int(number) for number in text.split(",") if number.strip()]
    except ValueError:
        raise InputError(f"rows must be row ids such as 3,17,20, got {text!r}") from None
