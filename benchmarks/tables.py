"""Raw tables with ``kernfed train`` and ``kernfed evaluate`` alone, all defaults, beside methods on the pooled rows.

    python benchmarks/tables.py [--only wine,letter] [--rows 6000] [--out benchmarks/kept]

Eight tables of numbers over five sites by Dirichlet(0.5) beside a random forest; a made-up hospital table with all
kinds of columns beside histogram boosting; two regressions beside histogram boosting; posts of 20 Newsgroups as raw
text; and the calibration over forty skewed sites. What was measured is added to tables.json in the folder of --out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_wine, make_friedman1
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import train_test_split

from kernfed.data import data_folder, load_dataset, partition_dirichlet

HERE = Path(__file__).resolve().parent
SITES, ALPHA = 5, 0.5
#: Splits of tables with few rows.
SPLITS = {"wine": 5, "breast-cancer": 3}
NUMBERS = ("wine", "breast-cancer", "digits", "dna", "satimage", "pendigits", "letter", "shuttle")


def split(X: Any, y: Any, rows: int, seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """A fifth of at most so many rows to test on."""
    kept = np.random.default_rng(seed).permutation(len(y))[:rows]
    return tuple(train_test_split(X[kept], y[kept], test_size=0.2, random_state=seed))


def numbers(name: str, rows: int, seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """Training rows, test rows, and the labels of both."""
    if name in ("wine", "breast-cancer"):
        X, y = (load_wine if name == "wine" else load_breast_cancer)(return_X_y=True)
        return split(X, y, rows, seed)
    data = load_dataset(name)
    draw = np.random.default_rng(seed)
    train = draw.permutation(len(data.y_train))[:rows]
    test = draw.permutation(len(data.y_test))[: rows // 2]
    return data.x_train[train], data.x_test[test], data.y_train[train], data.y_test[test]


def framed(X: Any, y: Any, sites: int = 0, alpha: float = ALPHA) -> pd.DataFrame:
    """A table with labels, and with sites by Dirichlet where there are some."""
    frame = pd.DataFrame(np.asarray(X, dtype=float), columns=[f"c{place}" for place in range(X.shape[1])])
    frame["label"] = y
    if sites:
        frame["site"] = ""
        for number, rows in enumerate(partition_dirichlet(y, sites, alpha, seed=0, min_size=2)):
            frame.loc[rows, "site"] = f"site {number:02d}"
    return frame


def kernfed(train: pd.DataFrame, test: pd.DataFrame, *, site: str | None, text: str | None = None) -> dict[str, Any]:
    """What ``kernfed evaluate`` says of what ``kernfed train`` made, and how long that took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train.to_parquet(folder / "train.parquet")
        test.to_parquet(folder / "test.parquet")
        sites = ["--site", site] if site else []
        texts = ["--text", text] if text else []
        started = time.perf_counter()
        words = ["train", "--data", "train.parquet", "--label", "label", *sites, *texts, "--out", "m.kfd"]
        trained = run(folder, *words)
        seconds = time.perf_counter() - started
        told = run(folder, "evaluate", "m.kfd", "--data", "test.parquet", "--label", "label")
    return {"seconds": round(seconds, 1), "learner": trained["learner"], **told["pooled"]}


def run(folder: Path, *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "kernfed", *words, "--json"], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def measured_numbers(name: str, rows: int) -> dict[str, Any]:
    """The mean over splits: of tables with a few dozen test rows one split says nothing to a point."""
    accuracies, forests, errors, seconds, learned = [], [], [], [], 0
    for seed in range(SPLITS.get(name, 1)):
        X, X_test, y, y_test = numbers(name, rows, seed)
        told = kernfed(framed(X, y, SITES), framed(X_test, y_test), site="site")
        forests.append(RandomForestClassifier(300, random_state=seed).fit(X, y).score(X_test, y_test))
        accuracies.append(told["accuracy"])
        errors.append(told["calibration_error"])
        seconds.append(told["seconds"])
        learned = len(y)
    accuracy, forest = float(np.mean(accuracies)), float(np.mean(forests))
    return {
        "rows": learned,
        "splits": len(accuracies),
        "accuracy": accuracy,
        "forest": forest,
        "ahead": accuracy - forest,
        "calibration_error": float(np.mean(errors)),
        "seconds": max(seconds),
        "ok": accuracy >= forest - 0.01,
    }


