"""Planted bugs, one at a time, and whether the tests that should notice them do. Run by hand, not collected.

    python tests/mutants.py                # all of them: a quarter of an hour where nothing else runs
    python tests/mutants.py 3 17           # some, by their numbers
    python tests/mutants.py --check        # only whether every place is still found

A bug is a text of one file of ``src/kernfed`` that is replaced by another one, in a copy of the tree. Where a file has
moved, its text is looked for in all others; test files are found by their names wherever they are.
"""
# ruff: noqa: E501  one bug, one line

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("src", "tests", "papers", "pyproject.toml", "README.md", "docs", "examples", "benchmarks")


class Mutant(NamedTuple):
    """A planted bug: ``old`` becomes ``new`` in ``file``, and one of ``tests`` should fail."""

    what: str
    file: str
    old: str
    new: str
    tests: str


MUTANTS = (
    # privacy
    Mutant("sensitivity of a mean", "privacy/moments.py", "MEAN_SENSITIVITY = 2.0", "MEAN_SENSITIVITY = 1.0", "test_sums test_moments"),
    Mutant("sensitivity of sums and squares together", "privacy/moments.py", "math.sqrt(4.5)", "math.sqrt(2.0)", "test_moments test_statistics"),
    Mutant("the whole budget spent twice", "privacy/ridge.py", "event.mu / math.sqrt(2.0)", "event.mu", "test_ridge_charge test_statistics"),
    Mutant("a square of the radius forgotten", "privacy/ridge.py", "self.radius**2 * second", "self.radius * second", "privacy/test_statistics ridge/test_private"),
    Mutant("rows clipped at twice the radius", "privacy/grid.py", "largest > inside,", "largest > 2 * inside,", "test_grid privacy/test_mechanism test_sums"),
    Mutant("an undeclared label raises", "privacy/labels.py", "place.get(label, 0)", "place[label]", "privacy/test_contract folding/test_labels"),
    Mutant("slack of sampling left out", "privacy/accounting.py", "slack + revealed + ", "revealed + ", "test_accounting"),
    Mutant("randomised labels cost too little", "privacy/accounting.py", "(1.0 + math.exp(-self.epsilon))", "2.0", "test_accounting"),
    Mutant("a ledger that allows twice its budget", "privacy/ledger.py", "not spent <= self.epsilon", "not spent <= 2 * self.epsilon", "test_ledger"),
    Mutant("a histogram that is not charged", "privacy/histogram.py", "charge(ledger, (self.event,)", "charge(None, (self.event,)", "privacy/test_contract test_statistics test_conforming_private"),
    Mutant("shares of noise for twice the sites", "privacy/shares.py", "share_law(array.deviation, self.honest)", "share_law(array.deviation, 2 * self.honest)", "test_shares"),
    Mutant("noise of one sign", "privacy/gaussian.py", " * random_signs(generator, count)", "", "test_noise"),
    # site
    Mutant("one query more than the quota", "site/authorise.py", "if asked > limit:", "if asked > limit + 1:", "test_quota test_limits"),
    Mutant("public labels where they are private", "site/authorise.py", "policy.private_labels and not private_labels", "False", "test_authorise test_policy test_release"),
    Mutant("a cap of epsilon that is not looked at", "site/authorise.py", "(epsilon > limit or ", "(", "test_authorise test_release"),
    Mutant("readable scores as encrypted ones", "site/authorise.py", 'scheme == "plain" and not', 'scheme == "none" and not', "test_authorise folding/test_secure"),
    Mutant("errors of tasks in their own words", "site/authorise.py", "if error.public:", "if error:", "test_authorise test_word_oracle test_hostile"),
    Mutant("another question behind a known id", "site/authorise.py", "earlier != question_digest(question)", "not earlier", "engines/test_local test_authorise"),
    Mutant("work beyond the policy", "site/authorise.py", "if not amount <= getattr(policy, name)", "if amount < 0", "test_limits"),
    Mutant("a question without a line in the journal", "site/journal.py", "self._lines.append({**line, **self._under(policy)})", "self._under(policy)", "test_journal"),
    Mutant("rows forgotten before come back", "site/data.py", '*state["forgotten"], *ids.tolist()', "*ids.tolist()", "test_site test_store test_forgetting_is_final test_receipts"),
    Mutant("rows to test on are learned from", "site/data.py", "< self.holdout * 2**32", ">= self.holdout * 2**32", "test_site test_public_counts"),
    Mutant("one charge more than allowed", "site/release/permit.py", ">= self.site.policy.max_charges", "> self.site.policy.max_charges", "test_books test_limits"),
    Mutant("receipts signed after another line", "site/receipts.py", 'line["follows"] != previous', "False", "test_receipts"),
    Mutant("an approval of another caller", "site/approval.py", "(self.task, self.caller, self.known) ==", "(self.task, asked.caller, self.known) ==", "test_approval"),
    # federation
    Mutant("the last part of a message lost", "federation/engines/nats_frames.py", "-(-size // PART)", "size // PART", "test_nats_frames"),
    Mutant("a dead site answers", "federation/engines/local.py", '"dead":', '"gone":', "engines/test_local"),
    Mutant("a late site is waited for", "federation/engines/local.py", "deadline - time.monotonic()", "600.0", "engines/test_local test_failures"),
    # secure
    Mutant("one mask too few", "secure/committee/contribution.py", "for seed in seeds:", "for seed in seeds[1:]:", "committee/test_run"),
    Mutant("every member has all seeds", "secure/committee/terms.py", "if index != own", "if True", "committee/test_secrets committee/test_run"),
    Mutant("entries of a sum without a bound", "secure/committee/fixed.py", "-self.bound, self.bound)", "-np.inf, np.inf)", "test_fixed"),
    Mutant("a box that nobody signed", "secure/committee/member.py", "digest_of(box) != reports.by_site[site].boxes[place]", "False", "committee/test_run committee/test_secrets"),
    Mutant("noise bound of an encrypted difference", "secure/arithmetic.py", "log_sum(a.bound, self.ring.key_switch(a.level))", "a.bound", "test_circuit test_bfv test_parameters"),
    # testing
    Mutant("an unknown label is class 0 of a coverage", "testing/held_out.py", "place.get(label, len(classes))", "place.get(label, 0)", "test_conforming test_influence"),
    Mutant("an unknown label is class 0 of an accuracy", "testing/outcomes.py", "position.get(label, len(classes))", "position.get(label, 0)", "test_evaluation"),
    Mutant("an unknown label is class 0 of a temperature", "testing/statistics.py", "known = labels < self.classes", "known = labels < self.classes + 1", "test_calibration"),
    Mutant("F1 without its factor", "testing/outcomes.py", "2 * np.diagonal", "np.diagonal", "test_figures"),
    # kahm
    Mutant("a batch too many", "kahm/batches.py", "rows / batch_size + 0.5", "rows / batch_size + 1.5", "test_batches"),
    Mutant("the (k+1)-th smallest score", "kahm/aggregate.py", "holds.sum(axis=0)) - 1", "holds.sum(axis=0))", "test_aggregate"),
    Mutant("the largest of the machines", "kahm/calibration.py", ".min(axis=1) for group", ".max(axis=1) for group", "test_choice test_estimators test_geometry folding/test_folding"),
    # ridge
    Mutant("a sign", "ridge/sums.py", "phi.T @ y", "-(phi.T @ y)", "test_solvers ridge/test_learner ridge/test_model"),
    Mutant("rows that count half", "ridge/leave_one_out.py", "(n @ c) ** 2 / (n @ c**2)", "(n @ c) / (n @ c**2)", "test_leave_one_out test_prior"),
    Mutant("liars that count twice as much", "ridge/robust.py", "CAP * np.median(some)", "2 * CAP * np.median(some)", "test_robust test_median"),
    # data
    Mutant("an owner of one row too many", "data/partition.py", "np.arange(len(owners)) < odd", "np.arange(len(owners)) <= odd", "test_partition"),
    Mutant("a label too few", "data/partition.py", "share * n_classes + 0.5", "share * n_classes", "test_partition"),
)  # fmt: skip


