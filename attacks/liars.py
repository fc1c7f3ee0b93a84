"""One liar of ten sites, by learner: it is missing by name, or what it says changes next to nothing."""

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import kernfed as kf
from kernfed.errors import KernfedError
from kernfed.federation import Federation, LocalEngine, Payload

from .outcome import REFUSED, SURVIVED, WRONG, Outcomes

# Lies and the engine that tells them are those of the tests, which say what each must come to.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from contracts.engines import Tampering, lying, read_message, with_payload
from federation.test_liars import RIDGE_LIES, invented, other_schema, scaled, wrong_mean

#: By how much of the accuracy one liar of ten may move the others.
TOLERANCE = 0.015
SETTINGS: dict[str, Any] = {"n_components": 200, "bandwidth": 1.0, "rounds": 12}
Lie = Callable[[Payload], Payload]


@dataclass(frozen=True)
class Case:
    """A learner, and what the liar says instead in which tasks."""

    learner: str
    lies: dict[str, Lie]
    told: str
    make: Callable[[], Any]


def attack_liars(outcomes: Outcomes, _: Path, seed: int, count: int) -> None:
    """Every lie, told by ``count`` sites in turn."""
    digits = kf.data.load_dataset("digits", scaling="unit")
    rng = np.random.default_rng(seed)
    parts = np.array_split(rng.permutation(len(digits.y_train))[:800], 10)
    rows = {f"site-{place}": (digits.x_train[part], digits.y_train[part]) for place, part in enumerate(parts)}
    engine = LocalEngine.from_data(rows, seed=seed)
    honest: dict[tuple[str, str], float] = {}

    def without(case: Case, missing: str) -> float:
        """Accuracy of the honest sites, without the one that is missing."""
        if (case.learner, missing) not in honest:
            others = LocalEngine.from_data({name: own for name, own in rows.items() if name != missing}, seed=seed)
            honest[case.learner, missing] = _accuracy(case.make().fit(Federation(others)), digits)
        return honest[case.learner, missing]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in _cases():
            for liar in rng.permutation(sorted(rows))[:count].tolist():
                outcomes.add("liar", case.learner, *_after(case, engine, liar, digits, without))
        _attack_tests(outcomes, rows, seed, rng.permutation(sorted(rows))[:count].tolist())


def _attack_tests(outcomes: Outcomes, rows: dict[str, Any], seed: int, liars: list[str]) -> None:
    """Lies about counts of right rows and about losses: a site's say is no more than that of its rows."""
    engine = LocalEngine.from_data(rows, seed=seed, holdout=0.3)
    federation = Federation(engine, seed=seed)
    ridge, folding = (
        kf.RidgeLearner("exact", **SETTINGS).fit(federation),
        kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation),
    )
    accuracies = [kf.evaluate(model, federation).accuracy for model in (ridge, folding)]
    temperature = kf.calibrate(folding, federation).temperature_

    def everything(factor: float) -> Lie:
        return lambda payload: Payload(
            {name: np.full_like(array, factor) * array for name, array in payload.arrays.items()}, payload.values
        )

    for liar in liars:
        for factor in (10**6, 10**9, 2**60, -1):
            for task, model, honest in (
                ("test_model", ridge, accuracies[0]),
                ("test_scores", folding, accuracies[1]),
            ):
                asked = _telling(engine, liar, {task: everything(factor)})
                connected = model.connect(asked) if model is folding else model
                outcomes.add("liar", "evaluate", *_moved(lambda m=connected, f=asked: _tested(m, f), liar, honest, 0.1))
        for factor in (1e9, 1e300, -1.0):
            asked = _telling(engine, liar, {"test_scores": everything(factor)})

            def calibrated(asked: Federation = asked) -> tuple[float, Any]:
                return float(np.log2(kf.calibrate(folding.connect(asked), asked, min_replies=5).temperature_)), ()

            outcomes.add("liar", "calibrate", *_moved(calibrated, liar, float(np.log2(temperature)), 1.0))


def _tested(model: Any, federation: Federation) -> tuple[float, Any]:
    tested = kf.evaluate(model, federation, min_replies=5)
    return tested.accuracy, tested.missing


def _moved(measure: Callable[[], tuple[float, Any]], liar: str, honest: float, most: float) -> tuple[str, str]:
    """Whether a liar moved a number by more than one of ten sites may."""
    try:
        value, missing = measure()
    except KernfedError as error:
        return (REFUSED, "") if liar in str(error) else (WRONG, f"ends without a name: {str(error)[:200]}")
    except Exception as error:
        return WRONG, f"{type(error).__name__}: {str(error)[:200]}"
    if not abs(value - honest) <= most:
        return WRONG, f"{value:.3g} where honest is {honest:.3g}"
    return (REFUSED if liar in missing else SURVIVED), ""


