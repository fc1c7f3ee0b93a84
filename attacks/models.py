"""A small model of every format of file, and all that one says of a few queries."""

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import kernfed as kf
from kernfed.cli import app
from kernfed.data import RawTable, raw_table
from kernfed.testing.predictors import is_personal

NAMES = ("age", "dose", "time")
#: A file of version 0.1 in a format that is written no more; none of that version has a digest.
OLD = "PrivateRidgeModel of 0.1, no digest"
FORMER = Path(__file__).parents[1] / "tests" / "samples" / "v0.1" / "ridge-private.kfd"


def rows(seed: int = 5, names: tuple[str, ...] = ("east", "north", "south")) -> tuple[dict[str, Any], npt.NDArray[Any]]:
    """Rows (24, 3) of each of three sites with two classes, fewer of each of more sites, and queries (6, 3)."""
    rng = np.random.default_rng(seed)
    X = np.concatenate([rng.normal(mean, 1, (36, 3)) for mean in (0, 2.5)])
    order = rng.permutation(len(X))
    X, y = X[order].round(3), np.repeat(["no", "yes"], 36)[order]
    sites = {name: (X[part :: len(names)], y[part :: len(names)]) for part, name in enumerate(names)}
    return sites, rng.normal(1.2, 1.5, (6, 3)).round(3)


def values_of(sites: dict[str, Any]) -> dict[str, Any]:
    """The same rows with numbers to regress on."""
    return {name: (X, X @ np.array([1.0, 2.0, 3.0]) + 1) for name, (X, _) in sites.items()}


def tables_of(sites: dict[str, Any]) -> dict[str, Any]:
    """The same rows as tables with a gap in a column of numbers, and a column of words."""

    def table(X: npt.NDArray[Any], y: npt.NDArray[Any]) -> RawTable:
        numbers = dict(zip(NAMES, X.T.copy(), strict=True))
        numbers["dose"][::5] = np.nan
        return raw_table({**numbers, "ward": np.where(X[:, 0] > 1, "first", "second")}, y=y)

    return {name: (table(X, y), y) for name, (X, y) in sites.items()}


def make_files(folder: Path) -> dict[str, Path]:
    """A file of every format, by the name of what it holds; ``kernfed.files`` knows no other."""
    sites, _ = rows()
    X, y = (np.concatenate(parts) for parts in zip(*sites.values(), strict=True))
    moments = kf.privacy.RecordMoments(8.0, 1e-5, radius=6.0, dimension=2)
    noise = kf.privacy.RecordRidge(8.0, 1e-5, radius=1.0, target_radius=1.0)

    def local(what: dict[str, Any] = sites, name: str = "plain") -> kf.Federation:
        return kf.Federation.local(what, seed=3, columns=NAMES, store=folder / name)

    personal = kf.PersonalLearner().fit(local())
    models: dict[str, Any] = {
        "KAHM": kf.KAHM(scale=None).fit(X),
        "DeepKAHM": kf.DeepKAHM(dtype="float32", scale=None).fit(X),
        "WideKAHM": kf.WideKAHM(batch_size=20, partition="kmeans", scale=None).fit(X),
        "KAHMClassifier": kf.KAHMClassifier(batch_size=10, partition="kmeans", scale=None).fit(X, y),
        "KAHMRegressor": kf.KAHMRegressor(batch_size=20, partition="kmeans", scale=None).fit(X, X[:, :2]),
        "FoldingModel at sites": kf.FoldingLearner(batch_size=10, measure="rms", partition="order", scale=None).fit(
            local()
        ),
        "FoldingModel with machines": kf.FoldingLearner(
            batch_size=10, hold="machines", measure="rms", partition="order", scale=None
        ).fit(local()),
        "FoldingModel private": kf.FoldingLearner(
            batch_size=30,
            privacy=moments,
            rows_per_class=30,
            hold="machines",
            measure="rms",
            partition="order",
            scale=None,
        ).fit(local(name="released")),
        "RidgeModel": kf.RidgeLearner(n_components=16).fit(local()),
        "RidgeModel of values": kf.RidgeLearner(features="given", task="regress").fit(local(values_of(sites), "v")),
        "RidgeModel private": kf.RidgeLearner("exact", n_components=8, bandwidth=2.0, privacy=noise).fit(
            local(name="private")
        ),
        "PersonalModel": personal,
        "PersonalModel logistic": kf.PersonalLearner("grand_mean", model="logistic").fit(local()),
        "SiteModel": personal.for_site("north"),
    }
    models |= _outside(local)
    files = {}
    for number, (name, model) in enumerate(models.items()):
        files[name] = folder / f"{number}.kfd"
        kf.save(model, files[name])
    files[OLD] = folder / "former.kfd"
    files[OLD].write_bytes(FORMER.read_bytes())
    return files


def _outside(local: Callable[..., kf.Federation]) -> dict[str, Any]:
    """Models of other packages, where they are installed."""
    try:
        from kernfed_papers.baselines.averaging import AveragingLearner
    except ImportError:
        return {}
    return {"AveragingModel": AveragingLearner("mlp", rounds=2, hidden=5).fit(local())}


def ask(model: Any, queries: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Everything that a model says of queries, and of itself; machines at sites say nothing here."""
    told: list[npt.NDArray[Any]] = [np.array([str(model), repr(model)])]
    for one in [model.for_site(site) for site in model.sites] if is_personal(model) else [model]:
        if getattr(one, "hold", "") == "sites":
            told.append(one.holds)
            continue
        if hasattr(one, "distance"):
            told += [one.distance(queries), one.image(queries)]
            continue
        told.append(one.predict(queries))
        if len(getattr(one, "classes_", ())):
            told += [one.classes_, one.predict_proba(queries)]
    return [np.asarray(part) for part in told]


def same(one: list[npt.NDArray[Any]], other: list[npt.NDArray[Any]]) -> bool:
    """Whether two answers are the same to the bit."""
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(one, other, strict=True)
    )


def run_command(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command, in this process."""
    errors = io.StringIO()
    with redirect_stderr(errors), redirect_stdout(io.StringIO()):
        try:
            app(list(arguments), prog_name="kernfed")
        except SystemExit as end:
            return int(end.code or 0), errors.getvalue()
    return 0, errors.getvalue()
