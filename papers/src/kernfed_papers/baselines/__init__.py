"""What the methods of the papers are compared with: federated averaging, and pooled models.

Federated averaging is a method declared from outside kernfed: the entry point ``kernfed.methods`` of this package leads
to ``METHOD``, and sites then answer its questions, policies may name them, and ``kernfed.load`` reads its models.
"""

from kernfed.federation import Method

METHOD = Method(
    name="averaging",
    tasks={
        "kernfed_papers.baselines.averaging_tasks": ("averaging_moments", "averaging_round"),
        "kernfed_papers.baselines.descent": ("descent_round",),
    },
    formats={"AveragingModel": "kernfed_papers.baselines.averaging_model"},
    learner="kernfed_papers.baselines.averaging:AveragingLearner",
)
