"""How well a model does at its sites: evaluation, influence of each, calibration, coverage, audits."""

from kernfed.federation.protocol.task import Method

METHOD = Method(
    name="testing",
    tasks={
        "kernfed.federation.testing.held_out": ("held_out_queries",),
        "kernfed.federation.testing.evaluation": ("evaluate_scores", "evaluate"),
        "kernfed.federation.testing.influence": ("influence", "influence_scores"),
        "kernfed.federation.testing.regression": ("evaluate_regression",),
        "kernfed.federation.testing.calibrating": ("calibrate_scores", "calibrate_model"),
        "kernfed.federation.testing.conforming": ("conform", "conform_scores"),
        "kernfed.federation.testing.conforming_private": ("conform_release", "conform_shares"),
    },
)
