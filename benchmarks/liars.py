"""What one and two lying sites do to each learner, who is named, and how often an honest site is.

python benchmarks/liars.py [--quick] [--only harm|alarms] [--seed 0] [--out benchmarks/kept]

harm     ten sites, divided evenly and by Dirichlet 0.5. Liars are the sites of middle size. Lies:
           labels    every label is moved to the next class
           repeated  the same, and the site holds every row three times
           one class rows of the site's largest class are called the next
           hidden    answers that hide within twice the honest spread: scores of queries so low that their mean (of
                     logarithms) is two standard deviations below that of the honest sites, and sums of features by
                     class that are moved against the others by twice the median distance of honest sites from their
                     mean
         Accuracy on the test rows: honest, with the liars, and trained again without the sites that
         ``kernfed.evaluate(influence=True)`` names.
alarms   honest sites of five data sets, four divisions and 6, 12 and 20 sites: how many of them are named; and in the
         same federations one site of moved labels. A liar that does no harm is not named, so that those which cost a
         point of accuracy are counted apart.

Writes ``liars.json``, row by row, and leaves out rows that are in it. Sets whose files are not there are left out.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from timing import machine_facts

import kernfed as kf
from kernfed.base.text import TextTable
from kernfed.cli.console import show
from kernfed.errors import DatasetNotFoundError, KernfedError
from kernfed.federation import Federation, LocalEngine, Payload

HERE = Path(__file__).resolve().parent
# The engine through which lies are told is that of the tests.
sys.path.insert(0, str(HERE.parent / "tests"))

from contracts.engines import Tampering, read_message, with_payload  # noqa: E402

ASIDE = 0.2
LIES = ("labels", "repeated", "one class", "hidden")
RIDGE: dict[str, Any] = {"n_components": 300}
Rows = tuple[np.ndarray, np.ndarray]
Lie = Callable[[Payload], Payload]


@dataclass(frozen=True)
class Table:
    """Rows to learn from and rows to test on."""

    name: str
    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


@dataclass(frozen=True)
class HarmRow:
    """One learner and lie: accuracy honest, with liars, and again without the named; how many were named rightly."""

    data: str
    division: str
    learner: str
    liars: int
    lie: str
    honest: float
    lied: float
    again: float
    found: int
    accused: int


@dataclass(frozen=True)
class AlarmRow:
    """One learner over many federations: honest sites and those named, liars of moved labels, what they cost."""

    learner: str
    division: str
    federations: int
    sites: int
    named: int
    alarmed: int
    liars: int
    found: int
    harmful: int
    harmful_found: int


class Kept:
    """Rows in a file, each written as it comes, so that a run that was cut off goes on where it was."""

    def __init__(self, place: Path, facts: dict[str, Any]) -> None:
        self.place = place
        earlier = json.loads(place.read_text()) if place.exists() else {}
        same = all(earlier.get(name) == facts[name] for name in ("quick", "seed"))
        rows = {name: earlier.get(name, []) if same else [] for name in ("harm", "alarms")}
        self.told: dict[str, Any] = {**facts, **rows}

    def has(self, part: str, **key: Any) -> bool:
        """Whether a row of this key is there."""
        return any(all(row[name] == value for name, value in key.items()) for row in self.told[part])

    def add(self, part: str, row: HarmRow | AlarmRow) -> None:
        """Write a row, and show it."""
        self.told[part].append(asdict(row))
        temporary = self.place.with_suffix(".part")
        temporary.write_text(json.dumps(self.told) + "\n")
        temporary.replace(self.place)
        print(json.dumps(asdict(row)), file=sys.stderr, flush=True)


# Data -------------------------------------------------------------------------------------------------------------


def load(name: str, most: int, seed: int) -> Table | None:
    """A set in one unit, at most so many rows to learn from; None where its file is not there."""
    if name == "breast cancer":
        cancer = load_breast_cancer()
        X, y = cancer.data, cancer.target
    else:
        try:
            data = kf.data.load_dataset(name, scaling="none")
        except DatasetNotFoundError:
            return None
        X = np.concatenate([data.x_train, data.x_test]).astype(np.float64)
        y = np.concatenate([data.y_train, data.y_test])
    order = np.random.default_rng(seed).permutation(len(y))[: most + most // 3]
    cut = 3 * len(order) // 4
    X, y = X[order], y[order]
    return Table(name, X[:cut], y[:cut], X[cut:], y[cut:])


def divide(table: Table, sites: int, alpha: float | None, seed: int) -> dict[str, Rows]:
    """Rows by site, evenly or by Dirichlet label skew."""
    if alpha is None:
        parts: Sequence[Any] = np.array_split(np.random.default_rng(seed).permutation(len(table.y)), sites)
    else:
        parts = kf.data.partition_dirichlet(table.y, sites, alpha, seed, min_size=10)
    return {f"site-{place:02}": (table.X[rows], table.y[rows]) for place, rows in enumerate(parts)}


def division_name(alpha: float | None) -> str:
    """How rows were divided, in words."""
    return "even" if alpha is None else f"Dirichlet {alpha:g}"


# Lies -------------------------------------------------------------------------------------------------------------


def false_rows(rows: Rows, lie: str, classes: np.ndarray) -> Rows:
    """The rows of a site that lies about labels."""
    X, y = rows
    following = np.roll(classes, -1)[np.searchsorted(classes, y)]
    if lie == "one class":
        names, counts = np.unique(y, return_counts=True)
        return X, np.where(y == names[counts.argmax()], following, y)
    if lie == "repeated":
        return np.concatenate([X] * 3), np.concatenate([following] * 3)
    return X, following


def telling(rows: dict[str, Rows], lies: dict[str, dict[str, Lie]]) -> Federation:
    """A federation in which some sites change their answers to some tasks: {site: {task: lie}}."""

    def change(site: str, reply: bytes) -> bytes:
        task = read_message(reply)[0]["task"]
        return with_payload(reply, lies[site][task]) if task in lies.get(site, {}) else reply

    return Federation(Tampering(LocalEngine.from_data(rows, holdout=ASIDE), change))


def hidden_lies(rows: dict[str, Rows], liars: Sequence[str], queries: np.ndarray) -> dict[str, dict[str, Lie]]:
    """Lies within twice the honest spread, by one who knows all honest answers."""
    lies: dict[str, dict[str, Lie]] = {site: {} for site in liars}
    honest = Federation.local(rows, holdout=ASIDE)
    machines = kf.FoldingLearner().fit(honest)
    scores = machines.site_scores(queries)
    usual = {
        site: float(np.log(np.maximum(own[np.isfinite(own)], 1e-12)).mean())
        for site, own in zip(scores.sites, scores.values, strict=True)
    }
    level, spread = np.mean(list(usual.values())), np.std(list(usual.values()))
    for site in liars:
        factor = float(np.exp(min(0.0, level - 2 * spread - usual[site])))
        lies[site]["scores"] = scaled_scores(factor)
    head = kf.RidgeLearner(**RIDGE).fit(honest)
    question = Payload(values={"parameters": head.parameters.to_values()})
    parts = honest.ask("ridge_moments", question)
    width, joint = head.parameters.n_features, head.parameters.n_features + head.parameters.n_targets
    means = {site: cross_of(payload, width, joint) / float(payload.arrays["n"]) for site, payload in parts}
    middle = np.mean(list(means.values()), axis=0)
    distance = float(np.median([np.linalg.norm(own - middle) for own in means.values()]))
    for site in liars:
        size = float(np.linalg.norm(means[site]))
        lies[site]["ridge_moments"] = tilted_sums(max(-1.0, 1 - 2 * distance / size), width, joint)
    return lies


def scaled_scores(factor: float) -> Lie:
    """All scores of a site times a factor."""
    return lambda payload: Payload({**payload.arrays, "scores": payload.arrays["scores"] * factor}, payload.values)


def cross_of(payload: Payload, width: int, joint: int) -> np.ndarray:
    """Products (M, C) of features and targets in a site's moments."""
    return whole(payload.arrays["scatter"], joint)[:width, width:]


