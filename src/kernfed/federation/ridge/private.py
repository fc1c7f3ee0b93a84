"""Ridge regression from noisy sums: every site releases ``X'X`` and ``X'y`` once (AdaSSP), and they are added up.

Only method "exact" can be had this way. The others exchange sums with the raw rows in every round, or choose by looking
at them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from kernfed._validation import FloatArray
from kernfed.errors import InputError, Refused
from kernfed.federation.protocol.message import Payload, digest
from kernfed.federation.release.charging import (
    Mechanism,
    check_release,
    mechanism_from_values,
    mechanism_to_values,
    promise,
    released,
    spent,
)
from kernfed.federation.ridge.system import Sites, check_arrays
from kernfed.federation.ridge.tasks import learning_rows, read_parameters, read_targets
from kernfed.federation.site.site import Site
from kernfed.files import Record, from_record, register, to_record
from kernfed.kahm.terms import Terms, dump_terms, load_terms
from kernfed.kernels import Moments
from kernfed.privacy import Ledger, RecordRidge, RidgeRelease
from kernfed.ridge.model import RidgeModel
from kernfed.ridge.parameters import RidgeParameters


@dataclass(frozen=True, eq=False)
class PrivateRidgeModel(RidgeModel):
    """A ``RidgeModel`` made of released sums; ``privacy`` says under which terms."""

    privacy: Terms | None = None

    def __str__(self) -> str:
        assert self.privacy is not None
        return f"PrivateRidgeModel of {self.parameters.n_features} features\nprivacy: {self.privacy.line()}"


def check_private_ridge(
    privacy: Any,
    method: str,
    bandwidth: Any,
    features: str,
    candidates: int,
    class_weight: Any,
    diagnose: bool,
    intercept: bool,
) -> RecordRidge:
    """The mechanism, if every setting of the learner can be had with it; otherwise what cannot."""
    if not isinstance(privacy, RecordRidge):
        raise InputError(f"privacy must be None or kernfed.privacy.RecordRidge, got {privacy!r:.80}")
    unsound = {
        f"method={method!r} exchanges sums of the raw rows; use method='exact'": method != "exact",
        "bandwidth='median' looks at the raw rows; give a number": features == "fourier" and bandwidth == "median",
        "choosing among regularizations looks at the raw rows; give one": candidates > 1,
        "class_weight needs rows of other norms than the mechanism clips to; leave it None": class_weight is not None,
        "diagnose exchanges sums of the raw rows; leave it False": diagnose,
        "intercept needs means of the raw rows; leave it out, and subtract from y what is known of its mean": intercept,
    }
    for reason, wrong in unsound.items():
        if wrong:
            raise InputError(f"privacy cannot be kept: {reason}")
    return privacy


def ridge_terms(mechanism: RecordRidge, parameters: RidgeParameters, told: Mapping[str, Mapping[str, Any]]) -> Terms:
    """What a model says of its privacy; ``told`` is what each site says of its release."""
    element, record = promise(mechanism, parameters.width)
    labels = "labels, classes and rows per class are public"
    if parameters.task == "regress":
        labels = "targets are protected with their row"
    request = {"mechanism": mechanism_to_values(mechanism), "labels": None}
    terms = Terms(
        request,
        (str(element), str(record), labels),
        (element.epsilon, element.delta),
        (record.epsilon, record.delta),
        {},
    )
    for pairs in told.values():
        terms.check_told(pairs)
    return terms.with_told(told)


def solve_released(sites: Sites, mechanism: RecordRidge, regularization: float) -> tuple[FloatArray, Terms]:
    """Weights (M, C) from the sums that all sites release, and the terms of these releases."""
    M, C = sites.parameters.n_features, sites.parameters.n_targets
    question = Payload(values={"parameters": sites.parameters.to_values(), "privacy": mechanism_to_values(mechanism)})
    expected = {"second": (M, M), "cross": (M, C), "scalars": (2,)}

    def read(payload: Payload) -> tuple[Moments, float]:
        check_arrays(payload, expected)
        ridge_terms(mechanism, sites.parameters, {"": payload.values["privacy"]})
        rows, needed = map(float, payload.arrays["scalars"])
        if rows < 1 or needed < 0:
            raise InputError(f"expected rows and a regularisation, got {rows} and {needed}")
        joint = np.zeros((M + C, M + C))
        joint[:M, :M], joint[:M, M:] = payload.arrays["second"], payload.arrays["cross"]
        joint[M:, :M] = joint[:M, M:].T
        return Moments(int(rows), M, np.zeros(M + C), joint), needed

    replies = sites.ask("ridge_release", question, read)
    found = [read(payload) for payload in replies.values()]
    total = sum((moments for moments, _ in found), Moments.zero(M, C))
    # Noise of independent releases adds up as the root of squares, and so does what has to be added against it.
    needed = math.sqrt(sum(part**2 for _, part in found))
    pooled = RidgeRelease(total, needed, *mechanism.guarantees(), True, ())
    told = {site: payload.values["privacy"] for site, payload in replies.items()}
    return pooled.coefficients(regularization), ridge_terms(mechanism, sites.parameters, told)


# At a site --------------------------------------------------------------------------------------------------------


def read_mechanism(site: Site, values: Any) -> RecordRidge:
    """The mechanism in a question, if it is for ridge regression and the site's policy allows it."""
    try:
        mechanism: Mechanism = mechanism_from_values(values)
        if not isinstance(mechanism, RecordRidge):
            raise InputError("ridge regression takes record-ridge")
    except (ValueError, RecursionError) as error:
        raise Refused("bad question", f"the privacy asked for cannot be followed: {error}") from None
    check_release(site, mechanism)
    return mechanism


