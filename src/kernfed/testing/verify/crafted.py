"""Crafted questions: honest ones with something changed, gently so that they are still followed, or wildly."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.federation.folding.machines import FOLDER as FOLDING
from kernfed.federation.summing.party import TERMS
from kernfed.site.protocol.message import Payload, digest
from kernfed.testing.verify.preparations import hostile_question
from kernfed.testing.verify.sums import other_bounds, renewed

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
        return hostile_question(_columns(values), draws)
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


def _columns(values: Values) -> list[str]:
    """Names of the columns that a preparation is of."""
    return [str(plan["name"]) for plan in values["preparation"]]


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