def tilted_sums(factor: float, width: int, joint: int) -> Lie:
    """Products of features and targets times a factor between -1 and 1: some rows could have them."""

    def lie(payload: Payload) -> Payload:
        if len(payload.arrays["scatter"]) != joint * (joint + 1) // 2:
            return payload
        matrix = whole(payload.arrays["scatter"], joint)
        matrix[:width, width:] *= factor
        return Payload({**payload.arrays, "scatter": matrix[np.triu_indices(joint)]}, payload.values)

    return lie


def whole(triangle: np.ndarray, joint: int) -> np.ndarray:
    """A matrix from its upper triangle, the rest of which is 0."""
    matrix = np.zeros((joint, joint))
    matrix[np.triu_indices(joint)] = triangle
    return matrix


# Harm -------------------------------------------------------------------------------------------------------------


def learners(liars: int) -> dict[str, Any]:
    """What people would use, and beside it what survives ``liars`` wrong sites."""
    kth = kf.FoldingLearner(aggregate="kth", k=liars + 1, trusted_classes="all")
    median = kf.RidgeLearner(aggregate="median", **RIDGE)
    return {
        "folding": kf.FoldingLearner(),
        f"folding, kth k={liars + 1}": kth,
        "ridge": kf.RidgeLearner(**RIDGE),
        "ridge, median": median,
        "fusion": kf.FusionLearner(ridge=kf.RidgeLearner(**RIDGE)),
        "fusion, kth and median": kf.FusionLearner(kth, median),
        "personal": kf.PersonalLearner(gains=False),
    }


