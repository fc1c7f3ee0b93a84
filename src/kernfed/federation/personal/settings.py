"""Settings of a ``PersonalLearner``, for commands and jobs."""

from typing import Any

from kernfed.errors import InputError
from kernfed.kernels.predictor import FEATURES
from kernfed.personal.weights import KERNELS
from kernfed.site.fields import LearnerSettings, Setting, read_bandwidth, read_number, read_yes
from kernfed.site.release.settings import MECHANISM

TASKS = ("infer", "classify", "regress")
PREDICTORS = ("ridge", "logistic", "none")


def _weights(text: str, name: str) -> Any:
    """A rule, or the two constants of Q-aggregation."""
    if "," not in text:
        return text
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise InputError(f"{name} must be a rule or C_Q,C_P such as 0.2,0.1, got {text!r}") from None


def _regularization(text: str, name: str) -> float | str:
    return text if text == "auto" else read_number(text, name)


SETTINGS = LearnerSettings(
    (
        Setting(
            "weights",
            "Whom a site learns from: auto, means, printed, local, grand_mean, or C_Q,C_P.",
            "auto",
            read=_weights,
        ),
        Setting("predictor", "Each site's model; none for the weights alone.", "ridge", PREDICTORS, parameter="model"),
        Setting(
            "embedding",
            "Kernel of the mean embeddings that are compared.",
            "fourier",
            tuple(KERNELS),
            parameter="kernel",
        ),
        Setting("task", "What labels are; infer goes by their type.", "infer", TASKS),
        Setting(
            "features-kind",
            "given for the columns as they are, or fourier.",
            "given",
            tuple(FEATURES),
            parameter="features",
        ),
        Setting("components", "Random Fourier features.", 200, at_least=1, parameter="n_components"),
        Setting("bandwidth", "Of Fourier features: a number, or median (of distances).", "median", read=read_bandwidth),
        Setting("regularization", "Of each site's weights: a number, or auto.", "auto", read=_regularization),
        Setting(
            "gains", "Whether to ask each site what the others are worth to it.", "yes", ("yes", "no"), read=read_yes
        ),
        MECHANISM,
    )
)
