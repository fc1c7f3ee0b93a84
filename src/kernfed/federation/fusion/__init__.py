"""Machines at the sites and a head of all rows, weighed against each other."""

from kernfed.fusion import FORMATS
from kernfed.site.protocol.task import Method

METHOD = Method(
    name="fusion",
    tasks={"kernfed.federation.fusion.tasks": ("fusion_sample", "fusion_losses", "fusion_visits")},
    formats={
        **FORMATS,
        **dict.fromkeys(
            ("KAHMClassifier", "FusionClassifier", "FusionRegressor"), "kernfed.federation.estimator_files"
        ),
    },
    connects={"FusionModel": "kernfed.federation.fusion.learner:connect_fusion"},
    receipts="kernfed.federation.fusion.tasks:BOOK",
    learner="kernfed.federation.fusion.learner:FusionLearner",
    jobs="kernfed.federation.settings:FUSION",
)
