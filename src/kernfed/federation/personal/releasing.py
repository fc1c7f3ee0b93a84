"""What sites do for a ``PersonalLearner`` under differential privacy: release a noisy embedding, once."""

import numpy as np

from kernfed.errors import InputError, Refused
from kernfed.federation.personal.tasks import read_kernel, read_problem
from kernfed.federation.survey import check_rows_of, read_targets
from kernfed.files import Record
from kernfed.personal.statistics import Problem
from kernfed.personal.weights import EmbeddingKernel
from kernfed.privacy.embedding import RecordEmbedding
from kernfed.privacy.ledger import Ledger
from kernfed.privacy.limits import check_bandwidth, saturate
from kernfed.site.protocol.message import Payload, digest
from kernfed.site.protocol.task import task
from kernfed.site.release.asked import check_task, read_mechanism
from kernfed.site.release.permit import releasing, statement
from kernfed.site.site import Site


@task("personal_release", leaves="released", under_privacy="released")
def release_embedding(site: Site, payload: Payload) -> Payload:
    """Noisy mean embedding (D,) of the compared columns, rows, and the noise in each number; released once."""
    mechanism = read_mechanism(payload.values["privacy"], RecordEmbedding)
    problem, kernel = read_problem(payload.values), read_kernel(payload.values)
    _check_bounded(site, problem, kernel, mechanism)
    check_task(site, problem.task)
    with releasing(site, mechanism) as permit:
        rows = check_rows_of(site, problem, permit.rows())
        compared = kernel.rows(saturate(rows.X), saturate(read_targets(problem, rows)))

        def compute(ledger: Ledger) -> Record:
            embedding = mechanism.release(compared, ledger=ledger, ids=rows.people)
            return Record({"vector": embedding.vector}, {"n": embedding.n, "noise": embedding.noise})

        record = permit.once(rows, compute, key=digest(kernel.to_values()))
    facts = np.array([float(record.values["n"]), float(record.values["noise"])])
    promised = statement(site, *mechanism.guarantees(problem.width))
    return Payload({"vector": record.arrays["vector"], "facts": facts}, {"privacy": promised})


def _check_bounded(site: Site, problem: Problem, kernel: EmbeddingKernel, mechanism: RecordEmbedding) -> None:
    """Refuse a comparison that does not fit the problem, or would not be finite for every row, before there is any."""
    site.allow(features=mechanism.features.n_components, numbers=problem.n_features)
    if (kernel.width, kernel.targets) != (problem.width, problem.n_targets):
        raise Refused("bad question", f"the kernel must be of {problem.width} columns and {problem.n_targets} targets")
    try:
        check_bandwidth(kernel.bandwidth)
        check_bandwidth(kernel.target_bandwidth)
    except InputError as error:
        raise Refused("bad question", f"the columns asked for cannot be compared: {error}") from None
    compared = kernel.rows(np.zeros((1, kernel.width)), np.zeros((1, kernel.targets))).shape[1]
    if mechanism.features.width != compared:
        raise Refused("bad question", f"privacy must be of the {compared} compared columns")
