"""What all learners have in common: they show the arguments they were made with."""

from inspect import signature
from typing import Any, Self

_LONGEST = 60


class Learner:
    """Shows every argument of ``__init__``, as given or by default."""

    _arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember the arguments; ``__init__`` refuses those that are wrong."""
        made = super().__new__(cls)
        try:
            bound = signature(cls.__init__).bind(made, *args, **kwargs)
        except TypeError:
            return made
        bound.apply_defaults()
        made._arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
        return made

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_short(value)}" for name, value in self._arguments.items())
        return f"{type(self).__name__}({shown})"


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
