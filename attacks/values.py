"""Values that nobody expects, and every place in plain values where one of them can be put."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

TRAVERSAL = "../../etc/passwd"
#: In the place of any value of a header or a message: other types, other signs, too large, too long, too deep.
STRANGE: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    7,
    10**9,
    2**63,
    -(2**63) - 1,
    10**400,
    0.5,
    -0.5,
    1e-300,
    1e300,
    -1e300,
    "",
    "x",
    "min",
    TRAVERSAL,
    "\u0000",
    "9" * 5000,
    [],
    {},
    [[]],
    [None],
    ["x"],
    [1, 2],
    [-1],
    [1e300],
    {"x": 1},
    {"dtype": "O", "labels": [1]},
    {"dtype": "<U1000000000", "labels": ["a", "b"]},
    {"dtype": "V8", "labels": []},
)

Place = tuple[Any, ...]


def places(values: Any, above: Place = ()) -> Iterator[Place]:
    """The way to every value inside nested mappings and lists, themselves included."""
    if above:
        yield above
    steps = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for step, inner in steps:
        yield from places(inner, (*above, step))


def changed(values: Any, place: Place, new: Any) -> Any:
    """A copy with something else in one place."""
    whole = copy.deepcopy(values)
    _holder(whole, place)[place[-1]] = copy.deepcopy(new)
    return whole


def mutate(values: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A copy with one place changed, dropped, doubled or exchanged for another."""
    known = list(places(values))
    place = known[rng.integers(len(known))]
    way = rng.integers(10)
    if way == 0:
        whole = copy.deepcopy(values)
        del _holder(whole, place)[place[-1]]
        return whole
    holder = _holder(values, place)
    if way == 1 and isinstance(holder, list):
        return changed(values, place[:-1], [*holder, holder[place[-1]]])
    if way == 1:
        return changed(values, (*place[:-1], "surprise"), 1)
    if way == 2:
        other = known[rng.integers(len(known))]
        return changed(values, place, _holder(values, other)[other[-1]])
    return changed(values, place, STRANGE[rng.integers(len(STRANGE))])


def mutate_arrays(arrays: dict[str, npt.NDArray[Any]], rng: np.random.Generator) -> dict[str, npt.NDArray[Any]]:
    """Arrays of which one has another type, shape or content, is missing, or has changed places with another."""
    names = sorted(arrays)
    if not names:
        return {"surprise": np.zeros(3)}
    name = names[rng.integers(len(names))]
    array, rest = arrays[name], {key: value for key, value in arrays.items() if key != name}
    other = arrays[names[rng.integers(len(names))]]
    ways = (
        lambda: rest,
        lambda: {**arrays, "surprise": np.zeros(3)},
        lambda: {**arrays, name: other},
        lambda: {**rest, name: array.astype(np.float32 if array.dtype == np.float64 else np.float64)},
        lambda: {**rest, name: array.astype(bool)},
        lambda: {**rest, name: array.astype(np.int8)},
        lambda: {**rest, name: array.reshape(-1)},
        lambda: {**rest, name: array[None]},
        lambda: {**rest, name: np.ascontiguousarray(array.T)},
        lambda: {**rest, name: array[:0]},
        lambda: {**rest, name: array[:-1]},
        lambda: {**rest, name: np.concatenate([array, array])},
        lambda: {**rest, name: np.asarray(array.reshape(-1)[0]) if array.size else array},
        lambda: {**rest, name: _with(array, rng, np.nan)},
        lambda: {**rest, name: _with(array, rng, np.inf)},
        lambda: {**rest, name: _with(array, rng, -1)},
        lambda: {**rest, name: _with(array, rng, 2**62)},
        lambda: {**rest, name: _with(array, rng, 1e300)},
        lambda: {**rest, name: np.zeros_like(array)},
    )
    try:
        with np.errstate(all="ignore"):
            return ways[rng.integers(len(ways))]()
    except (IndexError, ValueError):  # a single number has no rows
        return rest


def _with(array: npt.NDArray[Any], rng: np.random.Generator, value: float) -> npt.NDArray[Any]:
    """A copy with one number changed, as far as its type can say it."""
    new = array.copy().reshape(-1)
    if new.size:
        limits = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
        fits = 0 if value != value else value
        new[rng.integers(new.size)] = value if limits is None else int(np.clip(fits, limits.min, limits.max // 2))
    return new.reshape(array.shape)


def _holder(values: Any, place: Place) -> Any:
    for step in place[:-1]:
        values = values[step]
    return values
