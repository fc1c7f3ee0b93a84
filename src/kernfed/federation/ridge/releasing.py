"""What sites do for a ``RidgeLearner`` under differential privacy: release noisy sums, once."""

from dataclasses import replace

import numpy as np

from kernfed.errors import InputError, Refused
from kernfed.federation.ridge.tasks import read_parameters
from kernfed.federation.survey import check_rows_of, read_targets
from kernfed.files import Record
from kernfed.kernels.features import FourierFeatures
from kernfed.privacy.ledger import Ledger
from kernfed.privacy.limits import check_features, saturate
from kernfed.privacy.ridge import RecordRidge
from kernfed.ridge.parameters import RidgeParameters
from kernfed.site.protocol.message import Payload, digest
from kernfed.site.protocol.task import task
from kernfed.site.release.asked import check_task, read_mechanism
from kernfed.site.release.permit import releasing, statement
from kernfed.site.site import Site


@task("ridge_release", leaves="released", under_privacy="released")
def release_sums(site: Site, payload: Payload) -> Payload:
    """Noisy ``X'X`` (M, M) and ``X'y`` (M, C), rows, and the regularisation that the noise asks for; released once."""
    mechanism = read_mechanism(payload.values["privacy"], RecordRidge)
    parameters = read_parameters(payload.values)
    if parameters.class_weights is not None or parameters.fit_intercept:
        raise Refused("bad question", "rows are released without weights of classes, and without an intercept")
    features = parameters.feature_map()
    check_bounded(site, parameters, features)
    check_task(site, parameters.task)
    with releasing(site, mechanism) as permit:
        rows = check_rows_of(site, parameters, permit.rows())
        site.allow(numbers=len(rows.y) * (parameters.n_features + parameters.n_targets))
        targets = read_targets(parameters, rows)

        def compute(ledger: Ledger) -> Record:
            mapped = rows.X if features is None else features.transform(saturate(rows.X))
            sums = mechanism.release(mapped, targets, ledger=ledger, ids=rows.people)
            scalars = np.array([float(sums.moments.n), sums.regularization])
            return Record({"second": sums.moments.second, "cross": sums.moments.cross, "scalars": scalars})

        record = permit.once(rows, compute, key=_problem_key(parameters))
    return Payload(record.arrays, {"privacy": statement(site, *mechanism.guarantees(parameters.width))})


def check_bounded(site: Site, parameters: RidgeParameters, features: FourierFeatures | None) -> None:
    """Refuse features that are too many, or that would not be finite for every row, before there is any."""
    columns = parameters.n_features + parameters.n_targets
    site.allow(features=parameters.n_features, numbers=4 * columns**2)  # sums, their noise, and two copies on the way
    if features is not None:
        try:
            check_features(features)
        except InputError as error:
            raise Refused("bad question", f"the features asked for cannot be had: {error}") from None


def _problem_key(parameters: RidgeParameters) -> str:
    """Digest of what the sums depend on: everything but the regularisation."""
    return digest(replace(parameters, regularization=(1.0,)).to_values())
