"""How well a model does at its sites: evaluation, influence of each, calibration, coverage, audits."""

from kernfed.site.protocol.task import Method

METHOD = Method(
    name="testing",
    tasks={
        "kernfed.testing.held_out": ("held_out_queries",),
        "kernfed.testing.evaluation": ("evaluate_scores", "evaluate"),
        "kernfed.testing.influence": ("influence", "influence_scores"),
        "kernfed.testing.outcomes": ("evaluate_regression",),
        "kernfed.testing.calibration": ("calibrate_scores", "calibrate_model", "conform", "conform_scores"),
        "kernfed.testing.noisy_coverage": ("conform_release", "conform_shares"),
    },
)