def accuracy(model: Any, table: Table, honest: Sequence[str]) -> float:
    """Share of right labels; of a personalised model, the mean over honest sites of the median class of answers."""
    if model.is_personal:
        own = [model.for_site(site).predict(table.X_test) == table.y_test for site in model.sites if site in honest]
        return float(np.mean(own))
    return float((model.predict(table.X_test) == table.y_test).mean())


def harm_rows(kept: Kept, table: Table, alpha: float | None, seed: int, lies: Sequence[str]) -> None:
    """Every lie of one and of two sites of middle size to every learner."""
    rows = divide(table, 10, alpha, seed)
    by_size = sorted(rows, key=lambda site: len(rows[site][1]))
    for count in (1, 2):
        liars = by_size[4 : 4 + count]
        hiding = hidden_lies(rows, liars, table.X_test[:300]) if "hidden" in lies else {}
        for name, learner in learners(count).items():
            key = {"data": table.name, "division": division_name(alpha), "learner": name, "liars": count}
            left = [lie for lie in lies if not kept.has("harm", lie=lie, **key)]
            others = [site for site in rows if site not in liars]
            honest = accuracy(learner.fit(Federation.local(rows, holdout=ASIDE)), table, others) if left else 0.0
            for lie in left:
                kept.add("harm", harm_row(key, lie, learner, rows, liars, hiding, table, honest))


def harm_row(
    key: dict[str, Any],
    lie: str,
    learner: Any,
    rows: dict[str, Rows],
    liars: Sequence[str],
    hiding: dict[str, dict[str, Lie]],
    table: Table,
    honest: float,
) -> HarmRow:
    """One lie: what it does, who is named, and what is left without these."""
    classes, others = np.unique(table.y), [site for site in rows if site not in liars]
    data, told = rows, hiding
    if lie != "hidden":
        data, told = {s: false_rows(own, lie, classes) if s in liars else own for s, own in rows.items()}, {}
    federation = telling(data, told)
    model = learner.fit(federation)
    lied = accuracy(model, table, others)
    named = named_sites(model, federation)
    again = lied
    if named:
        again = accuracy(learner.fit(federation.only([site for site in rows if site not in named])), table, others)
    found, accused = len(set(named) & set(liars)), len(set(named) - set(liars))
    return HarmRow(**key, lie=lie, honest=honest, lied=lied, again=again, found=found, accused=accused)


