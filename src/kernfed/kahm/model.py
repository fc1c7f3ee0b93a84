"""The model a federation of folding sites makes: a handle on machines that stay at their sites, or the machines."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.abstain import Abstaining, Coverage, strangeness
from kernfed.base.answer import Answer
from kernfed.base.checks import FloatArray, check_rows
from kernfed.base.median import median_by_rows
from kernfed.base.model import SiteSet
from kernfed.base.prior import Prior, adjusted_scores, check_prior, log_ratio, weighted_shares
from kernfed.data.preparation import Preparation, prepared_rows
from kernfed.errors import InputError, NotConnected
from kernfed.kahm.bank import Bank
from kernfed.kahm.choice import Chosen
from kernfed.kahm.folding import ABSENT
from kernfed.kahm.left_out import even_if_unknown, softmin
from kernfed.kahm.members import (
    TRUST,
    Connection,
    Explanation,
    FoldingParameters,
    Member,
    SiteScores,
    Trusted,
    combine,
    deciding,
    exposure,
    is_trusted,
    place_classes,
    project,
    protects,
    unprotected,
)
from kernfed.promise import Terms

__all__ = ["TRUST", "FoldingModel", "FoldingParameters", "Member", "SiteScores", "place_classes"]

#: The share of all rows above which a site's word for them is not taken.
_LARGE_SHARE = 0.9


@dataclass(frozen=True)
class FoldingModel(Abstaining):
    """Global classifier SFM (118), GIKM (56): the class with the smallest measure over all sites.

    ``hold="sites"``: the machines stay where their rows are and queries travel to them; the file holds a handle and no
    rows. ``hold="machines"``: ``banks_`` holds every site's machines, which contain its rows. ``privacy``: under which
    terms of differential privacy rows were released, None where they were taken as they are. ``basis`` (p, k): public
    directions that rows were projected onto before, and queries are now; None for none. ``calibrated_``: the
    temperature that ``kernfed.calibrate`` fitted for all sites together; it goes when rows or sites come or go.
    ``trusted_classes``: labels, or "all", that under "kth" take part however few sites hold them. ``preparation``: what
    becomes of raw columns, where the sites had a table of them; queries may then be such tables. ``chosen``: how rows
    are scaled and divided, where sites chose that, and what they chose it by. ``prior``: the shares
    of classes where the model is used, "training", "uniform", or a share for every class; also an argument of whatever
    predicts. Scores are those for the shares in training: a class of more rows has more machines, and nearer ones. They
    move by ``- T log(pi'_c / pi_c)``, T the temperature. ``conformal_``: what ``kernfed.conform`` counted on rows kept
    aside; it goes when rows or sites come or go.
    A pickled model, as one read from its file, has no connection: ``connect`` it again.
    """

    parameters: FoldingParameters
    handle: str
    classes_: npt.NDArray[Any]
    n_features_in_: int
    members_: Mapping[str, Member] = field()
    missing_: Mapping[str, str] = field(default_factory=dict)
    feature_names_in_: tuple[str, ...] = ()
    banks_: Mapping[str, Bank] | None = None
    connection: Connection | None = field(default=None, compare=False)
    privacy: Terms | None = None
    calibrated_: float | None = None
    basis: FloatArray | None = None
    trusted_classes: Trusted = ()
    preparation: Preparation | None = None
    chosen: Chosen | None = None
    prior: Prior = "training"
    conformal_: Coverage | None = None

    can_change = can_explain = can_calibrate = can_leave_out_sites = True

    def __str__(self) -> str:
        where = "at the sites" if self.banks_ is None else "in this model"
        privacy = "none" if self.privacy is None else self.privacy.line()
        size = f"{len(self.classes_)} classes, {self.n_features_in_} columns and {len(self.members_)} site(s)"
        chosen = None if self.chosen is None else f"chosen: {self.chosen}"
        lines = (f"FoldingModel of {size}, machines {where}", chosen, self.exposure(), f"privacy: {privacy}")
        return "\n".join(line for line in lines if line is not None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "connection": None}  # sites cannot be pickled, and are not in the file either

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites that take part, sorted."""
        return tuple(sorted(self.members_))

    @property
    def folding(self) -> "FoldingModel":
        """The model itself."""
        return self

    def settings(self) -> Mapping[str, Any]:
        """What all sites do alike, as plain values."""
        return self.parameters.to_values()

    def chosen_by(self) -> Mapping[str, str]:
        """Scale and division of rows, where sites chose them."""
        return {} if self.chosen is None else {"scale and division": str(self.chosen)}

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
        """The calibrated one, or the median of the members', weighted by rows; 1 where no site has two rows.

        Nobody can count a site's rows: one of three and more that claims above nine tenths of all weighs as the next.
        """
        if self.calibrated_ is not None:
            return self.calibrated_
        told = [(m.temperature, m.rows) for m in self.members_.values() if m.temperature is not None]
        largest = sorted((rows for _, rows in told), reverse=True)
        if len(told) > 2 and largest[0] > _LARGE_SHARE * sum(largest):
            told = [(temperature, min(rows, largest[1])) for temperature, rows in told]
        return median_by_rows(told)

    @property
    def unprotected_(self) -> npt.NDArray[Any]:
        """Labels that a wrong site can decide (k - 1 of them, for a larger k): held by fewer than k + 1 sites.

        Under "kth" they take no part in a decision unless they are trusted: ``left_out_``. Under "min" they are all.
        """
        few = self.classes_[unprotected(self.holds, self.parameters.aggregate, self.parameters.k)].tolist()
        return self._labels({*few, *self._not_classes()})

    @property
    def left_out_(self) -> npt.NDArray[Any]:
        """Labels that sites hold and that are never predicted: under "kth" the unprotected that are not trusted."""
        if not protects(self.parameters.aggregate, self.parameters.k):
            return self.classes_[:0]
        few = self.unprotected_.tolist()
        return self._labels({label for label in few if not is_trusted(label, self.trusted_classes)})

    def exposure(self) -> str | None:
        """What "kth" does not protect from wrong sites, in words; None if that is nothing, and of "min"."""
        p, names = self.parameters, self.unprotected_.tolist()
        total = len(self.classes_) + len(self._not_classes())
        return exposure(names, total, len(self.members_), p.aggregate, p.k, self.trusted_classes)

    def _labels(self, names: set[Any]) -> npt.NDArray[Any]:
        return np.array(sorted(names)) if names else self.classes_[:0]

    def _not_classes(self) -> set[Any]:
        """Labels of sites that are no classes of this model."""
        return {label for member in self.members_.values() for label in member.left_out}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, whole or not at all; read it with ``kernfed.load``.

        A ``TemporaryStores`` warning says where machines vanish with this process, so that the file is of no use later.
        """
        super().save(path)
        if self.banks_ is None and self.connection is not None:
            self.connection.saved(self, path)

    def answer(self, X: npt.ArrayLike, *, prior: Prior = None, **options: Any) -> Answer:
        """Labels, probabilities, scores and who decided, from one scoring; ``options`` as in ``site_scores``.

        ``site`` and ``batch`` name what came nearest in the label's class, ``score`` (n,) how near.
        """
        by_site = self.site_scores(X, explain=True, **options)
        plain = self.combined(by_site)
        scores = self._moved(plain, prior)
        winners = scores.argmin(axis=1)
        site, batch, score = by_site.nearest(np.arange(len(winners)), winners)
        return Answer(
            self.classes_[winners],
            softmin(scores, self.temperature_),
            scores,
            site.astype(str),
            batch,
            score,
            by_site.sites,
            by_site.missing,
            distance=plain.min(axis=1),
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
        return self.combined(self.site_scores(X, **options))

    def predict(
        self,
        X: npt.ArrayLike,
        *,
        secure: str | None = None,
        bits: int = 8,
        prior: Prior = None,
        abstain: float | None = None,
        **options: Any,
    ) -> npt.NDArray[Any]:
        """Label with the smallest score, (n,); ties go to the first class.

        With ``secure`` ("bfv", "tfhe", or "plain" to try out) sites encrypt their scores, rounded to ``bits`` bits,
        and nobody but the asking key holder reads the answer; see ``kernfed.secure``. With ``abstain`` labels are
        masked where the model does not know, see ``abstaining``.
        """
        if abstain is not None:
            if secure is not None:
                raise InputError("encrypted scores are compared and not read, so nobody can abstain: leave one out")
            return self.abstaining(X, abstain, prior, **options)
        if secure is not None and self._shift(prior) is not None:
            raise InputError(f"encrypted scores are compared as they are: leave out the prior, got {prior!r}")
        if secure is not None:
            return self._connected().secure_predict(self, self._queries(X), scheme=secure, bits=bits, **options)
        return np.asarray(self.classes_[self._moved(self.scores(X, **options), prior).argmin(axis=1)])

    def predict_proba(self, X: npt.ArrayLike, *, prior: Prior = None, **options: Any) -> FloatArray:
        """Probabilities (n, C): softmax of the negative scores over the temperature.

        Each site fits it to rows that its machines did not see, among its own classes, and the median counts;
        ``kernfed.calibrate`` fits it to all sites together.
        """
        return self.probabilities_of(self.scores(X, **options), prior)

    def probabilities_of(self, scores: FloatArray, prior: Prior = None) -> FloatArray:
        """Probabilities (n, C) of scores (n, C)."""
        return softmin(self._moved(scores, prior), self.temperature_)

    def conforming(self, X: npt.ArrayLike, **options: Any) -> tuple[FloatArray, FloatArray | None]:
        """Probabilities (n, C) at the temperature of the sites, and the strangeness (n,) of each query.

        A temperature that was fitted to the rows kept aside would let these know of their own labels.
        """
        scores = self.scores(X, **options)
        prior = self.prior if self.conformal_ is None else self.conformal_.prior
        plain = replace(self, calibrated_=None, prior=prior)
        return softmin(plain._moved(scores, None), plain.temperature_), strangeness(scores)

    @property
    def distance_unit(self) -> float:
        """The temperature of the sites: a third of the usual deviation of scores."""
        return replace(self, calibrated_=None).temperature_

    def explain(self, X: npt.ArrayLike, **options: Any) -> Explanation:
        """Per query the label, and which site and which of its batches came nearest in that class."""
        return Explanation.of(self.answer(X, **options))

    def probabilities_without(
        self,
        X: npt.ArrayLike,
        sets: Sequence[SiteSet],
        heads: Sequence[Any] = (),  # noqa: ARG002  of models with a head
        **options: Any,
    ) -> FloatArray:
        """Probabilities (1 + V, n, C) from one scoring: machines combine by a minimum, so a site is left out of it.

        All classes are alike where nobody is left to tell them apart.
        """
        by_site = self.site_scores(X, **options)
        return np.stack([even_if_unknown(self.probabilities_of(self.combined(by_site, s))) for s in ((), *sets)])

    def local(self, site: str) -> "FoldingModel":
        """Local classifier, GIKM Definition 5 (57), of one site: only its machines answer, and they are trusted."""
        self._check_member(site)
        banks = None if self.banks_ is None else {site: self.banks_[site]}
        own = {site: self.members_[site]}
        return replace(self, members_=own, banks_=banks, calibrated_=None, trusted_classes="all", conformal_=None)

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

    def checked_rows(self, X: npt.ArrayLike) -> FloatArray:
        """Queries (n, p) as numbers, prepared and checked."""
        rows = prepared_rows(self.preparation, X)
        return check_rows(rows, width=self.n_features_in_, columns=self.feature_names_in_)

    def _queries(self, X: npt.ArrayLike) -> FloatArray:
        """Queries as the machines know them."""
        return project(self.checked_rows(X), self.basis)

    def _without(self, site: str) -> "FoldingModel":
        members = {name: member for name, member in self.members_.items() if name != site}
        if not members:
            raise InputError(f"{site!r} is the last site; a model needs at least one")
        held = {name: member.held(self.classes_) for name, member in members.items()}  # some classes may have gone
        classes, members = place_classes(members, held, self.parameters, self.trusted_classes)
        banks = None if self.banks_ is None else {name: bank for name, bank in self.banks_.items() if name != site}
        return replace(self, members_=members, classes_=classes, banks_=banks, calibrated_=None, conformal_=None)

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

    def class_shares(self) -> FloatArray | None:
        """Shares (C,) of classes over all sites' rows, None where a site did not tell its own."""
        totals = dict.fromkeys(self.classes_.tolist(), 0)
        for member in self.members_.values():
            held = member.held(self.classes_)
            if len(member.counts) != len(held):
                return None
            for label, count in zip(held, member.counts, strict=True):
                if label in totals:
                    totals[label] += count
        return weighted_shares(list(totals.values()))

    def _shift(self, prior: Prior) -> FloatArray | None:
        asked = self.prior if prior is None else check_prior(prior, self.classes_)
        if asked is None or asked == "training":
            return None
        shares = self.class_shares()
        return log_ratio(asked, self.classes_, made=shares, training=shares)

    def _moved(self, scores: FloatArray, prior: Prior) -> FloatArray:
        return adjusted_scores(scores, self.temperature_, self._shift(prior))

    def _holds(self, sites: Sequence[str]) -> npt.NDArray[np.bool_]:
        holds = np.zeros((len(sites), len(self.classes_)), dtype=bool)
        for row, site in enumerate(sites):
            holds[row, list(self.members_[site].classes)] = True
        return holds

    def combined(self, by_site: SiteScores, without: Collection[str] = ()) -> FloatArray:
        """Scores (n, C) of the federation from those of its sites, as they would be ``without`` some of them.

        Which classes take part is decided by all sites: to leave one out makes no class unprotected.
        """
        p, holds = self.parameters, self._holds(by_site.sites)
        decides = deciding(self.classes_, holds, p.aggregate, p.k, self.trusted_classes)
        if not decides.any():
            raise InputError(
                f"under kth with k={p.k} a class takes part where at least {p.k + 1} sites hold it, and of the "
                f"{len(by_site.sites)} site(s) that answer no {p.k + 1} hold the same one: {TRUST}"
            )
        counted = holds & ~np.isin(by_site.sites, list(without))[:, None]
        return combine(by_site.values, counted, p.aggregate, p.k, ABSENT[p.measure], decides)

    def _bank_scores(self, queries: FloatArray) -> SiteScores:
        assert self.banks_ is not None
        scaled = self.parameters.scaled(queries)
        shape = (len(self.members_), len(queries), len(self.classes_))
        values, batches = np.full(shape, ABSENT[self.parameters.measure]), np.full(shape, -1, dtype=np.intp)
        for row, site in enumerate(self.sites):
            own = self.banks_[site].scores(scaled, self.parameters.measure)
            member = self.members_[site]
            columns, theirs = list(member.classes), member.columns(self.classes_)
            values[row][:, columns], batches[row][:, columns] = own.values[:, theirs], own.winners[:, theirs]
        return SiteScores(values, batches, self.sites)
