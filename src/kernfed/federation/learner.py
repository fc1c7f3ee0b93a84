"""What all learners have in common: they show, copy and change the arguments they were made with.

As scikit-learn's estimators do: ``__init__`` assigns its arguments and nothing else, and ``fit`` checks them, so that
``sklearn.base.clone`` and a search over parameters work.
"""

from inspect import signature
from typing import Any, Self

from kernfed.errors import InputError

_LONGEST = 60


class Learner:
    """Arguments of ``__init__`` as parameters."""

    @classmethod
    def _parameter_names(cls) -> tuple[str, ...]:
        return tuple(name for name in signature(cls.__init__).parameters if name != "self")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Every parameter by name; with ``deep`` also those of parameters that are learners, as "part__name"."""
        params = {name: getattr(self, name) for name in self._parameter_names()}
        if deep:
            for name, value in list(params.items()):
                if isinstance(value, Learner):
                    params |= {f"{name}__{part}": inner for part, inner in value.get_params().items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Change some parameters, by name or "part__name"; unknown ones are refused."""
        known = self._parameter_names()
        for name, value in params.items():
            first, _, rest = name.partition("__")
            if first not in known:
                raise InputError(f"{type(self).__name__} has no parameter {first!r}; there are {', '.join(known)}")
            if rest:
                getattr(self, first).set_params(**{rest: value})
            else:
                setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_short(value)}" for name, value in self.get_params(deep=False).items())
        return f"{type(self).__name__}({shown})"


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
