"""``kernfed demo``: the main job on real data, without a download."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.cli.console import Json, Table, emit, format_seconds, progress

if TYPE_CHECKING:
    from kernfed.data import Dataset

EXAMPLE = "Example: kernfed demo --json"

#: A contender is fitted on the data set's training rows and returns its predictions of the test rows.
Contender = Callable[["Dataset"], Any]


def demo(
    json: Json = False,
    seed: Annotated[int, typer.Option(help="Seed of everything that is drawn.")] = 0,
) -> None:
    """Recognise 1,797 handwritten digits and compare with nearest neighbours and an SVM."""
    from kernfed._validation import check_count
    from kernfed.data import load_dataset

    check_count(seed, "--seed", at_least=0)
    data = load_dataset("digits", scaling="unit")
    entrants = contenders(seed)
    results: list[dict[str, Any]] = []
    with progress("digits", len(entrants)) as advance:
        for name, contender in entrants.items():
            advance(0, name)
            results.append({"method": name, **compete(contender, data)})
            advance()
    facts = {"name": data.name, "train": len(data.y_train), "test": len(data.y_test), "columns": data.x_train.shape[1],
             "classes": len(data.class_names)}  # fmt: skip
    rows = [(r["method"], f"{r['accuracy']:.2%}", format_seconds(r["seconds"])) for r in results]
    title = f"Handwritten digits: {facts['train']} images to learn from, {facts['test']} to recognise"
    emit({"data": facts, "seed": seed, "results": results}, json, Table(("method", "accuracy", "time"), rows, title))


def contenders(seed: int) -> Mapping[str, Contender]:
    """What is compared, by name."""
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC

    from kernfed.kahm import KAHMClassifier

    def alone(make: Callable[[], Any]) -> Contender:
        return lambda data: make().fit(data.x_train, data.y_train).predict(data.x_test)

    return {
        "kernel affine hull machines": alone(lambda: KAHMClassifier(random_state=seed)),
        "nearest neighbours (5)": alone(KNeighborsClassifier),
        "support vector machine": alone(lambda: SVC(random_state=seed)),
    }


def compete(contender: Contender, data: "Dataset") -> dict[str, float]:
    """Accuracy on the test rows, and seconds for learning and answering."""
    start = time.perf_counter()
    predicted = contender(data)
    seconds = time.perf_counter() - start
    return {"accuracy": float((predicted == data.y_test).mean()), "seconds": seconds}
