"""One declaration of a field, from which checks, wire, files, TOML, options and help follow.

A frozen dataclass says of each field what it may be, once::

    @dataclass(frozen=True)
    class Machines:
        batch_size: int = declared(1000, at_least=1, help="Rows per machine, about.")
        partition: str = declared("kmeans", choices=("kmeans", "order"), help="How a class is divided.")
        scale: Scaling | None = declared(None, omit=True)

        def __post_init__(self) -> None:
            check_fields(self)

``check_fields`` refuses values that a caller gives, ``from_values`` those of a message or a file, which may be hostile,
both with the same sentence; ``to_values`` is what messages and files hold; ``fields_of(Machines)`` are the ``Field``s,
which know what an option of the command line and a setting of a job need.

The type is that of the annotation: bool, int, float, str, tuples of these, mappings from words to these, dataclasses,
and alternatives of them. Bounds and choices hold for every entry of a tuple or a mapping, and ``choices`` of a field
that may also be a number are the words it may be instead.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from kernfed.base.checks import check_choice, check_count, check_number
from kernfed.errors import InputError

#: Whole numbers are those of 64 bits: others fit no array.
_LARGEST = 2**63 - 1
Declared = TypeVar("Declared")
_known: dict[type, dict[str, "Field"]] = {}


@dataclass(frozen=True)
class Field:
    """What a field, an option or a setting may be.

    usual : what it is unless it is given, for whoever reads the help. annotation : its type, by default the type of
    ``usual``. choices : the words it may be, where that is a short list. above, at_least, below, at_most : of numbers.
    longest : characters of a text, or entries of a tuple. unit : of a number, for the help. omit : whether plain values
    leave it out where it is the default. option : its name on the command line and in jobs, where another one suits.
    parameter : the learner's name for an option, by default the same with underscores. read : (value, name in messages)
    -> what the learner takes of an option, by default the value. dump, load : to plain values and back, where the type
    does not say how.
    """

    name: str
    help: str = ""
    usual: Any = ""
    choices: tuple[str, ...] = ()
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    longest: int | None = None
    unit: str = ""
    omit: bool = False
    option: str = ""
    parameter: str = ""
    read: Callable[[Any, str], Any] | None = None
    dump: Callable[[Any], Any] | None = None
    load: Callable[[Any], Any] | None = None
    annotation: Any = None
    required: bool = False

    @property
    def hint(self) -> Any:
        """Its annotation; of one that was declared by itself the type of what is usual."""
        return type(self.usual) if self.annotation is None else self.annotation

    @property
    def absent(self) -> Any:
        """What stands for "not given" among the settings of a job: empty text, 0 or 0.0."""
        return type(self.usual)()

    @property
    def argument(self) -> str:
        """Name of the learner's parameter that the option sets."""
        return self.parameter or self.name.replace("-", "_")

    def check(self, value: Any, name: str = "") -> Any:
        """The value, which is refused unless its type, its size and its words are as declared."""
        return _checked(self, self.hint, value, name or self.name)

    def given(self, value: Any, name: str = "") -> Any:
        """What a learner takes of an option or setting with this value; ``name`` is that in messages."""
        shown = name or self.name
        if self.choices:
            check_choice(value, shown, self.choices)
        if self.at_least is not None and not value >= self.at_least:
            raise InputError(f"{shown} must be >= {self.at_least:g}, got {value!r}")
        return value if self.read is None else self.read(value, shown)


def declared(default: Any = MISSING, **about: Any) -> Any:
    """A field of a frozen dataclass; ``about`` are attributes of ``Field``."""
    return field(default=default, metadata={"field": Field("", **about)})


def fields_of(kind: type) -> Mapping[str, Field]:
    """All fields of a dataclass by name, with types and defaults; those that say nothing have their type only."""
    if kind not in _known:
        _known[kind] = _read_fields(kind)
    return _known[kind]


