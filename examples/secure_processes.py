"""Encrypted answers between processes that share nothing but files.

    python examples/secure_processes.py              bfv, needs kernfed[fhe]
    python examples/secure_processes.py plain        the reference, no encryption

A key holder asks what digit each of 40 images shows. Three sites have learned from their own images; each scores the
queries and encrypts its scores. A server combines them without being able to read them. Every role is a process of
its own that reads and writes files in one folder; the secret key never leaves the key holder's file.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from kernfed import KAHMClassifier
from kernfed.secure import KeyHolder, Server, Site

SITES, CLASSES, QUERIES = 3, 10, 40
QUESTION = "which digit?"


def make_keys(folder: Path, scheme: str) -> None:
    """Key holder: keys for everyone."""
    holder = KeyHolder(SITES, CLASSES, bits=8, scheme=scheme)
    secret = folder / "secret.key"
    secret.touch(mode=0o600)
    secret.write_bytes(holder.save())
    (folder / "site.key").write_bytes(holder.site_key)
    (folder / "evaluation.keys").write_bytes(holder.evaluation_keys)


def answer_as_site(folder: Path, number: str) -> None:
    """Site: learn from the own rows, score the queries, encrypt."""
    q = int(number)
    rows, labels = load_digits(return_X_y=True)
    mine = slice(QUERIES + q, None, SITES)
    model = KAHMClassifier(measure="rms", batch_size=100, partition="kmeans", scale=None).fit(
        rows[mine] / 16, labels[mine]
    )
    scores = np.ones((QUERIES, CLASSES))  # a class that this site does not know has the largest score
    scores[:, model.classes_] = model.scores(rows[:QUERIES] / 16)
    site = Site((folder / "site.key").read_bytes(), q)
    (folder / f"scores-{q}").write_bytes(site.encrypt(scores, question=QUESTION))
    np.save(folder / f"clear-{q}.npy", scores)  # only for the comparison at the end


def combine(folder: Path, _: str) -> None:
    """Server: combine what came."""
    server = Server((folder / "evaluation.keys").read_bytes())
    messages = [path.read_bytes() for path in sorted(folder.glob("scores-*"))]
    (folder / "answer").write_bytes(server.combine(messages))


def read_answer(folder: Path, _: str) -> None:
    """Key holder: decrypt, and compare with the answer in clear."""
    holder = KeyHolder.load((folder / "secret.key").read_bytes())
    digits = holder.decide((folder / "answer").read_bytes(), question=QUESTION)
    clear = np.min([np.load(path) for path in sorted(folder.glob("clear-*.npy"))], axis=0).argmin(axis=1)
    truth = load_digits(return_X_y=True)[1][:QUERIES]
    print(f"answers:           {' '.join(map(str, digits))}")
    print(f"as in clear:       {(digits == clear).sum()} of {QUERIES} (8 bits round the scores)")
    print(f"correct:           {(digits == truth).sum()} of {QUERIES}")


ROLES = {"keys": make_keys, "site": answer_as_site, "server": combine, "read": read_answer}


def main(scheme: str) -> None:
    """Start one process per role and print what it wrote."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = [("keys", scheme), *[("site", str(q)) for q in range(SITES)], ("server", ""), ("read", "")]
        for role, argument in steps:
            before = set(folder.iterdir())
            subprocess.run([sys.executable, __file__, role, name, argument], check=True)
            for path in sorted(set(folder.iterdir()) - before):
                if path.suffix != ".npy":
                    print(f"{role:<7} wrote {path.name:<16} {path.stat().st_size:>12,} bytes")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        ROLES[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
    else:
        main(*(sys.argv[1:] or ["bfv"]))
