"""Machines of classes at every site, and the smallest measure over all of them."""

from kernfed.kahm import FORMATS
from kernfed.site.protocol.task import Method

METHOD = Method(
    name="folding",
    tasks={
        "kernfed.federation.folding.tasks": ("folding_schema", "folding_choose", "folding_fit"),
        "kernfed.federation.folding.scoring": ("scores", "machines", "released_machines"),
        "kernfed.federation.folding.generations": ("forget_model", "forget_rows", "add_rows"),
        "kernfed.federation.folding.secure": ("secure_scores",),
        "kernfed.federation.folding.shared": ("folding_shares",),
    },
    default_tasks=("folding_choose", "folding_fit", "scores"),
    formats=FORMATS,
    connects={"FoldingModel": "kernfed.federation.folding.connection:connect_folding"},
    keeps="kernfed.federation.folding.generations:kept_models",
    receipts="kernfed.federation.folding.receipts:BOOK",
    learner="kernfed.federation.folding.learner:FoldingLearner",
    jobs="kernfed.federation.settings:FOLDING",
)
