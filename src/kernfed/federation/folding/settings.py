"""Settings of a ``FoldingLearner``, for commands and jobs."""

from dataclasses import replace
from typing import Any

from kernfed.errors import InputError
from kernfed.federation.summing.settings import SUM
from kernfed.kahm.choice import AUTO, PARTITIONS
from kernfed.kahm.folding import MEASURES
from kernfed.kahm.members import ALL
from kernfed.kernels.rows import SCALES
from kernfed.site.fields import Given, LearnerSettings, Setting, plain_arguments
from kernfed.site.release.settings import PRIVACY, declared_classes, release_arguments


def _batch_size(text: Any, name: str) -> int | str:
    """``auto``, or a number of rows."""
    if text == AUTO:
        return AUTO
    if not str(text).isdecimal() or int(text) < 1:
        raise InputError(f"{name} must be auto or a number >= 1, got {text!r}")
    return int(text)


MACHINES = (
    Setting("measure", "How far a row is from a machine.", "distance", tuple(MEASURES)),
    Setting(
        "batch-size",
        "Rows per machine, about, or auto: chosen by rows left out; under privacy 100, with record-moments 1000.",
        AUTO,
        read=_batch_size,
    ),
    Setting("partition", "How a class is divided into machines; under privacy order.", AUTO, (AUTO, *PARTITIONS)),
    Setting(
        "scale",
        "What brings rows to one unit: columns (each its own), entries (one constant), auto, or none.",
        AUTO,
        (AUTO, *SCALES, "none"),
        read=lambda text, _: None if text == "none" else text,
    ),
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


def _arguments(given: Given) -> dict[str, Any]:
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


SETTINGS = LearnerSettings(
    (*MACHINES, *PRIVACY, SUM), _arguments, plan="kernfed.federation.folding.planning:plan_folding"
)
