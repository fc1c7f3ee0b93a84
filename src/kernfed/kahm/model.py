"""The model a federation of folding sites makes: a handle on machines that stay at their sites, or the machines."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kernfed._median import median_by_rows
from kernfed._validation import FloatArray, check_choice, check_count, check_rows
from kernfed.answer import Answer
from kernfed.errors import InputError, NotConnected
from kernfed.files import Savable
from kernfed.kahm.aggregate import AGGREGATES, Explanation, combine, exposure, unprotected
from kernfed.kahm.bank import Bank
from kernfed.kahm.batches import PARTITIONS
from kernfed.kahm.calibration import softmin
from kernfed.kahm.folding import ABSENT, MEASURES
from kernfed.kahm.projection import project
from kernfed.kahm.spectrum import DTYPES
from kernfed.promise import Terms


@dataclass(frozen=True)
class FoldingParameters:
    """What all sites do alike."""

    measure: str = "rms"
    batch_size: int = 100
    partition: str = "order"
    layers: int = 1
    subspace_dim: int | None = None
    dtype: str = "float64"
    aggregate: str = "min"
    k: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(self.measure, "measure", MEASURES)
        check_count(self.batch_size, "batch_size")
        check_choice(self.partition, "partition", PARTITIONS)
        check_count(self.layers, "layers")
        if self.subspace_dim is not None:
            check_count(self.subspace_dim, "subspace_dim")
        check_choice(self.dtype, "dtype", DTYPES)
        check_choice(self.aggregate, "aggregate", AGGREGATES)
        check_count(self.k, "k")
        check_count(self.seed, "seed", at_least=0)

    def to_values(self) -> dict[str, Any]:
        """Plain values for messages and files."""
        return asdict(self)


@dataclass(frozen=True)
class Member:
    """One site as the model knows it: positions of its classes, and the state of its machines the model refers to.

    ``temperature`` is what the site's own rows suggest for probabilities; None where there is one.
    """

    classes: tuple[int, ...]
    generation: int
    machines: int
    rows: int
    temperature: float | None = None


@dataclass(frozen=True)
class SiteScores:
    """Scores by site: values (Q, n, C), batch (Q, n, C) that gave them or -1, sites (Q,), and who is missing."""

    values: FloatArray
    batches: npt.NDArray[np.intp]
    sites: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)


class Connection(Protocol):
    """What a model needs of a federation; ``kernfed.federation.folding.connection`` provides it."""

    def scores(
        self,
        model: "FoldingModel",
        X: FloatArray,
        *,
        explain: bool = False,
        min_replies: int | None = None,
        timeout: float = 600.0,
    ) -> SiteScores:
        """Scores of all members."""

    def saved(self, model: "FoldingModel", path: Any) -> None:
        """Hear that the model was saved; warn where the sites will not remember its machines."""

    def secure_predict(
        self,
        model: "FoldingModel",
        X: FloatArray,
        *,
        scheme: str,
        bits: int,
        min_replies: int | None = None,
        timeout: float = 600.0,
    ) -> npt.NDArray[Any]:
        """Labels by encrypted scores."""

    def forget(self, model: "FoldingModel", site: str, rows: Sequence[int] | None) -> "FoldingModel":
        """Model without a site, or without some of its rows."""

    def add_site(self, model: "FoldingModel", site: str, data: Any) -> "FoldingModel":
        """Model with another site."""

    def add_rows(self, model: "FoldingModel", site: str, X: Any, y: Any, ids: Any) -> "FoldingModel":
        """Model with further rows at a site."""


@dataclass(frozen=True)
class FoldingModel(Savable):
    """Global classifier SFM (118), GIKM (56): the class with the smallest measure over all sites.

    ``hold="sites"``: the machines stay where their rows are and queries travel to them; the file holds a handle and no
    rows. ``hold="machines"``: ``banks_`` holds every site's machines, which contain its rows. ``privacy``: under which
    terms of differential privacy rows were released, None where they were taken as they are. ``basis`` (p, k): public
    directions that rows were projected onto before, and queries are now; None for none. ``calibrated_``: the
    temperature that ``kernfed.calibrate`` fitted for all sites together; it goes when rows or sites come or go.
    A pickled model, as one read from its file, has no connection: ``connect`` it again.
    """

    parameters: FoldingParameters
    handle: str
    classes_: npt.NDArray[Any]
    n_features_in_: int
    members_: Mapping[str, Member]
    missing_: Mapping[str, str] = field(default_factory=dict)
    feature_names_in_: tuple[str, ...] = ()
    banks_: Mapping[str, Bank] | None = None
    connection: Connection | None = field(default=None, compare=False)
    privacy: Terms | None = None
    calibrated_: float | None = None
    basis: FloatArray | None = None

    def __str__(self) -> str:
        where = "at the sites" if self.banks_ is None else "in this model"
        privacy = "none" if self.privacy is None else self.privacy.line()
        size = f"{len(self.classes_)} classes, {self.n_features_in_} columns and {len(self.members_)} site(s)"
        exposed = exposure(self.classes_, self.holds, self.parameters.aggregate, self.parameters.k)
        lines = (f"FoldingModel of {size}, machines {where}", exposed, f"privacy: {privacy}")
        return "\n".join(line for line in lines if line is not None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "connection": None}  # sites cannot be pickled, and are not in the file either

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites that take part, sorted."""
        return tuple(sorted(self.members_))

    @property
    def hold(self) -> str:
        """Where the machines are: "sites" or "machines"."""
        return "sites" if self.banks_ is None else "machines"

    @property
    def holds(self) -> npt.NDArray[np.bool_]:
        """Which site has which class, (Q, C)."""
        return self._holds(self.sites)

    @property
    def temperature_(self) -> float:
        """The calibrated one, or the median of the members', weighted by rows; 1 where no site has two rows."""
        if self.calibrated_ is not None:
            return self.calibrated_
        return median_by_rows((m.temperature, m.rows) for m in self.members_.values() if m.temperature is not None)

    @property
    def unprotected_(self) -> npt.NDArray[Any]:
        """Labels of the classes that a single wrong site can decide."""
        return np.asarray(self.classes_[unprotected(self.holds, self.parameters.aggregate, self.parameters.k)])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, whole or not at all; read it with ``kernfed.load``.

        A ``TemporaryStores`` warning says where machines vanish with this process, so that the file is of no use later.
        """
        super().save(path)
        if self.banks_ is None and self.connection is not None:
            self.connection.saved(self, path)

    def connect(self, federation: Any) -> "FoldingModel":
        """The same model, answered by the sites of ``federation``."""
        connected: FoldingModel = federation.connect(self)
        return connected

    def answer(self, X: npt.ArrayLike, **options: Any) -> Answer:
        """Labels, probabilities, scores and who decided, from one scoring; ``options`` as in ``site_scores``.

        ``site`` and ``batch`` name what came nearest in the label's class, ``score`` (n,) how near.
        """
        by_site = self.site_scores(X, explain=True, **options)
        scores = self._combined(by_site)
        winners = scores.argmin(axis=1)
        every = np.arange(len(winners))
        own = np.where(self._holds(by_site.sites)[:, winners], by_site.values[:, every, winners], np.inf)
        nearest = own.argmin(axis=0)
        return Answer(
            self.classes_[winners],
            softmin(scores, self.temperature_),
            scores,
            np.array(by_site.sites)[nearest],
            by_site.batches[nearest, every, winners],
            own[nearest, every],
            by_site.sites,
            by_site.missing,
        )

    def site_scores(self, X: npt.ArrayLike, *, explain: bool = False, **options: Any) -> SiteScores:
        """Scores by site, with their batches where ``explain``: they cost one integer per score on the way.

        ``options`` are ``timeout`` and ``min_replies`` of ``Federation.ask``.
        """
        queries = self._queries(X)
        if self.banks_ is not None:
            return self._bank_scores(queries)
        return self._connected().scores(self, queries, explain=explain, **options)

    def scores_by_site(self, X: npt.ArrayLike, **options: Any) -> FloatArray:
        """Scores (Q, n, C): sites in order of ``sites``, classes of ``classes_``; a class a site lacks is absent."""
        return self.site_scores(X, **options).values

    def scores(self, X: npt.ArrayLike, **options: Any) -> FloatArray:
        """Scores (n, C) in the order of ``classes_``: SMALLER is better."""
        return self._combined(self.site_scores(X, **options))

    def predict(
        self, X: npt.ArrayLike, *, secure: str | None = None, bits: int = 8, **options: Any
    ) -> npt.NDArray[Any]:
        """Label with the smallest score, (n,); ties go to the first class.

        With ``secure`` ("bfv", "tfhe", or "plain" to try out) sites encrypt their scores, rounded to ``bits`` bits,
        and nobody but the asking key holder reads the answer; see ``kernfed.secure``.
        """
        if secure is not None:
            return self._connected().secure_predict(self, self._queries(X), scheme=secure, bits=bits, **options)
        return np.asarray(self.classes_[self.scores(X, **options).argmin(axis=1)])

    def predict_proba(self, X: npt.ArrayLike, **options: Any) -> FloatArray:
        """Probabilities (n, C): softmax of the negative scores over the temperature.

        Each site fits it to rows that its machines did not see, among its own classes, and the median counts;
        ``kernfed.calibrate`` fits it to all sites together.
        """
        return softmin(self.scores(X, **options), self.temperature_)

    def score(self, X: npt.ArrayLike, y: npt.ArrayLike, **options: Any) -> float:
        """Accuracy on rows X (n, p) with labels y (n,)."""
        from sklearn.metrics import accuracy_score  # here, for nothing else needs scikit-learn

        return float(accuracy_score(np.asarray(y), self.predict(X, **options)))

    def explain(self, X: npt.ArrayLike, **options: Any) -> Explanation:
        """Per query the label, and which site and which of its batches came nearest in that class."""
        return Explanation.of(self.answer(X, **options))

    def local(self, site: str) -> "FoldingModel":
        """Local classifier, GIKM Definition 5 (57), of one site: only its machines answer."""
        self._check_member(site)
        banks = None if self.banks_ is None else {site: self.banks_[site]}
        return replace(self, members_={site: self.members_[site]}, banks_=banks, calibrated_=None)

    def forget(self, site: str, rows: Sequence[int] | None = None) -> "FoldingModel":
        """A new model as if ``site``, or the rows with these ids, had never taken part. This one becomes stale."""
        self._check_member(site)
        if self.banks_ is not None and rows is None:
            return self._without(site)
        return self._connected().forget(self, site, rows)

    def add_site(self, site: str, data: Any = None) -> "FoldingModel":
        """A new model in which ``site`` takes part; ``data`` (X, y) where the site is made here."""
        return self._connected().add_site(self, site, data)

    def add_rows(
        self, site: str, X: npt.ArrayLike, y: npt.ArrayLike, ids: npt.ArrayLike | None = None
    ) -> "FoldingModel":
        """A new model with further rows at ``site``; only the machines they enter are fitted again."""
        self._check_member(site)
        return self._connected().add_rows(self, site, X, y, ids)

    def _queries(self, X: npt.ArrayLike) -> FloatArray:
        """Queries as the machines know them."""
        return project(check_rows(X, width=self.n_features_in_, columns=self.feature_names_in_), self.basis)

    def _without(self, site: str) -> "FoldingModel":
        members = {name: member for name, member in self.members_.items() if name != site}
        if not members:
            raise InputError(f"{site!r} is the last site; a model needs at least one")
        held = sorted({number for member in members.values() for number in member.classes})  # some may have gone
        position = {number: place for place, number in enumerate(held)}
        members = {
            name: replace(member, classes=tuple(position[number] for number in member.classes))
            for name, member in members.items()
        }
        banks = None if self.banks_ is None else {name: bank for name, bank in self.banks_.items() if name != site}
        return replace(self, members_=members, classes_=self.classes_[held], banks_=banks, calibrated_=None)

    def _check_member(self, site: str) -> None:
        if site not in self.members_:
            raise InputError(f"no site {site!r} in this model; there are {', '.join(map(repr, self.sites[:20]))}")

    def _connected(self) -> Connection:
        if self.connection is None:
            where = (
                "the machines of this model are at its sites" if self.banks_ is None else "only its sites can do this"
            )
            raise NotConnected(f"{where}: use model.connect(federation) first")
        return self.connection

    def _holds(self, sites: Sequence[str]) -> npt.NDArray[np.bool_]:
        holds = np.zeros((len(sites), len(self.classes_)), dtype=bool)
        for row, site in enumerate(sites):
            holds[row, list(self.members_[site].classes)] = True
        return holds

    def _combined(self, by_site: SiteScores) -> FloatArray:
        p = self.parameters
        return combine(by_site.values, self._holds(by_site.sites), p.aggregate, p.k, ABSENT[p.measure])

    def _bank_scores(self, queries: FloatArray) -> SiteScores:
        assert self.banks_ is not None
        shape = (len(self.members_), len(queries), len(self.classes_))
        values, batches = np.full(shape, ABSENT[self.parameters.measure]), np.full(shape, -1, dtype=np.intp)
        for row, site in enumerate(self.sites):
            own = self.banks_[site].scores(queries, self.parameters.measure)
            columns = list(self.members_[site].classes)
            values[row][:, columns], batches[row][:, columns] = own.values, own.winners
        return SiteScores(values, batches, self.sites)
