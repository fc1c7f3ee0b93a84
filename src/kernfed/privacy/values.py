"""Mechanisms as plain values, as messages and files hold them, and back; what comes in is taken as hostile."""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from kernfed.base.checks import check_count
from kernfed.errors import InputError
from kernfed.kernels.features import FourierFeatures
from kernfed.privacy.labels import RandomizedLabels
from kernfed.privacy.limits import MOST_NUMBERS
from kernfed.privacy.names import MECHANISMS, mechanism_class, mechanism_name
from kernfed.promise import Guarantee


def mechanism_to_values(mechanism: Any) -> dict[str, Any]:
    """Name and parameters of a mechanism, as messages and files hold them."""
    name = mechanism_name(mechanism)
    return {"kind": name, **{part.name: _plain(getattr(mechanism, part.name), part.type) for part in fields(mechanism)}}


def mechanism_from_values(values: Any) -> Any:
    """The mechanism of ``mechanism_to_values``; anything else raises ``InputError`` and says what is wrong."""
    if not isinstance(values, Mapping) or str(values.get("kind")) not in MECHANISMS:
        raise InputError(f"a mechanism must be one of {', '.join(MECHANISMS)} with its parameters, got {values!r:.200}")
    kind: Any = mechanism_class(values["kind"])
    known = {part.name for part in fields(kind)}
    if set(values) != known | {"kind"}:
        odd = sorted(set(values) ^ (known | {"kind"}))
        raise InputError(f"{values['kind']} takes {', '.join(sorted(known))}; {odd[0]!r:.40} is missing or unknown")
    try:
        return kind(**{name: _parsed(name, values[name]) for name in known})
    except (TypeError, OverflowError, AttributeError) as error:
        raise InputError(f"{values['kind']} cannot have these parameters: {error}") from None


def describe_mechanism(values: Mapping[str, Any]) -> str:
    """The values of a mechanism on one line; a matrix by its size.

    >>> from kernfed.privacy import RecordGaussian
    >>> describe_mechanism(mechanism_to_values(RecordGaussian(3.0, 1e-5, radius=1.0)))
    'record-gaussian(epsilon=3.0, delta=1e-05, radius=1.0)'
    """
    shown = {
        name: "public matrix" if isinstance(value, list) and value and isinstance(value[0], list) else value
        for name, value in values.items()
        if name != "kind" and value is not None and (name, value) != ("seed", 0)
    }
    return f"{values['kind']}({', '.join(f'{name}={value}' for name, value in shown.items())})"


#: How a record's neighbour is spoken of where labels are protected too, and where classes with their counts leave.
_ANY, _OF_CLASS = "replaced by any other", "replaced by any other of its public class"


def of_public_class(guarantees: tuple[Guarantee, Guarantee]) -> tuple[Guarantee, Guarantee]:
    """Guarantees of rows whose labels are public: counts of classes leave exactly, so neighbours are of one class.

    >>> from kernfed.privacy import RecordGaussian
    >>> of_public_class(RecordGaussian(1.0, 1e-5, 1.0).guarantees(3))[1].adjacency
    'one row of 3 elements replaced by any other of its public class, rows clipped to L2 norm 1'
    """
    element, record = guarantees
    words = record.adjacency
    if _OF_CLASS not in words:
        words = words.replace(" and its target ", " ").replace(_ANY, _OF_CLASS)
    return element, replace(record, adjacency=words)


def with_labels(
    guarantees: tuple[Guarantee, Guarantee], labels: RandomizedLabels | None
) -> tuple[Guarantee, Guarantee]:
    """Guarantees of rows whose labels are randomised too: the epsilons of row and label add up.

    Without randomised labels, classes and their counts are public.
    """
    if labels is None:
        return of_public_class(guarantees)
    element, record = guarantees
    words = "one row and its label replaced by any other"
    return (
        replace(element, epsilon=max(element.epsilon, labels.epsilon)),
        replace(record, epsilon=record.epsilon + labels.epsilon, adjacency=words),
    )


def _plain(value: Any, kind: Any = None) -> Any:
    """A parameter as JSON holds it. 3 and 3.0 are one epsilon, so they must not be two releases."""
    if isinstance(value, FourierFeatures):
        return {key: _plain(part) for key, part in asdict(value).items()}
    if isinstance(value, np.ndarray | list):
        return np.asarray(value, dtype=np.float64).tolist()
    if isinstance(value, tuple):
        return list(value)
    if value is not None and kind in (float, float | None):
        return float(value)
    return value.item() if isinstance(value, np.generic) else value


def _parsed(name: str, value: Any) -> Any:
    """A parameter as its mechanism takes it: matrices as arrays, lists as tuples."""
    if name == "features":
        if not isinstance(value, Mapping):
            raise InputError(f"features must be those of FourierFeatures, got {value!r:.80}")
        check_count(value.get("n_components"), "n_components", at_most=MOST_NUMBERS)
        check_count(value.get("width"), "width", at_most=MOST_NUMBERS)
        return FourierFeatures(**value)
    if name in ("projection", "basis") and isinstance(value, list):
        return np.array(value, dtype=np.float64)
    kinds = bool | int | float | str
    if name == "classes" and not (isinstance(value, list) and all(isinstance(label, kinds) for label in value)):
        raise InputError(f"classes must be a list of labels, got {value!r:.80}")
    return tuple(value) if isinstance(value, list) else value
