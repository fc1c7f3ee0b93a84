"""Crafted questions: honest ones with something changed, gently so that they are still followed, or wildly.

Preparations that nobody needs are plans at the ends of what numbers can be, and plans of one word. Everything in them
is of the right type, so that a site has to decide by its bounds, and never by what its cells hold.
"""

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.errors import InputError
from kernfed.federation.folding.machines import FOLDER as FOLDING
from kernfed.federation.summing.tasks import TERMS, question_hash
from kernfed.secure.committee.fixed import Layout
from kernfed.secure.committee.reports import as_bytes
from kernfed.secure.committee.terms import RunTerms
from kernfed.site.protocol.message import Payload, digest

#: Numbers, words and lists that no honest question has where they are put.
_HOSTILE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2,
    7,
    0.5,
    -1.5,
    1e308,
    -1e308,
    1e-308,
    5e-324,
    1e-12,
    2**31,
    2**63,
    10**30,
    "",
    "x",
    "../../x",
    "regress",
    "classify",
    [],
    {},
    [[]],
    [[1e308, 1e308]],
    [0, 1],
    {"kind": "element-laplace"},
    {"dtype": "<f8", "labels": [0.25, 0.75]},
    {"dtype": "<i8", "labels": [5, 6, 7, 8]},
)
#: What may be smaller in an honest question, and is then followed all the same.
_SCALES = ("epsilon", "radius", "target_radius", "spread", "bandwidth", "target_bandwidth")
_COUNTS = ("batch_size", "rows_per_class", "smoothing", "subspace_dim")

#: What these may be as well: numbers of the right type that nothing honest is made of.
_ENDS = (5e-324, 2.2250738585072014e-308, 1e-300, 1e300, 1.7976931348623157e308)

Values = dict[str, Any]
Arrays = dict[str, npt.NDArray[Any]]


def crafted(task: str, payload: Payload, draws: np.random.Generator, *, wild: bool) -> Payload:
    """A payload like this one with something changed; a preparation becomes one at the ends of numbers."""
    values = copy.deepcopy(dict(payload.values))
    arrays = dict(payload.arrays)
    if task == "prepare" and not wild:
        return hostile_question([str(plan["name"]) for plan in values["preparation"]], draws)
    if TERMS in arrays and draws.integers(2):
        arrays[TERMS] = other_bounds(arrays[TERMS], draws)
    elif arrays and (not values or draws.integers(3) == 0):
        name = sorted(arrays)[draws.integers(len(arrays))]
        if wild or name == "X":
            arrays[name] = (_wild_array if wild else _other_queries)(arrays[name], draws)
    elif wild:
        _change_wildly(values, draws)
    else:
        _change_gently(values, draws)
    if draws.integers(8):
        agree(task, values, arrays)
    return Payload(arrays, values)


def agree(task: str, values: Values, arrays: Arrays | None = None) -> None:
    """Make a changed question consistent, or sites follow it no further: the handle of a training, the hash in terms.

    The terms of a masked sum among ``arrays`` get the hash of the question as it is now.
    """
    parameters, recipe = values.get("parameters"), values.get("privacy")
    if task == "folding_fit" and isinstance(parameters, dict):
        values["handle"] = digest(parameters if recipe is None else {**parameters, "privacy": recipe})
    if arrays is not None and TERMS in arrays:
        arrays[TERMS] = renewed(arrays, values)


def cheaper(task: str, payload: Payload, share: float) -> Payload | None:
    """The question of a release with this share of its epsilon; None where it asks for no mechanism."""
    values: Values = copy.deepcopy(dict(payload.values))
    asked = values.get("privacy")
    mechanism = asked.get("mechanism", asked) if isinstance(asked, dict) else None
    if not isinstance(mechanism, dict) or "epsilon" not in mechanism:
        return None
    mechanism["epsilon"] *= share
    agree(task, values)
    return Payload(payload.arrays, values)


def leaves(values: Any) -> Iterator[tuple[Any, Any]]:
    """Places (container, key) of everything inside, containers too."""
    pairs = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in list(pairs):
        yield values, key
        yield from leaves(value)


def _change_gently(values: Values, draws: np.random.Generator) -> None:
    changes: list[Callable[[], None]] = []

    def put(home: Any, key: Any, value: Any) -> Callable[[], None]:
        return lambda: home.__setitem__(key, value)

    for home, key in leaves(values):
        old = home[key]
        if key == "seed":
            changes.append(put(home, key, int(draws.integers(1000))))
        elif isinstance(old, float) and key in _SCALES:
            extreme = draws.integers(12) == 0
            smaller = _ENDS[draws.integers(len(_ENDS))] if extreme else old * float(draws.uniform(0.2, 1.0))
            changes.append(put(home, key, smaller))
        elif type(old) is int and key in _COUNTS:
            changes.append(put(home, key, max(1, old + int(draws.integers(-3, 4)))))
        elif key == "regularization" and isinstance(old, list):
            changes.append(put(home, key, [float(draws.uniform())]))
    if changes:
        changes[draws.integers(len(changes))]()