def release_sums(site: Site, payload: Payload) -> Payload:
    """Noisy ``X'X`` (M, M) and ``X'y`` (M, C), rows, and the regularisation that the noise asks for; released once."""
    mechanism = read_mechanism(site, payload.values["privacy"])
    parameters = read_parameters(payload.values)
    rows = learning_rows(site)
    if rows.X.shape[1] != parameters.width:
        raise Refused("bad question", f"site {site.name!r} has {rows.X.shape[1]} columns, not {parameters.width}")
    targets, weights = read_targets(parameters, rows)
    if weights is not None:
        raise Refused("bad question", "rows are released without weights of classes")

    def compute(ledger: Ledger) -> Record:
        features = parameters.feature_map()
        mapped = rows.X if features is None else features.transform(rows.X)
        found = mechanism.release(mapped, targets, ledger=ledger, ids=rows.ids)
        scalars = np.array([float(found.moments.n), found.regularization])
        return Record({"second": found.moments.second, "cross": found.moments.cross, "scalars": scalars})

    record = released(site, mechanism, rows, compute, key=_problem_key(parameters))
    element, promised = mechanism.guarantees()
    pairs = {
        "element": (element.epsilon, element.delta),
        "record": (promised.epsilon, promised.delta),
        "spent": spent(site),
    }
    return Payload(record.arrays, {"privacy": {k: [f"{v:.16e}" for v in pair] for k, pair in pairs.items()}})


def _problem_key(parameters: RidgeParameters) -> str:
    """Digest of what the sums depend on: everything but the regularisation."""
    return digest(replace(parameters, regularization=(1.0,)).to_values())


# Files ------------------------------------------------------------------------------------------------------------


def _dump(model: PrivateRidgeModel) -> Record:
    assert model.privacy is not None
    plain = RidgeModel(**{field.name: getattr(model, field.name) for field in fields(RidgeModel)})
    record = to_record(plain)
    return Record(record.arrays, {"model": dict(record.values), "privacy": dump_terms(model.privacy)})


def _load(record: Record) -> PrivateRidgeModel:
    plain = from_record(Record(record.arrays, record.values["model"]))
    if type(plain) is not RidgeModel:
        raise InputError(f"a private ridge model is made of a RidgeModel, got {type(plain).__name__}")
    parts = {field.name: getattr(plain, field.name) for field in fields(RidgeModel)}
    return PrivateRidgeModel(**parts, privacy=load_terms(record.values["privacy"], None, plain.width))


register("PrivateRidgeModel", 1, PrivateRidgeModel, _dump, _load)
