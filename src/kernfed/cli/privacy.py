"""What a release promises, for those who read JSON."""

from typing import Any


def statement(terms: Any) -> dict[str, Any]:
    """What a release promises, as one JSON object."""
    return {
        "mechanism": terms.kind,
        "element": (terms.element.epsilon, terms.element.delta),
        "record": (terms.record.epsilon, terms.record.delta),
        "promises": terms.lines(),
        "spent": dict(terms.spent),
    }
