"""Personalised learning: a model for every site, each learning from the sites that are like it (KME)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernfed.errors import SitesLost, TooFewReplies
from kernfed.federation.asking import Federation, warn_missing
from kernfed.federation.learner import Learner
from kernfed.federation.personal.methods import run
from kernfed.federation.personal.options import PersonalOptions, check_options
from kernfed.federation.personal.sites import PersonalSites
from kernfed.federation.program import Program
from kernfed.federation.shares import MAX_SHARE
from kernfed.federation.survey import ask_survey
from kernfed.personal.model import Newcomer, PersonalModel
from kernfed.site.release.kept import warn_if_forgotten


class PersonalLearner(Learner):
    """Builds a ``PersonalModel``: for each site, the model of a risk over sites like it.

    Parameters
    ----------
    weights : whom each site learns from
        "auto"         groups of sites and shrinkage towards them, learned from all sites together (``personal.groups``)
        "means"        groups of sites by kernel mean embeddings, for features that shift (``personal.means``)
        "printed", or (C_Q, C_P)   Q-aggregation of kernel mean embeddings, KME Algorithms 1 and 2
        "local", "grand_mean"      nobody; everybody by rows
        {site: group}  an oracle: the rows of one's own group
        matrix (B, B)  in sorted order of the sites' names, rows on the simplex
    kernel : "polynomial" or "fourier", of embeddings; columns : "features", "both" or numbers of columns of (x, y);
        kernel_components, bandwidth, target_bandwidth : see ``EmbeddingKernel``; "median" is the sites' median distance
    task : "classify", "regress", or "infer": floating-point labels are values, all others classes
    model : "ridge"; "logistic" to classify; a tuple of layer sizes, for ReLU networks (extra ``[torch]``); "none" for
        weights alone
    features, n_components : of the model, the columns as they are or random Fourier features with the same bandwidth
    regularization : of the weighted ridge or logistic risk, or "auto": leave-one-out for a site that learns alone, by
        marginal likelihood over all sites for others (logistic: 1e-3). ``weights="auto"`` with "ridge" has its own
    fit_intercept : whether ridge models have one. max_groups : of "auto" and "means". gains : whether to ask each site
        that learns from others what they are worth to it
    steps, learning_rate : of networks
    privacy : ``kernfed.privacy.RecordEmbedding``, for Q-aggregation with kernel="fourier" and model="none"
    """

    def __init__(
        self,
        weights: Any = "auto",
        *,
        kernel: str = "fourier",
        task: str = "infer",
        model: Any = "ridge",
        columns: str | Sequence[int] = "both",
        bandwidth: float | Sequence[float] | str = "median",
        target_bandwidth: float = 1.0,
        kernel_components: int = 500,
        features: str = "given",
        n_components: int = 200,
        regularization: float | str = "auto",
        fit_intercept: bool = True,
        max_groups: int = 8,
        gains: bool = True,
        steps: int = 2000,
        learning_rate: float = 1e-3,
        privacy: Any = None,
    ) -> None:
        self.weights = weights
        self.kernel = kernel
        self.task = task
        self.model = model
        self.columns = columns
        self.bandwidth = bandwidth
        self.target_bandwidth = target_bandwidth
        self.kernel_components = kernel_components
        self.features = features
        self.n_components = n_components
        self.regularization = regularization
        self.fit_intercept = fit_intercept
        self.max_groups = max_groups
        self.gains = gains
        self.steps = steps
        self.learning_rate = learning_rate
        self.privacy = privacy

    def options(self) -> PersonalOptions:
        """Every parameter, checked."""
        return check_options(self.get_params(deep=False))

    def fit(
        self,
        federation: Federation,
        *,
        min_replies: int | None = None,
        timeout: float = 600.0,
        max_share: float = MAX_SHARE,
    ) -> PersonalModel:
        """Learn a model for every site.

        A site that is lost on the way, also between embedding and training, takes no part: the others are done again
        without it if ``min_replies`` remain, with a ``MissingSites`` warning. A site whose sums no rows can have is
        lost, too; so is one of three and more that claims above ``max_share`` of all rows.
        """
        program = self.program(federation, min_replies=min_replies, timeout=timeout, max_share=max_share)
        return federation.run(program, timeout=timeout)

    def program(
        self,
        federation: Federation,
        *,
        min_replies: int | None = None,
        timeout: float = 600.0,
        max_share: float = MAX_SHARE,
    ) -> Program[PersonalModel]:
        """What ``fit`` asks, as a program; ``timeout`` is that of steps, which share no exchange."""
        options = self.options()
        if options.privacy is not None:
            warn_if_forgotten(federation.engine)
        taking_part = yield from ask_survey(
            "personal_survey",
            options.task,
            seed=federation.seed,
            median=options.needs_median,
            min_replies=min_replies,
            max_share=max_share,
        )
        while True:
            problem = options.problem(taking_part, federation.seed)
            try:
                sites = PersonalSites(federation, taking_part.names, problem, timeout, taking_part.surveys)
                model = yield from run(options, sites, taking_part)
                break
            except SitesLost as lost:
                taking_part.go_on_without(lost)
        warn_missing(taking_part.missing, "they have no model")
        return replace(
            model,
            missing_=taking_part.missing,
            feature_names_in_=taking_part.schema.columns,
            preparation=federation.preparation,
        )

    def join(self, federation: Federation, model: PersonalModel, site: str, *, timeout: float = 600.0) -> Newcomer:
        """Weights and predictor of a site that was not there when ``model`` was made, by one message from it.

        Only for ``weights="auto"`` with "ridge"; with other rules fit again.
        """
        sites = PersonalSites(federation, (site,), model.problem, timeout)
        try:
            asked = sites.receive(None, statistics=True, intercept=model.coordinates_.constant > 0)
            received = federation.run(asked, timeout=timeout)
        except SitesLost as lost:
            raise TooFewReplies(lost.task, 1, lost.replies) from None
        return model.join_statistics(received.statistics[site])
