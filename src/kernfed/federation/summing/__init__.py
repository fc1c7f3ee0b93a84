"""Sums over sites of which nobody sees the parts: what sites and members answer, and what gathers it."""

from kernfed.site.protocol.task import Method

METHOD = Method(
    name="summing",
    tasks={"kernfed.federation.summing.tasks": ("sum_open", "sum_masked", "sum_sign", "sum_answer")},
    sums="kernfed.federation.summing.gather:gather_sum",
)