def place_of(mutant: Mutant, root: Path) -> Path | None:
    """The one file that holds the text of a bug: the one that is named, or else the only other one."""
    source = root / "src" / "kernfed"
    named = source / mutant.file
    if named.is_file() and mutant.old in named.read_text(encoding="utf-8"):
        return named
    others = [path for path in source.rglob("*.py") if mutant.old in path.read_text(encoding="utf-8")]
    return others[0] if len(others) == 1 else None


def test_files(names: str, root: Path) -> list[str]:
    """Paths of test files by the ends of their names."""
    wanted = tuple(f"/{name}.py" for name in names.split())
    return sorted(str(path) for path in (root / "tests").rglob("test_*.py") if str(path).endswith(wanted))


def is_caught(mutant: Mutant, place: Path, root: Path) -> str:
    """Plant a bug, run the tests, and take it out again: "caught", "NOT CAUGHT", or why neither can be said."""
    before = place.read_text(encoding="utf-8")
    place.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    path = os.pathsep.join((str(root / "src"), str(root / "papers" / "src")))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow and not deployment",
    ]
    try:
        run = subprocess.run(
            [*command, *test_files(mutant.tests, root)],
            cwd=root,
            env={**os.environ, **threads, "PYTHONPATH": path},
            capture_output=True,
            check=False,
            timeout=1200,
        )
    except subprocess.TimeoutExpired:
        return "caught"  # the tests hang
    finally:
        place.write_text(before, encoding="utf-8")
    return {0: "NOT CAUGHT", 1: "caught"}.get(run.returncode, f"pytest ended with {run.returncode}")


def main(arguments: list[str]) -> int:
    """Plant the bugs with these numbers, or all; returns how many were not caught."""
    chosen = [int(argument) for argument in arguments if argument.isdigit()] or range(1, len(MUTANTS) + 1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
            elif (ROOT / name).exists():
                shutil.copy(ROOT / name, root / name)
        verdicts = []
        for number in chosen:
            mutant = MUTANTS[number - 1]
            place = place_of(mutant, root)
            if place is None:
                verdict = "NOT FOUND"
            elif not test_files(mutant.tests, root):
                verdict = "NO TESTS"
            else:
                verdict = "found" if "--check" in arguments else is_caught(mutant, place, root)
            verdicts.append(verdict)
            print(f"{number:3}  {verdict:<12} {mutant.file}: {mutant.what}", flush=True)
    missed = sum(verdict not in ("caught", "found") for verdict in verdicts)
    print(f"{len(verdicts) - missed} of {len(verdicts)}")
    return missed


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
