"""Settings of a ``RidgeLearner``, for commands and jobs."""

from kernfed.errors import InputError
from kernfed.federation.ridge.options import SCALES
from kernfed.federation.summing.settings import SUM
from kernfed.kernels.predictor import FEATURES, TASKS
from kernfed.ridge.model import HEADS, METHODS
from kernfed.ridge.parameters import AGGREGATES
from kernfed.site.fields import LearnerSettings, Setting
from kernfed.site.release.settings import MECHANISM


def _path(text: str, name: str) -> float | tuple[float, ...] | str:
    """``auto``, one number, or several with commas to choose from."""
    if text == "auto":
        return text
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"{name} must be auto, a number, or several such as 0.1,0.01 to choose from, got {text!r}"
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers


def _unless_none(text: str, _: str) -> str | None:
    return None if text == "none" else text


def _bandwidth(text: str, name: str) -> float | str:
    """``auto``, ``median``, or a number."""
    try:
        return text if text in ("auto", "median") else float(text)
    except ValueError:
        raise InputError(f"{name} must be auto, median or a number, got {text!r}") from None


AGGREGATE = Setting(
    "aggregate",
    "How sums of sites are put together: sum, or median to survive wrong sites.",
    "sum",
    tuple(AGGREGATES),
)

SETTINGS = LearnerSettings(
    (
        Setting("method", "How the sites' sums are solved.", "exact", tuple(METHODS)),
        Setting("head", "Loss of the last step; logistic adds rounds to exact.", "squared", tuple(HEADS)),
        Setting("rounds", "At most so many rounds: 10, and 30 of the logistic head, unless given.", 0, at_least=1),
        Setting(
            "components",
            "Random Fourier features; of ridge 2000, at most twice the rows, unless given.",
            0,
            at_least=1,
            parameter="n_components",
        ),
        Setting(
            "bandwidth",
            "Of the Fourier features: a number, median (of distances), or auto to choose.",
            "auto",
            read=_bandwidth,
        ),
        Setting("regularization", "Of the weights: auto, or numbers with commas to choose from.", "auto", read=_path),
        Setting("task", "What labels are.", "classify", tuple(TASKS)),
        Setting(
            "class-weight",
            "none, or balanced for classes that weigh the same.",
            "none",
            ("none", "balanced"),
            read=_unless_none,
        ),
        Setting(
            "features-kind",
            "fourier, or given for the columns as they are.",
            "fourier",
            tuple(FEATURES),
            parameter="features",
        ),
        Setting(
            "scale",
            "What brings rows to one unit: columns (each its own), entries (one constant), auto, or none.",
            "auto",
            (*SCALES, "none"),
            read=_unless_none,
        ),
        AGGREGATE,
        MECHANISM,
        SUM,
    )
)