def _read_fields(kind: Any) -> dict[str, Field]:
    hints = get_type_hints(kind)
    known: dict[str, Field] = {}
    for entry in fields(kind):
        usual, required = entry.default, False
        if usual is MISSING:
            required = entry.default_factory is MISSING
            usual = "" if entry.default_factory is MISSING else entry.default_factory()
        one = entry.metadata.get("field", Field(""))
        known[entry.name] = replace(one, name=entry.name, usual=usual, annotation=hints[entry.name], required=required)
    return known


def options_of(kind: type) -> tuple[Field, ...]:
    """The fields of a dataclass that have a help, as options of the command line and settings of jobs."""
    return tuple(
        replace(one, name=one.option or name.replace("_", "-"), parameter=name)
        for name, one in fields_of(kind).items()
        if one.help
    )


def check_fields(instance: Any, of: str = "") -> None:
    """Refuse an instance with a field that is not as declared; messages name it "<field><of>"."""
    for name, one in fields_of(type(instance)).items():
        one.check(getattr(instance, name), f"{name}{of}")


# Plain values of messages and files -------------------------------------------------------------------------------


def to_values(instance: Any) -> dict[str, Any]:
    """Plain values of all fields by name, for JSON; ``from_values`` makes the same again."""
    values: dict[str, Any] = {}
    for name, one in fields_of(type(instance)).items():
        value = getattr(instance, name)
        if not (one.omit and value == one.usual):
            values[name] = _plain(value) if one.dump is None else one.dump(value)
    return values


def from_values(kind: type[Declared], values: Any, what: str = "", of: str = "") -> Declared:
    """A dataclass from plain values, each as it is declared; everything else is refused in one sentence.

    what : what messages call all of it, by default the name of the dataclass. of : what follows the name of a field.
    """
    called = what or kind.__name__
    if not isinstance(values, Mapping):
        raise InputError(f"{called} must be an object, got {type(values).__name__}")
    known = fields_of(kind)
    if strange := sorted(set(values) - set(known), key=str):
        where = f" in {what}" if what else ""
        raise InputError(f"unknown setting {strange[0]!r:.40}{where}; known are {', '.join(sorted(known))}")
    if lacking := [name for name, one in known.items() if one.required and name not in values]:
        raise InputError(f"{called} must have {lacking[0]!r}")
    made: dict[str, Any] = {}
    for name, value in values.items():
        one = known[name]
        typed = _typed(one.hint, value) if one.load is None else one.load(value)
        one.check(typed, f"{name}{of}")
        made[name] = typed
    return kind(**made)


def _plain(value: Any) -> Any:
    """Tuples as lists, mappings as dictionaries, dataclasses as their plain values."""
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if is_dataclass(value):
        return value.to_values() if hasattr(value, "to_values") else to_values(value)
    return value.item() if isinstance(value, np.generic) else value


def _typed(hint: Any, value: Any) -> Any:
    """Lists as tuples and objects as dataclasses, where the annotation has them; the rest as it is."""
    for one in _alternatives(hint):
        if get_origin(one) is tuple and isinstance(value, list):
            inner = get_args(one)
            return tuple(_typed(inner[0], entry) for entry in value)
        if is_dataclass(one) and isinstance(one, type) and isinstance(value, Mapping):
            return one.from_values(value) if hasattr(one, "from_values") else from_values(one, value)
    return value


# Checks of one value ----------------------------------------------------------------------------------------------


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _checked(one: Field, hint: Any, value: Any, name: str) -> Any:
    """The value, of one of the types that the annotation lists."""
    kinds = _alternatives(hint)
    if len(kinds) == 1:
        return _of_kind(one, hint, value, name)
    if value is None and type(None) in kinds:
        return None
    fitting = [kind for kind in kinds if _looks_like(value, kind)]
    if not fitting:
        kinds_text = " or ".join(dict.fromkeys(_in_words(one, kind) for kind in kinds))
        raise InputError(f"{name} must be {kinds_text}, got {value!r:.60}")
    return _of_kind(one, fitting[0], value, name)


