"""Weights from noisy embeddings: every site releases the mean of its features once, and nothing else of its rows."""

from kernfed.errors import InputError
from kernfed.federation.personal.sites import PersonalSites
from kernfed.federation.program import Program
from kernfed.federation.survey import check_arrays
from kernfed.kernels import MeanEmbedding
from kernfed.personal.weights import EmbeddingKernel
from kernfed.privacy.record_sums import EmbeddingRelease, RecordEmbedding
from kernfed.promise import Terms
from kernfed.site.protocol.message import Payload
from kernfed.site.release.asked import terms_of


def ask_released(
    sites: PersonalSites, kernel: EmbeddingKernel, mechanism: RecordEmbedding
) -> Program[tuple[tuple[MeanEmbedding, ...], Terms]]:
    """Embeddings that all sites release, in order of their names, and the terms of these releases."""
    terms = terms_of(mechanism, sites.problem.width, sites.problem.task)

    def read(site: str, payload: Payload) -> MeanEmbedding:
        check_arrays(payload, {"vector": (kernel.dimension,), "facts": (2,)})
        terms.check_told(payload.values["privacy"])
        vector, (n, noise) = payload.arrays["vector"], map(float, payload.arrays["facts"])
        if n < 1 or noise < 0:
            raise InputError(f"no release has {n} rows and noise {noise}")
        sites.check_rows(site, n)
        if n < 2:  # the noise for privacy is all that is known of its error
            return MeanEmbedding(1.0, 1.0, vector, 0.0)
        return EmbeddingRelease(vector, int(n), noise, terms.element, terms.record, True, ()).embedding()

    values = {"problem": sites.problem.to_values(), "kernel": kernel.to_values(), "privacy": dict(terms.mechanism)}
    replies = yield from sites.ask("personal_release", Payload(values=values), read)
    told = {site: payload.values["privacy"] for site, payload in replies}
    return tuple(read(*reply) for reply in replies), terms.with_told(told)