def _after(
    case: Case, engine: LocalEngine, liar: str, digits: Any, without: Callable[[Case, str], float]
) -> tuple[str, str]:
    try:
        model = case.make().fit(_telling(engine, liar, case.lies), min_replies=5)
        accuracy = _accuracy(model, digits)
    except KernfedError as error:
        named = liar in str(error)
        return (REFUSED, "") if named else (WRONG, f"{case.told} ends the fit without a name: {str(error)[:200]}")
    except Exception as error:
        return WRONG, f"{case.told}: {type(error).__name__}: {str(error)[:200]}"
    named = liar in model.missing_
    expected = without(case, liar if named else "")
    if accuracy < expected - TOLERANCE:
        return WRONG, f"{case.told} by {liar}: accuracy {accuracy:.3f}, honest {expected:.3f}"
    return (REFUSED if named else SURVIVED), ""


def _accuracy(model: Any, digits: Any) -> float:
    """Share of right labels; of a personalised model, the median over its sites."""
    if model.is_personal:
        return float(np.median([_accuracy(model.for_site(site), digits) for site in model.sites]))
    return float((model.predict(digits.x_test) == digits.y_test).mean())


def _telling(engine: Any, liar: str, lies: dict[str, Lie]) -> Federation:
    if len(lies) == 1:
        (task, lie), *_ = lies.items()
        return Federation(lying(engine, liar, lie, task))

    def change(site: str, reply: bytes) -> bytes:
        task = read_message(reply)[0]["task"]
        return with_payload(reply, lies[task]) if site == liar and task in lies else reply

    return Federation(Tampering(engine, change))


def _cases() -> Iterator[Case]:
    yield from _folding()
    for method in ("conjugate", "newton"):
        regularization = 0.1 if method == "newton" else 1e-3
        for told, (task, lie, _) in RIDGE_LIES.items():
            yield Case(
                f"ridge, {method}",
                {task: lie},
                told,
                lambda m=method, r=regularization: kf.RidgeLearner(m, **SETTINGS, regularization=r),
            )
    exact = {"scatter": scaled("scatter", 1e12), "mass": scaled("means", 1e12, 0), "mean": wrong_mean}
    for told, lie in exact.items():
        yield Case("ridge, exact", {"ridge_moments": lie}, told, lambda: kf.RidgeLearner("exact", **SETTINGS))
    for told, factor in (("sums of labels turned around", -1.0), ("sums of labels left out", 0.0)):
        yield Case("ridge, median", {"ridge_moments": _tilted(factor)}, told, _median)
    for told, changes in _SCHEMAS.items():
        lies = {task: other_schema(**changes) for task in ("describe", "ridge_survey", "personal_survey")}
        yield Case("ridge, exact", lies, told, lambda: kf.RidgeLearner("exact", **SETTINGS))
        yield Case("personal", lies, told, lambda: kf.PersonalLearner("local", gains=False))
    for name, factor in (("mean", 1e6), ("mean", -1.0), ("scatter", 1e6), ("counts", 1e9)):
        lie = scaled(f"statistics.{name}", factor)
        yield Case("personal", {"personal_statistics": lie}, f"{name} times {factor:g}", _personal)


def _median() -> Any:
    return kf.RidgeLearner("exact", aggregate="median", **SETTINGS)


def _tilted(factor: float) -> Lie:
    """Products of features and targets times a factor between -1 and 1, as some rows could have them."""

    def lie(payload: Payload) -> Payload:
        width, joint = int(payload.arrays["width"]), len(payload.arrays["mean"])
        rows, columns = np.triu_indices(joint)
        crossing = (rows < width) & (columns >= width)
        scatter = np.where(crossing, factor * payload.arrays["scatter"], payload.arrays["scatter"])
        return Payload({**payload.arrays, "scatter": scatter}, payload.values)

    return lie


def _personal() -> Any:
    return kf.PersonalLearner("auto", gains=False)


_SCHEMAS: dict[str, dict[str, Any]] = {
    "another width": {"width": 65},
    "another encoder": {"encoder": "other@1"},
    "other columns": {"columns": [f"c{place}" for place in range(64)]},
}


def _folding() -> Iterator[Case]:
    def kth() -> Any:
        return kf.FoldingLearner(aggregate="kth", k=2, measure="rms", batch_size=100, partition="order", scale=None)

    def all_scores(value: float) -> Lie:
        return lambda payload: Payload(
            {**payload.arrays, "scores": np.full_like(payload.arrays["scores"], value)}, payload.values
        )

    yield Case("folding, kth", dict.fromkeys(("describe", "folding_fit", "scores"), invented), "a class invented", kth)
    for value in (0.0, 1e-9, 1.0, 1e300, -1.0, np.nan):
        yield Case("folding, kth", {"scores": all_scores(value)}, f"scores of {value}", kth)
    yield Case("folding, kth", {"scores": scaled("scores", 1e-6)}, "scores times 1e-6", kth)
    for told, changes in _SCHEMAS.items():
        yield Case("folding, kth", {"describe": other_schema(**changes)}, told, kth)