def _change_wildly(values: Values, draws: np.random.Generator) -> None:
    places: list[tuple[Any, Any]] = list(leaves(values))
    for _ in range(int(draws.integers(1, 3))):
        home, key = places[draws.integers(len(places))] if places else _anywhere(values)
        kind = draws.integers(8)
        if kind == 0 and isinstance(home, dict):
            home.pop(key, None)
        elif kind == 1 and isinstance(home, dict):
            home["another"] = _hostile(draws)
        elif isinstance(home, dict) or key < len(home):
            home[key] = _hostile(draws)


def _anywhere(values: Values) -> tuple[Any, Any]:
    return values, "x"


def _hostile(draws: np.random.Generator) -> Any:
    return copy.deepcopy(_HOSTILE[draws.integers(len(_HOSTILE))])


def _other_queries(X: npt.NDArray[Any], draws: np.random.Generator) -> npt.NDArray[Any]:
    """Other queries of the same columns, near and far."""
    width = X.shape[-1]
    return draws.normal(size=(int(draws.integers(1, 5)), width)) * 10.0 ** int(draws.integers(-3, 4))


def _wild_array(array: npt.NDArray[Any], draws: np.random.Generator) -> npt.NDArray[Any]:
    """An array of another size, type or content."""
    filled = np.asarray(array, dtype=np.float64)
    made: list[Callable[[], npt.NDArray[Any]]] = [
        lambda: np.full_like(filled, np.nan),
        lambda: np.full_like(filled, np.inf),
        lambda: np.full_like(filled, 1e308),
        lambda: np.full_like(filled, 5e-324),
        lambda: filled[:0],
        lambda: filled.reshape(-1),
        lambda: filled[..., None],
        lambda: np.concatenate([filled.reshape(-1)] * 2),
        lambda: np.ascontiguousarray(filled.T),
        lambda: np.nan_to_num(filled).clip(-99, 99).astype(np.int8),
        lambda: np.zeros(filled.shape, dtype=np.float32),
    ]
    return made[draws.integers(len(made))]()


def wrong_bytes(data: bytes, draws: np.random.Generator) -> bytes:
    """A message that was damaged: cut off, or with other bytes in it."""
    if draws.integers(2):
        return data[: int(draws.integers(len(data)))]
    changed = bytearray(data)
    for _ in range(3):
        changed[int(draws.integers(len(changed)))] = int(draws.integers(256))
    return bytes(changed)


def trainings(recording: Mapping[str, tuple[Payload, ...]]) -> dict[str, Payload]:
    """The question that makes the machines of each handle."""
    return {str(payload.values["handle"]): payload for payload in recording.get(f"{FOLDING}_fit", ())}


# Terms of masked sums --------------------------------------------------------------------------------------------


def renewed(arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any]) -> npt.NDArray[Any]:
    """The terms among ``arrays`` with the hash of the question that they are in; as they are if unreadable."""
    try:
        terms = RunTerms.from_bytes(arrays[TERMS].tobytes())
        asked = question_hash(terms.task, Payload(dict(arrays), dict(values)))
        return as_bytes(replace(terms, question=asked).to_bytes())
    except (ValueError, TypeError):  # InputError is a ValueError
        return arrays[TERMS]


def other_bounds(terms: npt.NDArray[Any], draws: np.random.Generator) -> npt.NDArray[Any]:
    """The terms with another bound of one block, of any size."""
    return with_bound(terms, 5e-324 if draws.integers(8) == 0 else 2.0 ** float(draws.uniform(-20, 59)), draws)


def with_bound(terms: npt.NDArray[Any], bound: float, draws: np.random.Generator | None = None) -> npt.NDArray[Any]:
    """The terms with this bound of all blocks, or of a drawn one; as they are where they cannot be read or have it."""
    try:
        read = RunTerms.from_bytes(terms.tobytes())
        names = read.layout.names if draws is None else [read.layout.names[draws.integers(len(read.layout.names))]]
        changed = {name: replace(read.layout.blocks[name], bound=bound) for name in names}
        return as_bytes(replace(read, layout=Layout({**read.layout.blocks, **changed})).to_bytes())
    except InputError:
        return terms


Plan = dict[str, Any]

#: The largest number there is, and the smallest above 0.
LARGEST, SMALLEST = sys.float_info.max, 5e-324
#: A word that no cell holds: flags of it are 0 in every row.
NOBODY = "nobody has this"
#: Sizes of numbers that a plan is made of: most are far from those of any column.
_SIZES = (SMALLEST, sys.float_info.min, 1e-12, 1e-6, 1e-3, 0.3, 1.0, 10.0, 1e3, 1e6, 1e12, 1e150, 1e300, LARGEST)
#: Spreads that divide a number to infinity, to almost that, and to 0.
_SPREADS = (SMALLEST, SMALLEST, sys.float_info.min, 1e-12, 1e-6, 1e300, LARGEST)
_WORDS = (NOBODY, "0", "1", "2", "-1", "3", "0.0", "1e300")


def question(plans: Sequence[Plan]) -> Payload:
    """The question that has a site use these plans, one for each of its columns."""
    return Payload(values={"preparation": [dict(plan) for plan in plans], "remarks": []})


