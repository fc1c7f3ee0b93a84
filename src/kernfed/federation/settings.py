"""Settings that learners declare, for commands and jobs: one table for each learner."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kernfed.errors import InputError
from kernfed.federation.folding.learner import FoldingLearner
from kernfed.federation.ridge.learner import RidgeLearner
from kernfed.fusion.parts import VISITS
from kernfed.kahm.choice import AUTO, PARTITIONS
from kernfed.kahm.folding import MEASURES
from kernfed.kahm.members import ALL
from kernfed.kernels.predictor import FEATURES, TASKS
from kernfed.kernels.rows import SCALES
from kernfed.personal.weights import KERNELS
from kernfed.ridge.model import HEADS, METHODS
from kernfed.ridge.parameters import AGGREGATES
from kernfed.site.fields import Given, LearnerSettings, Setting, plain_arguments
from kernfed.site.release.settings import MECHANISM, PRIVACY, SUM, declared_classes, release_arguments


def _number_or(*words: str, number: str = "a number") -> Callable[[str, str], float | str]:
    """A reader of texts that are one of ``words`` or a number, which a message calls ``number``."""

    def read(text: str, name: str) -> float | str:
        try:
            return text if text in words else float(text)
        except ValueError:
            raise InputError(f"{name} must be {', '.join(words)} or {number}, got {text!r}") from None

    return read


def _unless_none(text: str, _: str) -> str | None:
    return None if text == "none" else text


def _batch_size(text: Any, name: str) -> int | str:
    """``auto``, or a number of rows."""
    if text == AUTO:
        return AUTO
    if not str(text).isdecimal() or int(text) < 1:
        raise InputError(f"{name} must be auto or a number >= 1, got {text!r}")
    return int(text)


SCALE = Setting(
    "scale",
    "What brings rows to one unit: columns (each its own), entries (one constant), auto, or none.",
    AUTO,
    (AUTO, *SCALES, "none"),
    read=_unless_none,
)
MACHINES = (
    Setting("measure", "How far a row is from a machine.", "distance", tuple(MEASURES)),
    Setting(
        "batch-size",
        "Rows per machine, about, or auto: chosen by rows left out; under privacy 100, with record-moments 1000.",
        AUTO,
        read=_batch_size,
    ),
    Setting("partition", "How a class is divided into machines; under privacy order.", AUTO, (AUTO, *PARTITIONS)),
    SCALE,
    Setting("layers", "Layers of each machine.", 1, at_least=1),
    Setting("dtype", "Numbers of machines.", "float64", ("float64", "float32")),
    Setting(
        "aggregate",
        "What survives wrong sites: kth of scores, where min believes every site; of ridge median in place of sum.",
        "min",
        ("min", "kth"),
    ),
    Setting(
        "k", "Which smallest score counts under kth; classes of fewer than k + 1 sites take no part.", 2, at_least=1
    ),
    Setting(
        "trusted-classes",
        "Classes, by commas, or all, that take part under kth however few sites hold them.",
        read=lambda text, _: text if text == ALL else tuple(part.strip() for part in text.split(",")),
    ),
    Setting(
        "hold",
        "sites (only scores leave them) or machines (rows leave), as train does unless told.",
        "sites",
        ("sites", "machines"),
    ),
)


def _folding_arguments(given: Given) -> dict[str, Any]:
    machines = plain_arguments((*MACHINES, SUM), given)
    if "sum" in machines and given.get("classes") is not None:  # declared for the sum, not for randomised labels
        machines["classes"] = declared_classes(given)
        given = replace(given, values={name: value for name, value in given.values.items() if name != "classes"})
    for name in ("k", "trusted-classes"):
        if given.get(name) is not None and machines.get("aggregate") != "kth":
            raise InputError(
                f"{given.shown(name)} needs {given.shown('aggregate')} kth: under min the smallest score counts"
            )
    return {**release_arguments(given), **machines}


FOLDING = LearnerSettings((*MACHINES, *PRIVACY, SUM), _folding_arguments)


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


AGGREGATE = Setting(
    "aggregate",
    "How sums of sites are put together: sum, or median to survive wrong sites.",
    "sum",
    tuple(AGGREGATES),
)

RIDGE = LearnerSettings(
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
            read=_number_or("auto", "median"),
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
        SCALE,
        AGGREGATE,
        MECHANISM,
        SUM,
    )
)


PERSONAL_TASKS = ("infer", "classify", "regress")
PREDICTORS = ("ridge", "logistic", "none")


def _weights(text: str, name: str) -> Any:
    """A rule, or the two constants of Q-aggregation."""
    if "," not in text:
        return text
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise InputError(f"{name} must be a rule or C_Q,C_P such as 0.2,0.1, got {text!r}") from None


PERSONAL = LearnerSettings(
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
        Setting("task", "What labels are; infer goes by their type.", "infer", PERSONAL_TASKS),
        Setting(
            "features-kind",
            "given for the columns as they are, or fourier.",
            "given",
            tuple(FEATURES),
            parameter="features",
        ),
        Setting("components", "Random Fourier features.", 200, at_least=1, parameter="n_components"),
        Setting(
            "bandwidth", "Of Fourier features: a number, or median (of distances).", "median", read=_number_or("median")
        ),
        Setting("regularization", "Of each site's weights: a number, or auto.", "auto", read=_number_or("auto")),
        Setting(
            "gains",
            "Whether to ask each site what the others are worth to it.",
            "yes",
            ("yes", "no"),
            read=lambda text, _: text == "yes",
        ),
        MECHANISM,
    )
)


FUSION_ONLY = (
    Setting(
        "weight",
        "Of machines beside the head: auto, or a number; 0 is the head alone.",
        "auto",
        read=_number_or("auto", number="a number of at least 0"),
    ),
    Setting("visit", "always, or unsure: the head answers alone where it is sure.", "always", tuple(VISITS)),
)
#: What the fusion decides for both parts.
_SHARED = ("hold", "privacy", "task")
_MACHINE_SETTINGS = tuple(setting for setting in FOLDING.table if setting.name not in _SHARED)
_HEAD_SETTINGS = (
    *(setting for setting in RIDGE.table if setting.name not in (*FOLDING.names, "task")),
    replace(AGGREGATE, name="head-aggregate", parameter="aggregate", help="Of the head: " + AGGREGATE.help),
)
_SHARED_SETTINGS = (
    *(setting for setting in FOLDING.table if setting.name in ("hold", "privacy")),
    *(setting for setting in RIDGE.table if setting.name == "task"),
)


def _part(settings: LearnerSettings, given: Given) -> dict[str, Any]:
    """Arguments of a part's learner, of the settings that it declares."""
    of_part = replace(given, values={name: value for name, value in given.values.items() if name in settings.names})
    make = settings.arguments or (lambda given: plain_arguments(settings.table, given))
    return make(of_part)


def _fusion_arguments(given: Given) -> dict[str, Any]:
    folding = _part(FOLDING, given)
    ridge = plain_arguments(_HEAD_SETTINGS, given)
    if "scale" in folding:  # one setting for both parts
        ridge["scale"] = folding["scale"]
    shared: dict[str, Any] = {name: folding.pop(name) for name in ("hold", "privacy", "sum") if name in folding}
    task = given.get("task")
    return {
        **plain_arguments(FUSION_ONLY, given),
        **shared,
        **({} if task is None else {"task": task}),
        "folding": FoldingLearner(**folding) if folding else None,
        "ridge": RidgeLearner(**ridge) if ridge else None,
    }


FUSION = LearnerSettings((*FUSION_ONLY, *_MACHINE_SETTINGS, *_HEAD_SETTINGS, *_SHARED_SETTINGS), _fusion_arguments)
