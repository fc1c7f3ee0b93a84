"""Ridge regression over sites."""

from kernfed.site.protocol.task import Method

METHOD = Method(
    name="ridge",
    tasks={
        "kernfed.federation.ridge.tasks": (
            "ridge_survey",
            "ridge_start",
            "ridge_apply",
            "ridge_solve",
            "ridge_moments",
            "ridge_validate",
            "ridge_dimension",
            "ridge_means",
            "ridge_trials",
            "ridge_left_out",
            "ridge_columns",
            "ridge_gradient",
        ),
        "kernfed.federation.ridge.sums": ("ridge_range", "ridge_sums", "ridge_shares", "ridge_release"),
    },
    formats={"RidgeModel": "kernfed.ridge.model", "PrivateRidgeModel": "kernfed.ridge.model"},
    forgets=("kernfed.federation.ridge.tasks:discard_factors",),
    receipts="kernfed.federation.ridge.tasks:BOOK",
    learner="kernfed.federation.ridge.learner:RidgeLearner",
    jobs="kernfed.federation.settings:RIDGE",
)
