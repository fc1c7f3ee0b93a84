"""Write what this version writes, small, with what it answers: ``python tests/samples/freeze.py``, once per release.

Samples are never written again: they stand for what users have on disk.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import kernfed as kf
from kernfed.site.protocol.message import Payload, Question, Reply, digest, encode_question, encode_reply

NAMES = ("age", "dose", "time")


def make_rows() -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """Rows of two sites with two classes, and queries (6, 3)."""
    rng = np.random.default_rng(5)
    X = np.concatenate([rng.normal(mean, 1, (24, 3)) for mean in (0, 2.5)])
    order = rng.permutation(48)
    X, y = X[order].round(3), np.repeat(["no", "yes"], 24)[order]
    return {"north": (X[:24], y[:24]), "south": (X[24:], y[24:])}, rng.normal(1.2, 1.5, (6, 3)).round(3)


def make_models(sites: dict[str, Any], store: Path) -> dict[str, Any]:
    """A model of every kind of file, by the name of its sample."""
    X, y = (np.concatenate(parts) for parts in zip(*sites.values(), strict=True))
    moments = kf.privacy.RecordMoments(8.0, 1e-5, radius=6.0, dimension=2)
    private_ridge = kf.privacy.RecordRidge(8.0, 1e-5, radius=1.0, target_radius=1.0)
    numbers = {name: (rows, rows @ np.array([1.0, 2.0, 3.0]) + 1) for name, (rows, _) in sites.items()}
    federation = kf.Federation.local(sites, seed=3, columns=NAMES)
    return {
        "folding-machines": kf.FoldingLearner(
            batch_size=10, hold="machines", measure="rms", partition="order", scale=None
        ).fit(federation),
        "folding-sites": kf.FoldingLearner(batch_size=10, measure="rms", partition="order", scale=None).fit(
            kf.Federation.local(sites, seed=3, store=store)
        ),
        "folding-private": kf.FoldingLearner(
            batch_size=30,
            privacy=moments,
            rows_per_class=30,
            hold="machines",
            measure="rms",
            partition="order",
            scale=None,
        ).fit(kf.Federation.local(sites, seed=3, store=store.parent / "private")),
        "ridge": kf.RidgeLearner("conjugate", n_components=16, bandwidth="median", regularization=1e-3).fit(federation),
        "ridge-private": kf.RidgeLearner(
            "exact", n_components=8, bandwidth=2.0, regularization=1e-3, privacy=private_ridge
        ).fit(kf.Federation.local(sites, seed=3, store=store.parent / "private-ridge")),
        "ridge-regress": kf.RidgeLearner("conjugate", features="given", task="regress", regularization=1e-3).fit(
            kf.Federation.local(numbers, seed=1)
        ),
        "personal": kf.PersonalLearner().fit(federation),
        "kahm-classifier": kf.KAHMClassifier(batch_size=10, partition="kmeans", scale=None).fit(X, y),
        "kahm": kf.KAHM(scale=None).fit(X),
        "deepkahm": kf.DeepKAHM(scale=None).fit(X),
        "widekahm": kf.WideKAHM(batch_size=1000, partition="kmeans", scale=None).fit(X),
    }


def answer(name: str, model: Any, queries: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What a sample says of the queries."""
    if name == "personal":
        model = model.for_site("north")
    method = "predict" if name == "ridge-regress" else "distance" if name.endswith("kahm") else "predict_proba"
    return np.asarray(getattr(model, method)(queries))


def write_messages(folder: Path, queries: np.ndarray[Any, Any]) -> None:
    """A question and a reply to it, as they travel."""
    asked = Payload({"X": queries}, {"handle": "h", "prepare": False})
    told = Payload({"scores": np.eye(2)}, {"classes": {"dtype": "<U3", "labels": ["no", "yes"]}})
    (folder / "question.bin").write_bytes(encode_question(Question("run", "id", "scores", asked, "caller")))
    reply = Reply("north", "run", "id", "scores", digest(asked.values), "scores", told)
    (folder / "reply.bin").write_bytes(encode_reply(reply))


def freeze(folder: Path) -> None:
    """Write all samples to a new folder."""
    folder.mkdir(parents=True)
    sites, queries = make_rows()
    with tempfile.TemporaryDirectory() as work:
        store = Path(work) / "stores"
        answers: dict[str, Any] = {"queries": queries.tolist()}
        for name, model in make_models(sites, store).items():
            kf.save(model, folder / f"{name}.kfd")
            answers[name] = answer(name, model, queries).tolist()
        shutil.copytree(store, folder / "stores", ignore=shutil.ignore_patterns("lock"))
    (folder / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")
    X, y = (np.concatenate(parts) for parts in zip(*sites.values(), strict=True))
    np.savez(folder / "rows.npz", X=X, y=y)
    write_messages(folder, queries)


if __name__ == "__main__":
    version = ".".join(kf.__version__.split(".")[:2])
    target = Path(__file__).parent / f"v{version}"
    if target.exists():
        sys.exit(f"{target} is there already, and samples are not written again")
    freeze(target)
