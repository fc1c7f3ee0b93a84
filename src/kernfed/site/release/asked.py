"""A mechanism in a question that has one for sums over rows, and the terms of what it releases."""

from typing import Any, TypeVar

from kernfed.errors import InputError, Refused
from kernfed.privacy.names import mechanism_name
from kernfed.privacy.release import Mechanism
from kernfed.privacy.values import mechanism_from_values, mechanism_to_values, of_public_class
from kernfed.promise import Terms
from kernfed.site.site import Site

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


def check_task(site: Site, task: str) -> None:
    """Refuse, where privacy is required, to take as classes what the site declares to be targets.

    Whether targets are among given classes would tell of them, so this is decided before any of them is looked at.
    """
    if task == "classify":
        site.check_labels_are_classes()


def terms_of(mechanism: Mechanism, width: int, task: str) -> Terms:
    """What sites are asked to promise for a release of ``width`` columns, with targets where ``task`` is to regress.

    To classify, classes and their numbers of rows are public: what is hidden is which row of its class one is.
    """
    asked, promised = mechanism_to_values(mechanism), mechanism.guarantees(width)
    protects = "rows and targets" if task == "regress" else "rows"
    if task == "classify":
        promised = of_public_class(promised)
    return Terms(asked, None, protects, *promised, request={"mechanism": asked, "labels": None})
