"""``kernfed demo``: the main job on real data, without a download."""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.base.text import TextTable, format_bytes, format_seconds
from kernfed.cli.console import Json, emit, note, progress
from kernfed.errors import MissingSites

if TYPE_CHECKING:
    from kernfed.data import Dataset

EXAMPLE = "Example: kernfed demo --json"
SITES, SHARE = 10, 0.3
#: The site that is forgotten, and the one that dies.
FORGOTTEN, KILLED = "site-3", "site-7"


def demo(
    json: Json = False,
    seed: Annotated[int, typer.Option(help="Seed of everything that is drawn.", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="HTML file for the report.")] = Path("kernfed-demo.html"),
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write the report.")] = True,
) -> None:
    """Ten sites, each with three of ten digits, learn together in one round what none can learn alone."""
    from kernfed.data import load_dataset, partition_label_skew
    from kernfed.federation import Federation, FoldingLearner

    digits = load_dataset("digits", scaling="unit")
    parts = partition_label_skew(digits.y_train, SITES, SHARE, seed)
    sites = {f"site-{number}": (digits.x_train[rows], digits.y_train[rows]) for number, rows in enumerate(parts)}
    results: list[dict[str, Any]] = []
    with progress("digits", 6 + report) as advance, Federation.local(sites, seed=seed) as federation:

        def step(name: str, work: Callable[[], Any], note: str = "") -> Any:
            advance(0, name)
            started = time.perf_counter()
            model, accuracy = work()
            results.append({"what": name, "accuracy": accuracy, "seconds": time.perf_counter() - started, "note": note})
            advance()
            return model

        def trained() -> Any:
            model = FoldingLearner(measure="distance").fit(federation)
            return model, _accuracy(model, digits)

        model = step("together, one round", trained)
        results[-1]["note"] = f"{format_bytes(federation.traffic.bytes_up)} left the sites"
        sent = federation.traffic.to_json()
        alone = step("each site alone, mean", lambda: _alone(model, digits), "sees three of ten digits")
        step("all data pooled", lambda: _pooled(digits, seed), "what may not be done")
        step("nearest neighbours, pooled", lambda: _neighbours(digits), "likewise")
        if report:
            advance(1, "report")
            compared = {"all data pooled": results[2]["accuracy"]}
            report = _write_report(out, model, digits, sites, alone, compared, sent)
        fewer = step(f"{FORGOTTEN} forgotten", lambda: _without(model, digits), "exact, nothing retrained")
        step(f"{KILLED} killed", lambda: _killed(federation, fewer, digits), "the others answer")
        traffic = federation.traffic.to_json()
    facts = {"sites": SITES, "train": len(digits.y_train), "test": len(digits.y_test), "classes_per_site": 3}
    rows = [(r["what"], f"{r['accuracy']:.1%}", format_seconds(r["seconds"]), r["note"]) for r in results]
    title = f"Handwritten digits at {SITES} sites: {facts['train']} images to learn from, {facts['test']} to recognise"
    written = out.resolve() if report else None
    views: list[TextTable | str] = [
        TextTable(("what", "accuracy", "time", ""), rows, title),
        "",
        _owners(sites),
        "",
        *([f"Report with figures: {written}"] if written else []),
        "Next: kernfed train --help, or the example in README.md",
    ]
    result = {"data": facts, "seed": seed, "results": results, "traffic": traffic, "report": written}
    emit(result, json, *views)


def _accuracy(model: Any, digits: "Dataset", **options: Any) -> float:
    return float((model.predict(digits.x_test, **options) == digits.y_test).mean())


def _alone(model: Any, digits: "Dataset") -> tuple[dict[str, float], float]:
    alone = {site: _accuracy(model.local(site), digits) for site in model.sites}
    return alone, sum(alone.values()) / len(alone)


def _pooled(digits: "Dataset", seed: int) -> tuple[None, float]:
    from kernfed import KAHMClassifier

    return None, _accuracy(KAHMClassifier(random_state=seed).fit(digits.x_train, digits.y_train), digits)


def _neighbours(digits: "Dataset") -> tuple[None, float]:
    from sklearn.neighbors import KNeighborsClassifier

    return None, _accuracy(KNeighborsClassifier().fit(digits.x_train, digits.y_train), digits)


def _without(model: Any, digits: "Dataset") -> tuple[Any, float]:
    fewer = model.forget(FORGOTTEN)
    return fewer, _accuracy(fewer, digits)


def _killed(federation: Any, model: Any, digits: "Dataset") -> tuple[None, float]:
    from kernfed.federation import Fault

    federation.engine.faults[KILLED] = Fault("dead")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingSites)  # the table says it
        return None, _accuracy(model, digits, min_replies=1)


def _write_report(
    out: Path,
    model: Any,
    digits: "Dataset",
    sites: dict[str, Any],
    alone: dict[str, float],
    compared: dict[str, float],
    sent: Any,
) -> bool:
    """The page about the model of all sites, as `kernfed report` writes it; whether it could be written."""
    from kernfed.report import Evidence, model_report, write_html
    from kernfed.report.evidence import count_labels, count_winners
    from kernfed.testing.evaluation import evaluate_rows

    evidence = Evidence(
        evaluation=evaluate_rows(model, {"test images": (digits.x_test, digits.y_test)}),
        alone=alone,
        alone_on=f"all {len(digits.y_test)} test images",
        compared=compared,
        labels={name: count_labels(y) for name, (_, y) in sites.items()},
        labels_of="training images",
        winners=count_winners(model, digits.x_test),
        traffic=sent,
    )
    page = model_report(model, evidence, title="Ten sites learn to read digits together")
    try:
        write_html(page, out)
    except OSError as error:  # the demo is worth seeing also where nothing can be written
        note(f"no report was written: {error}; name a place with --out")
        return False
    return True


def _owners(sites: dict[str, Any]) -> TextTable:
    """Which site has how many images of which digit."""
    rows = [
        (name, *(str(count) if (count := int((y == digit).sum())) else "." for digit in range(10)))
        for name, (_, y) in sites.items()
    ]
    return TextTable(("images of", *map(str, range(10))), rows)
