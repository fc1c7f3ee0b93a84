"""How well a model does at its sites: evaluation, influence of each, calibration, coverage, audits."""

from kernfed.site.protocol.task import Method, Part

METHOD = Method(
    name="testing",
    tasks={"kernfed.testing.held_out": ("test_model", "test_scores", "held_out_queries")},
    parts=(
        Part("test_model:outcomes", "counts", additive=True),
        Part("test_model:errors", "statistics"),
        Part("test_model:temperatures", "counts", additive=True),
        Part("test_model:coverage", "counts", additive=True),
        Part("test_model:coverage:noisy", "released", under_privacy="released"),
        Part("test_model:coverage:shared", "masked", under_privacy="released"),
        Part("test_model:influence", "statistics"),
        Part("test_scores:outcomes", "counts"),
        Part("test_scores:temperatures", "counts"),
        Part("test_scores:coverage", "counts"),
        Part("test_scores:influence", "statistics"),
    ),
    renamed={
        "evaluate": "test_model:outcomes",
        "evaluate_scores": "test_scores:outcomes",
        "evaluate_regression": "test_model:errors",
        "calibrate_model": "test_model:temperatures",
        "calibrate_scores": "test_scores:temperatures",
        "conform": "test_model:coverage",
        "conform_scores": "test_scores:coverage",
        "conform_release": "test_model:coverage:noisy",
        "conform_shares": "test_model:coverage:shared",
        "influence": "test_model:influence",
        "influence_scores": "test_scores:influence",
    },
)