def named_sites(model: Any, federation: Federation) -> tuple[str, ...]:
    """Whom the influence names; nobody where a kind of model has none."""
    if model.is_personal:
        return ()
    influence = kf.evaluate(model, federation, influence=True).influence
    assert influence is not None
    return influence.named


# Alarms -----------------------------------------------------------------------------------------------------------


def alarm_row(name: str, learner: Any, tables: Sequence[Table], alpha: float | None, seeds: Sequence[int]) -> AlarmRow:
    counts = dict.fromkeys(
        ("federations", "sites", "named", "alarmed", "liars", "found", "harmful", "harmful_found"), 0
    )
    for table in tables:
        for seed in seeds:
            for sites in (6, 12, 20):
                _count_alarms(counts, learner, table, sites, alpha, seed)
    return AlarmRow(name, division_name(alpha), **counts)


def _count_alarms(
    counts: dict[str, int], learner: Any, table: Table, sites: int, alpha: float | None, seed: int
) -> None:
    try:
        rows = divide(table, sites, alpha, seed)
        federation = Federation.local(rows, holdout=ASIDE)
        model = learner.fit(federation)
        named = named_sites(model, federation)
    except KernfedError:  # a division that leaves a site without rows of its own to test on
        return
    counts["federations"] += 1
    counts["sites"] += len(rows)
    counts["named"] += len(named)
    counts["alarmed"] += bool(named)
    liar = sorted(rows, key=lambda site: len(rows[site][1]))[len(rows) // 2]
    lied = {s: false_rows(own, "labels", np.unique(table.y)) if s == liar else own for s, own in rows.items()}
    told = Federation.local(lied, holdout=ASIDE)
    wrong = learner.fit(told)
    found = liar in named_sites(wrong, told)
    harmful = accuracy(wrong, table, ()) < accuracy(model, table, ()) - 0.01
    counts["liars"] += 1
    counts["found"] += found
    counts["harmful"] += harmful
    counts["harmful_found"] += harmful and found


# All of it --------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="digits only, few lies and divisions")
    parser.add_argument("--only", choices=("harm", "alarms"))
    parser.add_argument("--markdown", action="store_true", help="print the tables of docs/liars.md")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "kept")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    facts = {"benchmark": "liars", "quick": options.quick, "seed": options.seed, **machine_facts()}
    kept = Kept(options.out / "liars.json", facts)
    warnings.simplefilter("ignore")
    if options.only != "alarms":
        measure_harm(kept, options.quick, options.seed)
    if options.only != "harm":
        measure_alarms(kept, options.quick, options.seed)
    harm, alarms = [HarmRow(**row) for row in kept.told["harm"]], [AlarmRow(**row) for row in kept.told["alarms"]]
    if options.markdown:
        print(f"{harm_markdown(harm)}\n\n{alarm_markdown(alarms)}")
    else:
        show(harm_table(harm))
        show(alarm_table(alarms))


def measure_harm(kept: Kept, quick: bool, seed: int) -> None:
    """All lies to all learners that are not in the file yet."""
    for name in ("digits",) if quick else ("digits", "satimage"):
        table = load(name, 600 if quick else 1500, seed)
        for alpha in (None,) if quick else (None, 0.5):
            if table is not None:
                harm_rows(kept, table, alpha, seed, ("labels",) if quick else LIES)


