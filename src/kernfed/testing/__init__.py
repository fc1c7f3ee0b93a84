"""How well a model does at its sites: evaluation, influence of each, calibration, coverage, audits."""

from kernfed.site.protocol.task import Method

METHOD = Method(
    name="testing",
    tasks={
        "kernfed.testing.held_out": ("held_out_queries",),
        "kernfed.testing.evaluation": ("evaluate_scores", "evaluate"),
        "kernfed.testing.influence": ("influence", "influence_scores"),
        "kernfed.testing.regression": ("evaluate_regression",),
        "kernfed.testing.calibrating": ("calibrate_scores", "calibrate_model"),
        "kernfed.testing.conforming": ("conform", "conform_scores"),
        "kernfed.testing.conforming_private": ("conform_release", "conform_shares"),
    },
)
