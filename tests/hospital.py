"""A made-up table as hospitals have them: every kind of column, values that are missing, four sites, 21 % "yes"."""

from typing import Any

import numpy as np
import numpy.typing as npt

#: The label, and the column that names each row's site.
LABEL, SITE = "readmitted", "hospital"
#: The order of the one column whose words have one.
SEVERITY = ("mild", "moderate", "severe", "critical")
_HOSPITALS, _SHARES = ("north", "south", "east", "west"), (0.4, 0.3, 0.2, 0.1)
_WARDS = ("cardiology", "surgery", "oncology", "neurology", "geriatrics", "paediatrics", "burns", "sleep lab")
_WARD_SHARES = (0.25, 0.25, 0.18, 0.14, 0.12, 0.055, 0.003, 0.002)
_WARD_EFFECTS = (0.4, -0.2, 0.9, 0.1, 0.5, -0.8, 0.6, 0.0)
#: Constant of the logit that makes 21 % of the rows a "yes".
_CONSTANT = -2.7


def hospital_table(rows: int = 4000, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
    """Columns (n,) by name; None and NaN are missing values, text is an array of objects.

    An id, a date and a time, text categories of which some are rare, a boolean, ordered words, numbers with heavy tails
    and with gaps that tell something, a constant. The label follows from thresholds, curves and pairs of columns.
    """
    draws = np.random.default_rng([seed, 7])
    site = draws.choice(4, rows, p=_SHARES)
    age = np.clip(draws.normal(58 + 4 * (site - 1), 18, rows), 18, 101).round()
    ward = draws.choice(len(_WARDS), rows, p=_WARD_SHARES)
    severity = np.clip((draws.normal(0.02 * (age - 58), 1, rows) + 1.5).astype(int), 0, 3)
    smoker = draws.random(rows) < 0.27
    creatinine = np.exp(draws.normal(4.4 + 0.004 * (age - 58), 0.45, rows)).round(1)
    crp = np.exp(draws.normal(1.5 + 0.6 * severity, 1.2, rows)).round(1) + 0.1
    bmi = draws.normal(27, 5, rows).round(1)
    sodium = draws.normal(139, 3.5, rows).round()
    days = draws.integers(0, 4 * 365, rows)
    hour = draws.integers(0, 24, rows)
    weekend = (days + 3) % 7 >= 5  # 2020-01-02 is a Thursday
    logit = (
        _CONSTANT
        + 0.9 * np.maximum(age - 65, 0) / 15
        + np.array([0.0, 0.2, 1.0, 1.6])[severity]
        + np.take(_WARD_EFFECTS, ward)
        + 0.9 * (np.log(creatinine) - 4.4) / 0.45 * (age > 50)
        + 0.8 * smoker * (ward < 3)
        + 0.7 * ((bmi < 20) | (bmi > 35))
        + 0.6 * (np.abs(sodium - 139) > 5)
        + 0.5 * weekend
        - 0.25 * days / 365
        + 0.25 * (np.log(crp) - 2)
    )
    untested = draws.random(rows) < np.where(severity == 0, 0.3, 0.08)
    yes = draws.random(rows) < 1 / (1 + np.exp(-(logit - 0.7 * untested)))
    start = np.datetime64("2020-01-02")
    return {
        "patient": np.array([f"P{number:06}" for number in draws.permutation(rows)], dtype=object),
        SITE: np.array(_HOSPITALS, dtype=object)[site],
        "admitted": start + days,
        "seen": (start + days).astype("datetime64[m]") + 60 * hour + draws.integers(0, 60, rows),
        "age": np.where(draws.random(rows) < 0.03, np.nan, age),
        "sex": _gaps(np.array(["f", "m"], dtype=object)[draws.integers(0, 2, rows)], draws.random(rows) < 0.01),
        "ward": np.array(_WARDS, dtype=object)[ward],
        "severity": _gaps(np.array(SEVERITY, dtype=object)[severity], draws.random(rows) < 0.02),
        "smoker": smoker,
        "creatinine": np.where(untested, np.nan, creatinine),
        "crp": np.where(draws.random(rows) < 0.1, np.nan, crp),
        "bmi": bmi,
        "sodium": sodium,
        "country": np.full(rows, "NL", dtype=object),
        LABEL: np.array(["no", "yes"], dtype=object)[yes.astype(int)],
    }


def _gaps(words: npt.NDArray[Any], where: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    return np.where(where, None, words)
