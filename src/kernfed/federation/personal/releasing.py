"""What sites do for a ``PersonalLearner`` under differential privacy: release a noisy embedding, once."""

import numpy as np

from kernfed.errors import Refused
from kernfed.federation.personal.tasks import read_kernel, read_problem
from kernfed.federation.protocol.message import Payload, digest
from kernfed.federation.protocol.task import task
from kernfed.federation.release.asked import read_mechanism
from kernfed.federation.release.permit import releasing, statement
from kernfed.federation.site.site import Site
from kernfed.federation.survey import check_rows_of, read_targets
from kernfed.files import Record
from kernfed.privacy.embedding import RecordEmbedding
from kernfed.privacy.ledger import Ledger


@task("personal_release", leaves="released", under_privacy="released")
def release_embedding(site: Site, payload: Payload) -> Payload:
    """Noisy mean embedding (D,) of the compared columns, rows, and the noise in each number; released once."""
    mechanism = read_mechanism(payload.values["privacy"], RecordEmbedding)
    problem, kernel = read_problem(payload.values), read_kernel(payload.values)
    with releasing(site, mechanism) as permit:
        rows = check_rows_of(site, problem, permit.rows())
        compared = kernel.rows(rows.X, read_targets(problem, rows))
        if mechanism.features.width != compared.shape[1]:
            raise Refused("bad question", f"privacy must be of the {compared.shape[1]} compared columns")

        def compute(ledger: Ledger) -> Record:
            embedding = mechanism.release(compared, ledger=ledger, ids=rows.ids)
            return Record({"vector": embedding.vector}, {"n": embedding.n, "noise": embedding.noise})

        record = permit.once(rows, compute, key=digest(kernel.to_values()))
    facts = np.array([float(record.values["n"]), float(record.values["noise"])])
    promised = statement(site, *mechanism.guarantees(problem.width))
    return Payload({"vector": record.arrays["vector"], "facts": facts}, {"privacy": promised})