def wide(name: str, limit: float = 1e9) -> Plan:
    """Numbers within +-limit as they are."""
    return {"name": name, "kind": "number", "low": -limit, "high": limit, "center": 0.0, "spread": 1.0}


def word_flag(name: str, word: str = NOBODY) -> Plan:
    """One flag for one word: whether a row's cell is that word, and 0 in every row where no cell is."""
    return {"name": name, "kind": "category", "values": [word], "other": False, "missing": False}


def above(name: str, threshold: float, spread: float = SMALLEST, high: float = LARGEST) -> Plan:
    """0 for values up to the threshold; above it the difference over ``spread``, by default beyond all numbers."""
    return {"name": name, "kind": "number", "low": threshold, "high": high, "center": threshold, "spread": spread}


def below(name: str, threshold: float, spread: float = SMALLEST, low: float = -LARGEST) -> Plan:
    """0 for values from the threshold on; below it minus the difference over ``spread``."""
    return {"name": name, "kind": "number", "low": low, "high": threshold, "center": threshold, "spread": spread}


def logarithmic(name: str, threshold: float, unit: float = SMALLEST) -> Plan:
    """The logarithm of the distance from the threshold in steps of ``unit``."""
    curve = {"curve": "log", "offset": threshold, "unit": unit}
    return {**wide(name, LARGEST), **curve, "spread": SMALLEST}


def edge(name: str, threshold: float, reach: float) -> Plan:
    """Values from the threshold on over as small a spread as the reach above it can be divided by without overflow."""
    return above(name, threshold, 2e-9 * reach, threshold + reach)


def around(name: str, threshold: float) -> list[Plan]:
    """Plans of one column, by which values on the two sides of a threshold may be told apart."""
    reach = max(1.0, abs(threshold))
    return [
        above(name, threshold),
        below(name, threshold),
        edge(name, threshold, reach),
        below(name, threshold, 2e-9 * reach, threshold - reach),
        above(name, threshold, LARGEST),
        logarithmic(name, threshold),
        {**wide(name, 1e12), "curve": "log", "offset": threshold, "unit": 1e-100, "spread": 1e-6},
        {**logarithmic(name, threshold), "center": LARGEST},
        {**wide(name, LARGEST), "center": -LARGEST},
        {**wide(name, LARGEST), "center": threshold, "spread": SMALLEST},
        {"name": name, "kind": "time", "center": threshold, "spread": SMALLEST, "parts": ["years"]},
        {"name": name, "kind": "time", "center": -LARGEST, "spread": SMALLEST, "parts": ["years"]},
    ]


def hostile_question(names: Sequence[str], draws: np.random.Generator) -> Payload:
    """Plans of these columns with one that is hostile, or with the same hostile plan for all.

    The others leave numbers as they are, or make 0 of every cell: then whether rows change follows from one column.
    """
    chosen, way = names[int(draws.integers(len(names)))], int(draws.integers(3))
    plan = _hostile_plan(chosen, draws)
    others = (lambda name: {**plan, "name": name}, wide, word_flag)[way]
    return question([plan if name == chosen else others(name) for name in names])


def _hostile_plan(name: str, draws: np.random.Generator) -> Plan:
    """A plan that no honest coordinator chooses; two of three are within what a site can follow."""
    if draws.integers(3):
        return _followed_plan(name, draws)
    threshold, spread = _number(draws), _SPREADS[draws.integers(len(_SPREADS))]
    kind = int(draws.integers(5))
    if kind < 2:
        return (above, below)[kind](name, threshold, spread)
    if kind == 2:
        return {"name": name, "kind": "time", "center": threshold, "spread": spread, "parts": ["years"]}
    if kind == 3:
        return {**logarithmic(name, threshold, spread), "center": _number(draws)}
    low, high = sorted((threshold, _number(draws)))
    return {**wide(name), "low": low, "high": high, "center": _number(draws), "spread": spread}


def _followed_plan(name: str, draws: np.random.Generator) -> Plan:
    """A plan of ordinary numbers and words: steep at a threshold, of one word, or of an order of words."""
    kind = int(draws.integers(5))
    if kind == 0:
        return word_flag(name, _WORDS[draws.integers(len(_WORDS))])
    if kind == 1:
        return {"name": name, "kind": "ordered", "values": ["0", "1", NOBODY], "missing": False}
    threshold, reach = float(draws.normal()) * 10.0 ** int(draws.integers(-2, 5)), 10.0 ** int(draws.integers(-2, 12))
    if kind == 2:
        return {"name": name, "kind": "time", "center": threshold, "spread": 1e-6, "parts": ["years"]}
    if kind == 3:
        return {**wide(name), "curve": "log", "offset": threshold, "unit": 1 / reach, "spread": 1e-6}
    return edge(name, threshold, reach)


def _number(draws: np.random.Generator) -> float:
    """0, or a number of any size and sign."""
    return float(draws.choice((-1.0, 0.0, 1.0), p=(0.4, 0.2, 0.4))) * _SIZES[draws.integers(len(_SIZES))]
