"""What every model has in common, so that pages, services, tests and commands ask the model and never its type."""

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from kernfed.base.answer import Answer
from kernfed.base.checks import FloatArray
from kernfed.errors import InputError
from kernfed.files import Savable
from kernfed.promise import Terms

if TYPE_CHECKING:
    from kernfed.abstain.coverage import Coverage
    from kernfed.data.preparation import Preparation
    from kernfed.kahm.members import Member
    from kernfed.kahm.model import FoldingModel
    from kernfed.ridge.model import RidgeModel

#: Names of sites that are left out together.
SiteSet = tuple[str, ...]


@dataclass(frozen=True)
class SiteSummary:
    """A site in a model: its rows, classes and machines; None where the model does not know."""

    name: str
    rows: int | None = None
    classes: int | None = None
    machines: int | None = None


@dataclass(frozen=True)
class ModelSummary:
    """What a page, a service or a command shows of a model.

    kind : name of its class. text : the model in a few lines. task : "classify" or "regress". classes : labels in the
    order of probabilities, () to regress. width, columns : number and names of the columns of X, () without names.
    raw_columns : columns of a raw table that the model prepares by itself, () where it takes numbers. hold : "sites"
    where machines are at the sites, "machines" for a whole model. sites : those that answer. missing : sites that took
    no part, with reasons. privacy : terms of the release that it is made of. exposure : what wrong sites can do to it.
    settings : what it was made with. chosen : what was chosen by rows, and how. covers : whether it states a coverage.
    parts : summaries of the models it is made of, by name.
    """

    kind: str
    text: str
    task: str
    classes: tuple[Any, ...]
    width: int
    columns: tuple[str, ...] = ()
    raw_columns: tuple[str, ...] = ()
    hold: str = "machines"
    sites: tuple[SiteSummary, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    privacy: Terms | None = None
    exposure: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    chosen: Mapping[str, str] = field(default_factory=dict)
    covers: bool = False
    parts: Mapping[str, "ModelSummary"] = field(default_factory=dict)


class Model(Savable, ABC):
    """Base of all models. Whatever a kind of model cannot do says so by a property here, and raises ``InputError``."""

    if TYPE_CHECKING:  # fields of some models and properties of others

        @property
        def classes_(self) -> npt.NDArray[Any]:
            """Labels (C,) in the order of scores and probabilities; empty to regress."""

        @property
        def n_features_in_(self) -> int:
            """Number of columns of X."""

        @property
        def sites(self) -> tuple[str, ...]:
            """Sites that answer, or that the model has a predictor for; () where it does not name them."""

        @property
        def members_(self) -> Mapping[str, Member]:
            """What every site with machines holds."""

        @property
        def missing_(self) -> Mapping[str, str]:
            """Sites that took no part in training, with reasons."""

        @property
        def privacy(self) -> Terms | None:
            """Terms of the release that the model is made of; None where rows were taken as they are."""

        @property
        def preparation(self) -> Preparation | None:
            """What becomes of raw columns; None where X is numbers."""

        @property
        def connection(self) -> Any:
            """The sites behind machines that are not here; None where nobody needs to be asked."""

        @property
        def conformal_(self) -> Coverage | None:
            """Histograms of rows kept aside, from which a coverage is stated; None without."""

        @property
        def hidden(self) -> tuple[int, ...]:
            """Sizes of the hidden layers of a network; () of every other model."""

        @property
        def folding(self) -> FoldingModel | None:
            """The machines that the model has, or is; None without."""

        @property
        def ridge(self) -> RidgeModel | None:
            """The head that the model has, or is; None without."""

        def predict(self, X: npt.ArrayLike, *args: Any, **options: Any) -> npt.NDArray[Any]:
            """Labels, or values, (n,) of rows X (n, p)."""

        def predict_proba(self, X: npt.ArrayLike, *args: Any, **options: Any) -> FloatArray:
            """Probabilities (n, C) of rows X (n, p)."""

    else:
        sites = hidden = ()
        members_ = missing_ = MappingProxyType({})
        privacy = preparation = connection = conformal_ = folding = ridge = None

    #: Whether it has a predictor for every site (``for_site``), and none for all.
    is_personal: ClassVar[bool] = False
    #: Whether it has ``forget``, ``add_rows`` and ``add_site``.
    can_change: ClassVar[bool] = False
    #: Whether ``explain`` is defined.
    can_explain: ClassVar[bool] = False
    #: Whether ``kernfed.calibrate`` can fit its temperature.
    can_calibrate: ClassVar[bool] = False
    #: Whether ``probabilities_without`` is defined.
    can_leave_out_sites: ClassVar[bool] = False

    # What it can do ------------------------------------------------------------------------------------------------

    @property
    def is_classifier(self) -> bool:
        """Whether it predicts labels; otherwise values."""
        return len(self.classes_) > 0

    @property
    def has_scores(self) -> bool:
        """Whether ``scores`` are defined for all sites alike."""
        return self.is_classifier and not self.is_personal

    @property
    def hold(self) -> str:
        """Where its machines are: "sites", or "machines" for a whole model, which needs nobody."""
        return "machines"

    @property
    def needs_connection(self) -> bool:
        """Whether sites must be asked, and ``connect`` has not said how they are reached."""
        return self.hold == "sites" and self.connection is None

    @property
    def has_machines(self) -> bool:
        """Whether it has machines, by whose distances it can tell what is unlike everything."""
        return self.folding is not None

    @property
    def can_conform(self) -> bool:
        """Whether ``kernfed.conform`` can give it a coverage."""
        return False

    @property
    def mapped_features(self) -> int:
        """Features (M) that every row is mapped to before it is scored; 0 where it is not mapped."""
        return 0

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns of X, () where they have none."""
        return tuple(getattr(self, "feature_names_in_", ()))  # scikit-learn sets it only where there are names

    @property
    def unprotected_(self) -> npt.NDArray[Any]:
        """Labels that one wrong site can decide."""
        return self.classes_[:0]

    @property
    def distance_unit(self) -> float | None:
        """Unit in which distances of queries are counted; None without machines."""
        return None

    # What it says --------------------------------------------------------------------------------------------------

    def answer(self, X: npt.ArrayLike, *args: Any, **options: Any) -> Answer:
        """Labels, or values, with everything else that the model says of rows X (n, p), from one computation."""
        if self.is_personal:
            raise InputError("a personalised model has a predictor for each site: use for_site")
        return Answer(self.predict(X, *args, **options))

    def scores(self, X: npt.ArrayLike, *args: Any, **options: Any) -> FloatArray:  # noqa: ARG002
        """Scores (n, C) in the order of ``classes_``: SMALLER is better."""
        raise InputError(f"a {type(self).__name__} has no scores of classes")

    def score(self, X: npt.ArrayLike, y: npt.ArrayLike, **options: Any) -> float:
        """Accuracy on rows X (n, p) with labels y (n,), or the coefficient of determination R^2 to regress."""
        from sklearn.metrics import accuracy_score, r2_score  # here, for nothing else needs scikit-learn

        measure = accuracy_score if self.is_classifier else r2_score
        return float(measure(np.asarray(y), self.predict(X, **options)))

    def explain(self, X: npt.ArrayLike, *args: Any, **options: Any) -> Any:  # noqa: ARG002
        """Per query the label, and who decided it."""
        raise InputError(f"a {type(self).__name__} cannot say who decided an answer")

    def for_site(self, site: str) -> "Model":  # noqa: ARG002
        """The predictor of one site, of a personalised model."""
        raise InputError(f"a {type(self).__name__} answers alike for every site")

    def conforming(self, X: npt.ArrayLike, **options: Any) -> tuple[FloatArray, FloatArray | None]:  # noqa: ARG002
        """Probabilities (n, C) as a coverage counts them, and the strangeness (n,) of rows, None without machines."""
        raise InputError(f"a {type(self).__name__} states no coverage")

    def probabilities_without(
        self,
        X: npt.ArrayLike,  # noqa: ARG002
        sets: Sequence[SiteSet],  # noqa: ARG002
        heads: Sequence["RidgeModel"] = (),  # noqa: ARG002
        **options: Any,  # noqa: ARG002
    ) -> FloatArray:
        """Probabilities (1 + V, n, C) of rows (n, p): by all sites first, then without each of V ``sets`` of sites.

        ``heads`` are heads without the first sets, in their order; to further sets the head of all sites answers.
        """
        raise InputError(
            f"sites are left out of a FoldingModel, a RidgeModel or a FusionModel, got a {type(self).__name__}"
        )

    # What it is ----------------------------------------------------------------------------------------------------

    def parts(self) -> Mapping[str, "Model"]:
        """The models that it is made of, by the names of their fields; {} for a simple model."""
        return {}

    def exposure(self) -> str | None:
        """What wrong sites can do to the answers, in words; None if that is nothing, or not known."""
        return None

    def settings(self) -> Mapping[str, Any]:
        """What the model was made with, as plain values."""
        return {}

    def chosen_by(self) -> Mapping[str, str]:
        """What was chosen by rows and not given, and how, in words."""
        return {}

    def connect(self, federation: Any) -> Self:
        """The same model, answered by the sites of ``federation``."""
        connected: Self = federation.connect(self)
        return connected

    def with_privacy(self, terms: Terms) -> Self:
        """The same model under other terms of the release that it is made of."""
        return replace(self, privacy=terms)  # type: ignore[type-var]  # the models with terms are dataclasses

    def describe(self) -> ModelSummary:
        """What a page, a service or a command shows of the model."""
        return ModelSummary(
            type(self).__name__,
            str(self),
            "classify" if self.is_classifier else "regress",
            tuple(np.asarray(self.classes_).tolist()),
            int(self.n_features_in_),
            self.column_names,
            () if self.preparation is None else tuple(self.preparation.used),
            self.hold,
            tuple(self._site_summary(site) for site in self.sites),
            dict(self.missing_),
            self.privacy,
            self.exposure(),
            self.settings(),
            self.chosen_by(),
            self.conformal_ is not None,
            {name: part.describe() for name, part in self.parts().items()},
        )

    def _site_summary(self, site: str) -> SiteSummary:
        member = self.members_.get(site)
        if member is None:
            return SiteSummary(site)
        return SiteSummary(site, member.rows, len(member.classes), member.machines)


class OtherModel(Model):
    """A predictor of another package, by what predictors have in common: ``predict``, classes and columns."""

    classes_: npt.NDArray[Any]
    n_features_in_: int
    missing_: Mapping[str, str]

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.classes_ = np.asarray(getattr(inner, "classes_", ()))
        self.n_features_in_ = int(getattr(inner, "n_features_in_", 0))
        self.feature_names_in_ = tuple(getattr(inner, "feature_names_in_", ()))
        self.missing_ = getattr(inner, "missing_", {})

    def predict(self, X: npt.ArrayLike, *args: Any, **options: Any) -> npt.NDArray[Any]:
        """Labels, or values, as the predictor gives them."""
        return np.asarray(self.inner.predict(X, *args, **options))

    def predict_proba(self, X: npt.ArrayLike, *args: Any, **options: Any) -> FloatArray:
        """Probabilities (n, C), where the predictor has some."""
        return np.asarray(self.inner.predict_proba(X, *args, **options))

    @property
    def has_scores(self) -> bool:
        """Whether the predictor has a method of this name."""
        return self.is_classifier and hasattr(self.inner, "scores")

    def scores(self, X: npt.ArrayLike, *args: Any, **options: Any) -> FloatArray:
        """Scores (n, C) of the predictor."""
        return np.asarray(self.inner.scores(X, *args, **options))

    def describe(self) -> ModelSummary:
        """What is shown of the predictor, under its name and in its text."""
        return replace(super().describe(), kind=type(self.inner).__name__, text=str(self.inner))

    def settings(self) -> Mapping[str, Any]:
        """Parameters as scikit-learn names them, where the predictor has some."""
        return dict(self.inner.get_params()) if hasattr(self.inner, "get_params") else {}


def as_model(value: Any) -> Model:
    """A model of this package as it is, and a predictor of another one as an ``OtherModel``."""
    if isinstance(value, Model):
        return value
    if not callable(getattr(value, "predict", None)):
        raise InputError(f"a {type(value).__name__} cannot be tested, expected a model that predicts")
    return OtherModel(value)