def _looks_like(value: Any, kind: Any) -> bool:
    """Whether a value is meant to be of this kind, so that its own sentence says what is wrong with it."""
    if kind in (int, float):
        return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple)
    if get_origin(kind) is not None:
        return isinstance(value, Mapping)
    return isinstance(value, kind)


def _in_words(one: Field, kind: Any) -> str:
    """What a value of this kind is called in messages."""
    if kind is str and one.choices:
        return ", ".join(map(repr, one.choices))
    if get_origin(kind) is tuple:
        entries = {str: "words", float: "numbers", int: "whole numbers"}
        return f"a list of {entries.get(get_args(kind)[0], 'entries')}"
    plain = {int: "an integer", float: "a number", bool: "true or false", str: "text", type(None): "none"}
    return plain.get(kind) or f"{getattr(kind, '__name__', 'an object')}"


def _of_kind(one: Field, kind: Any, value: Any, name: str) -> Any:
    """The value, of exactly this kind and within the bounds."""
    if kind is Any:
        return value
    if kind is bool:
        if not isinstance(value, (bool, np.bool_)):
            raise InputError(f"{name} must be true or false, got {value!r:.60}")
        return bool(value)
    if kind is int:
        return check_count(value, name, at_least=_whole(one.at_least, -_LARGEST), at_most=_whole(one.at_most, _LARGEST))
    if kind is float:
        return check_number(value, name, above=one.above, at_least=one.at_least, below=one.below, at_most=one.at_most)
    if kind is str:
        return _text(one, value, name)
    if get_origin(kind) is tuple:
        return _entries(one, kind, value, name)
    if get_origin(kind) is not None:
        return _by_name(one, kind, value, name)
    if not isinstance(value, kind):
        raise InputError(f"{name} must be {_in_words(one, kind)}, got {value!r:.60}")
    return value


def _whole(bound: float | None, usual: int) -> int:
    return usual if bound is None else int(bound)


def _text(one: Field, value: Any, name: str) -> str:
    if one.choices:
        return check_choice(value, name, one.choices)
    return check_text(value, name, one.longest)


def check_text(value: Any, name: str, longest: int | None = None) -> str:
    """Text that a file can hold, of at most ``longest`` characters."""
    if not isinstance(value, str):
        raise InputError(f"{name} must be text, got {value!r:.60}")
    if longest is not None and len(value) > longest:
        raise InputError(f"{name} must have at most {longest:,} characters, got {len(value):,}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name} must be text that can be written as UTF-8, got {value!r:.60}") from None
    return value


def _entries(one: Field, kind: Any, value: Any, name: str) -> tuple[Any, ...]:
    """A tuple, each entry of which is as declared."""
    inner = get_args(kind)
    several = len(inner) == 2 and inner[1] is Ellipsis
    if not isinstance(value, tuple) or (inner[0] is str and not all(isinstance(part, str) for part in value)):
        raise InputError(f"{name} must be {_in_words(one, kind)} (a tuple in Python), got {value!r:.60}")
    if not several and len(value) != len(inner):
        raise InputError(f"{name} must have {len(inner)} entries, got {len(value)}")
    if several and one.longest is not None and len(value) > one.longest:
        raise InputError(f"{name} must have at most {one.longest:,} entries, got {len(value):,}")
    kinds = inner[:1] * len(value) if several else inner
    entry = replace(one, longest=None)
    return tuple(_checked(entry, of, part, name) for of, part in zip(kinds, value, strict=True))


def _by_name(one: Field, kind: Any, value: Any, name: str) -> Mapping[str, Any]:
    """A mapping from words, each value of which is as declared."""
    if not isinstance(value, Mapping) or not all(isinstance(word, str) for word in value):
        raise InputError(f"{name} must be an object with names, got {value!r:.60}")
    for word, entry in value.items():
        _checked(one, get_args(kind)[1], entry, f"{name}[{word!r:.40}]")
    return value
