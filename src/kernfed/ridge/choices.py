"""How a fit chose what it was not given, for whoever reads the model or fits it again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernfed.base.checks import check_choice, check_count, check_number
from kernfed.errors import InputError
from kernfed.ridge.robust import AGGREGATES

#: By whom a number was chosen: who asked for the fit, exact leave-one-out over all rows, leave-one-out of the sites'
#: averages (methods in rounds), or from the sums alone, ``tr(C) / n_eff``.
REGULARIZED = ("given", "left out", "averages left out", "sums")
#: The bandwidth: given, the median distance of rows, or by leave-one-out on fewer features.
WIDTHS = ("given", "median", "left out")
#: What columns are divided by: nothing but one unit, or each its own spread.
SCALED = ("entries", "columns")


@dataclass(frozen=True)
class RidgeChoices:
    """How regularisation, bandwidth and scale were chosen.

    errors : of rows that are predicted without themselves, by candidate of the regularisation, the mean negative
    log-likelihood of their labels at the best temperature, which decides, and the share given another label; empty to
    regress, where the squared error decides. widths : of the bandwidths that were tried, as (scale, multiple of the
    median distance), with the loss that decides. balanced : whether weights of classes are "balanced", so that they
    follow their rows. exchanges : of the whole fit, the survey included. aggregate : how sites' sums were put together,
    and under "median" holders : how many sites hold every class.
    """

    regularization: str = "given"
    bandwidth: str = "given"
    scale: str = "entries"
    errors: Mapping[float, tuple[float, float]] = field(default_factory=dict)
    widths: Mapping[tuple[str, float], float] = field(default_factory=dict)
    balanced: bool = False
    exchanges: int = 0
    aggregate: str = "sum"
    holders: tuple[int, ...] = ()

    def to_values(self) -> dict[str, Any]:
        """Plain values for files."""
        return {
            "regularization": self.regularization,
            "bandwidth": self.bandwidth,
            "scale": self.scale,
            "errors": [[candidate, *pair] for candidate, pair in self.errors.items()],
            "widths": [[scale, width, error] for (scale, width), error in self.widths.items()],
            "balanced": self.balanced,
            "exchanges": self.exchanges,
            # Only where it is not the sum: files of sums are what they were.
            **({} if self.aggregate == "sum" else {"aggregate": self.aggregate, "holders": list(self.holders)}),
        }

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "RidgeChoices":
        """Choices from ``to_values``, checked."""
        if not isinstance(values["balanced"], bool):
            raise InputError(f"balanced must be True or False, got {values['balanced']!r:.60}")
        return cls(
            check_choice(values["regularization"], "regularization", REGULARIZED),
            check_choice(values["bandwidth"], "bandwidth", WIDTHS),
            check_choice(values["scale"], "scale", SCALED),
            {
                check_number(c, "candidate"): (check_number(loss, "loss"), check_number(wrong, "error"))
                for c, loss, wrong in values["errors"]
            },
            {
                (check_choice(scale, "scale", SCALED), check_number(width, "width")): check_number(error, "error")
                for scale, width, error in values["widths"]
            },
            values["balanced"],
            check_count(values["exchanges"], "exchanges", at_least=0),
            check_choice(values.get("aggregate", "sum"), "aggregate", AGGREGATES),
            tuple(check_count(count, "holders") for count in values.get("holders", ())),
        )
