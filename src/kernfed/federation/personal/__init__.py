"""A model for every site."""

from kernfed.site.protocol.task import Method

METHOD = Method(
    name="personal",
    tasks={
        "kernfed.federation.personal.tasks": (
            "personal_survey",
            "personal_statistics",
            "personal_forms",
            "personal_gain",
            "personal_gradient",
            "personal_release",
        ),
    },
    formats=dict.fromkeys(("PersonalModel", "SiteModel"), "kernfed.personal.model"),
    forgets=("kernfed.federation.personal.tasks:discard_risk",),
    receipts="kernfed.federation.personal.tasks:BOOK",
    learner="kernfed.federation.personal.learner:PersonalLearner",
    jobs="kernfed.federation.settings:PERSONAL",
)
