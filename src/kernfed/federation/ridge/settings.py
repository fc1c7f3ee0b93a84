"""Settings of a ``RidgeLearner``, for commands and jobs."""

from kernfed.errors import InputError
from kernfed.federation.release.settings import MECHANISM
from kernfed.federation.settings import LearnerSettings, Setting, read_bandwidth
from kernfed.kernels.problem import FEATURES, TASKS
from kernfed.ridge.model import METHODS


def _path(text: str, name: str) -> float | tuple[float, ...]:
    """One number, or several with commas to choose from."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{name} must be a number, or several such as 0.1,0.01 to choose from, got {text!r}") from None
    return numbers[0] if len(numbers) == 1 else numbers


SETTINGS = LearnerSettings(
    (
        Setting("method", "How the sites' sums are solved.", "conjugate", tuple(METHODS)),
        Setting("rounds", "At most so many rounds.", 10, at_least=1),
        Setting("components", "Random Fourier features.", 2000, at_least=1, parameter="n_components"),
        Setting(
            "bandwidth", "Of the Fourier features: a number, or median (of distances).", "median", read=read_bandwidth
        ),
        Setting("regularization", "Of the weights; several numbers with commas to choose from.", "0.001", read=_path),
        Setting("task", "What labels are.", "classify", tuple(TASKS)),
        Setting(
            "features-kind",
            "fourier, or given for the columns as they are.",
            "fourier",
            tuple(FEATURES),
            parameter="features",
        ),
        MECHANISM,
    )
)
