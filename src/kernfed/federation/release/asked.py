"""A mechanism in a question that has one for sums over rows, and the terms of what it releases."""

from typing import Any, TypeVar

from kernfed.errors import InputError, Refused
from kernfed.privacy.names import mechanism_name
from kernfed.privacy.release import Mechanism
from kernfed.privacy.values import mechanism_from_values, mechanism_to_values
from kernfed.promise import Terms

Kind = TypeVar("Kind", bound=Mechanism)


def check_kind(privacy: Any, kind: str, shown: str) -> None:
    """Refuse a setting ``privacy`` that is not the mechanism of this name, which is ``shown`` in the error."""
    try:
        name = mechanism_name(privacy)
    except InputError:
        name = ""
    if name != kind:
        raise InputError(f"privacy must be None or kernfed.privacy.{shown}, got {privacy!r:.80}")


def read_mechanism(values: Any, kind: type[Kind]) -> Kind:
    """The mechanism in a question, or a refusal where it is of another kind."""
    try:
        mechanism = mechanism_from_values(values)
        if not isinstance(mechanism, kind):
            raise InputError(f"this learner takes {kind.__name__}, got {values['kind']!r}")
    except (ValueError, RecursionError) as error:
        raise Refused("bad question", f"the privacy asked for cannot be followed: {error}") from None
    return mechanism


def terms_of(mechanism: Mechanism, width: int, task: str) -> Terms:
    """What sites are asked to promise for a release of ``width`` columns, with targets where ``task`` is to regress."""
    asked = mechanism_to_values(mechanism)
    protects = "rows and targets" if task == "regress" else "rows"
    return Terms(asked, None, protects, *mechanism.guarantees(width), request={"mechanism": asked, "labels": None})