def measure_alarms(kept: Kept, quick: bool, seed: int) -> None:
    """All learners and divisions, on sets and seeds that the limits of the test were not chosen on."""
    names = ("digits",) if quick else ("pendigits", "usps", "dna", "shuttle", "cifar10_efflite0")
    tables = [table for name in names if (table := load(name, 600 if quick else 1500, seed)) is not None]
    folding = kf.FoldingLearner(batch_size=50, partition="kmeans")
    ridge = kf.RidgeLearner(n_components=200, bandwidth="median")
    shown = {"folding": folding, "ridge": ridge, "fusion": kf.FusionLearner(folding, ridge)}
    for name, learner in list(shown.items())[: 2 if quick else 3]:
        for alpha in (None, 1.0) if quick else (None, 1.0, 0.3, 0.1):
            if not kept.has("alarms", learner=name, division=division_name(alpha)):
                seeds = (seed,) if quick else (seed + 2, seed + 3)
                kept.add("alarms", alarm_row(name, learner, tables, alpha, seeds))


def harm_table(rows: Sequence[HarmRow]) -> TextTable:
    """What liars did, to be read."""
    lines = [
        (
            f"{row.data}, {row.division}",
            row.learner,
            f"{row.liars} x {row.lie}",
            f"{row.honest:.1%}",
            f"{row.lied:.1%}",
            f"{row.found} of {row.liars}" + (f", {row.accused} honest" if row.accused else ""),
            f"{row.again:.1%}",
        )
        for row in rows
    ]
    return TextTable(("data", "learner", "lie", "honest", "with liars", "named", "without the named"), lines, "Liars")


def alarm_table(rows: Sequence[AlarmRow]) -> TextTable:
    """Honest sites that were named, and liars that were."""
    lines = [
        (
            row.learner,
            row.division,
            f"{row.named} of {row.sites:,} ({row.named / max(1, row.sites):.2%})",
            f"{row.alarmed} of {row.federations}",
            f"{row.found} of {row.liars}",
            f"{row.harmful_found} of {row.harmful}",
        )
        for row in rows
    ]
    head = (
        "learner",
        "division",
        "honest sites named",
        "federations with one",
        "liars named",
        "liars that cost a point",
    )
    return TextTable(head, lines, "False alarms, and one site of moved labels")


def harm_markdown(rows: Sequence[HarmRow]) -> str:
    """Tables of ``docs/liars.md``: a table for every division, in a cell one liar / two liars."""
    parts = []
    for data, division in dict.fromkeys((row.data, row.division) for row in rows):
        own = [row for row in rows if (row.data, row.division) == (data, division)]
        lies = list(dict.fromkeys(row.lie for row in own))
        lines = [f"| {data}, {division} | honest | {' | '.join(lies)} |", "|---" * (2 + len(lies)) + "|"]
        for name in dict.fromkeys(_without_k(row.learner) for row in own):
            alike = [row for row in own if _without_k(row.learner) == name]
            honest = " / ".join(dict.fromkeys(f"{100 * row.honest:.1f}" for row in alike))
            cells = [" / ".join(_cell(row) for row in alike if row.lie == lie) for lie in lies]
            lines.append(f"| {name} | {honest} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _without_k(learner: str) -> str:
    """Learners that survive one liar and two are one row."""
    return learner.split(" k=")[0]


def _cell(row: HarmRow) -> str:
    """Accuracy with liars and, where sites were named, without these; honest ones among them are said."""
    text = f"{100 * row.lied:.1f}"
    if row.found + row.accused:
        text += f" → {100 * row.again:.1f}"
    return text + (f" ({row.accused} honest)" if row.accused else "")


def alarm_markdown(rows: Sequence[AlarmRow]) -> str:
    """The table of false alarms of ``docs/liars.md``."""
    lines = [
        "| learner | division | honest sites named | federations with one | liars named | of those that cost a point |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        share = f"{row.named} of {row.sites} ({row.named / max(1, row.sites):.1%})"
        cells = (row.learner, row.division, share, f"{row.alarmed} of {row.federations}")
        liars = (f"{row.found} of {row.liars}", f"{row.harmful_found} of {row.harmful}")
        lines.append(f"| {' | '.join((*cells, *liars))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