def measured_hospital(rows: int) -> dict[str, Any]:
    sys.path.insert(0, str(HERE.parent / "tests"))
    from hospital import LABEL, SITE, hospital_table
    from kernfed.data import Preparation

    frame = pd.DataFrame(hospital_table(min(rows, 4000))).rename(columns={LABEL: "label"})
    cut = 3 * len(frame) // 4
    train, test = frame[:cut], frame[cut:]
    told = kernfed(train, test, site=SITE)
    columns = [name for name in frame if name not in ("label", SITE)]
    preparation = Preparation.fit(train[columns])
    X, X_test = (preparation.apply(part[columns])[0] for part in (train, test))
    boosting = HistGradientBoostingClassifier(random_state=0).fit(X, train["label"])
    area = roc_auc_score(test["label"] == boosting.classes_[1], boosting.predict_proba(X_test)[:, 1])
    return {"rows": cut, "auc": told["auc"], "boosting": area, "ok": told["auc"] >= area - 0.01}


def measured_regression(name: str, rows: int) -> dict[str, Any]:
    X, y = make_friedman1(min(rows, 5000), n_features=10, noise=1.0, random_state=0)
    if name == "raw-units":  # grams, millimetres, kilometres, and a heavy tail
        X = X * np.array([1e4, 1e3, 1e-3, 1.0, 60.0, 1.0, 1e6, 1.0, 1.0, 1.0]) + np.array(
            [0, 50, 0, 0, 20, 0, 0, 0, 0, 0]
        )
        X[:, 7] = np.exp(4 * X[:, 7])
        y = 1000 * y + 20_000.5
    X, X_test, y, y_test = split(X, y, rows)
    train, test = framed(X, y), framed(X_test, y_test)
    train["site"] = [f"site {number}" for number in np.arange(len(y)) % SITES]
    told = kernfed(train, test, site="site")
    boosting = r2_score(y_test, HistGradientBoostingRegressor(random_state=0).fit(X, y).predict(X_test))
    return {"rows": len(y), "r2": told["r2"], "boosting": boosting, "ok": told["r2"] >= boosting - 0.02}


def measured_text(_: int) -> dict[str, Any]:
    folder = data_folder()
    if folder is None:
        raise SystemExit("set KERNFED_DATA to the folder of data sets")
    with np.load(folder / "20ng_text.npz") as file:
        parts = {}
        for part in ("train", "test"):
            content, ends = file[f"text_{part}"].tobytes(), file[f"offsets_{part}"]
            posts = [content[start:stop].decode("latin-1") for start, stop in pairwise(ends)]
            parts[part] = pd.DataFrame({"post": posts, "label": file["class_names"][file[f"y_{part}"]]})
    train = parts["train"]
    train["site"] = ""
    for number, rows in enumerate(partition_dirichlet(train["label"], SITES, ALPHA, seed=0)):
        train.loc[rows, "site"] = f"site {number:02d}"
    told = kernfed(train, parts["test"], site="site", text="post")
    return {
        "rows": len(train),
        "accuracy": told["accuracy"],
        "seconds": told["seconds"],
        "ok": told["accuracy"] >= 0.76,
    }


def measured_calibration(rows: int) -> dict[str, Any]:
    X, X_test, y, y_test = numbers("pendigits", rows)
    told = kernfed(framed(X, y, 40, 0.3), framed(X_test, y_test), site="site")
    error = told["calibration_error"]
    return {"rows": len(y), "accuracy": told["accuracy"], "calibration_error": error, "ok": error < 0.03}


MEASURES: Mapping[str, Callable[[int], dict[str, Any]]] = {
    **{name: (lambda rows, name=name: measured_numbers(name, rows)) for name in NUMBERS},
    "hospital": measured_hospital,
    "friedman1": lambda rows: measured_regression("friedman1", rows),
    "raw-units": lambda rows: measured_regression("raw-units", rows),
    "text": measured_text,
    "calibration-40-sites": measured_calibration,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MEASURES), help="what to measure, with commas")
    parser.add_argument("--rows", type=int, default=6000, help="rows to learn from, at most")
    parser.add_argument("--out", type=Path, help="folder for tables.json, to which measures are added")
    given = parser.parse_args()
    for name in given.only.split(","):
        figures = MEASURES[name](given.rows)
        print(name, json.dumps(figures), flush=True)
        if given.out is not None:
            place = given.out / "tables.json"
            known = json.loads(place.read_text()) if place.exists() else {}
            place.write_text(json.dumps({**known, name: figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
