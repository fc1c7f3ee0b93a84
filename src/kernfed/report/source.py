"""What a report is made of, by looking at the file: a model, an audit, or results."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from kernfed.base.checks import check_choice
from kernfed.base.model import Model, as_model
from kernfed.base.plain import read_json
from kernfed.errors import FileFormatError, InputError
from kernfed.federation import load
from kernfed.privacy.audit import AuditReport
from kernfed.promise import UNITS, Guarantee
from kernfed.report.content import ReportData
from kernfed.report.evidence import Evidence, check_traffic
from kernfed.report.models import model_report
from kernfed.report.officer import audit_report

#: How an officer's page begins, as HTML or as Markdown.
_PAGES = {b"<": "HTML", b"# privacy of": "Markdown"}
_EXPECTED = "expected a model file, the JSON of an audit, or results (a .jsonl file or a folder of them)"


#: Entry points by which other packages declare readers: a name, and a function from a path to ``ReportData``.
READERS = "kernfed.reports"


@dataclass(frozen=True)
class ReportSource:
    """What a file holds: one of ``model``, ``audit`` and a whole ``page``, and the traffic that came with an audit."""

    model: Model | None = None
    audit: AuditReport | None = None
    page: ReportData | None = None
    traffic: tuple[Mapping[str, Any], ...] = ()

    def report(self, evidence: Evidence | None = None, title: str = "") -> ReportData:
        """The report of it; ``evidence`` is for models."""
        if self.model is not None:
            return model_report(self.model, evidence, title=title)
        traffic = tuple(evidence.traffic) if evidence is not None and evidence.traffic else self.traffic
        page = self.page if self.audit is None else audit_report(self.audit, traffic)
        assert page is not None
        return replace(page, title=title) if title else page


def read_source(path: Path) -> ReportSource:
    """Read a model, an audit or results; anything else is refused."""
    if path.is_dir() or path.suffix == ".jsonl":
        return ReportSource(page=_read_results(path))
    if not path.is_file():
        raise FileNotFoundError(f"nothing at {path}; {_EXPECTED}")
    with path.open("rb") as file:
        start = file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for beginning, kind in _PAGES.items():
        if start.startswith(beginning):
            raise InputError(
                f"{path} is a page to read already, in {kind}: open it as it is. A report is made of what "
                "a page was made of: of an audit give the JSON, which kernfed audit --out writes; "
                f"{_EXPECTED}"
            )
    return _read_json(path) if start[:1] in (b"{", b"[") else _read_model(path)


def _read_results(path: Path) -> ReportData:
    """Results are read by the package that makes them, where it is installed."""
    for reader in entry_points(group=READERS, name="results"):
        page: ReportData = reader.load()(path)
        return page
    raise InputError(
        f"{path} holds results of experiments, which the package kernfed-papers reads, and it is not installed; in a "
        "clone of the repository: pip install --editable papers"
    )


def _read_model(path: Path) -> ReportSource:
    try:
        model = load(path)
    except FileFormatError as error:
        raise InputError(f"{error}; {_EXPECTED}") from None
    try:
        return ReportSource(as_model(model))
    except InputError:
        raise InputError(f"{path} holds a {type(model).__name__}, of which there is no report") from None


def _read_json(path: Path) -> ReportSource:
    try:
        values = read_json(path.read_bytes(), "the text")
    except InputError as error:
        raise InputError(f"{path} is no JSON: {error}; {_EXPECTED}") from None
    holders: list[Any] = []
    if isinstance(values, dict):
        holders = [values, values.get("audit"), values.get("report")]
    for candidate in filter(is_audit, holders):
        try:
            return ReportSource(audit=audit_from_json(candidate), traffic=check_traffic(values.get("traffic") or ()))
        except ValueError as error:
            raise InputError(f"{path}: {error}; make it anew with kernfed audit --out FILE") from None
    raise InputError(f"{path} is JSON of something else; {_EXPECTED}")


def read_traffic(path: Path) -> tuple[Mapping[str, Any], ...]:
    """A record of traffic as ``Traffic.save`` writes it."""
    try:
        values = read_json(path.read_bytes(), "the text")
    except InputError as error:
        raise InputError(f"{path} is no record of traffic: {error}") from None
    return check_traffic(values)


# Audits ------------------------------------------------------------------------------------------------------------

_KEYS = {"subject", "element", "record", "attacks", "bounds"}
#: What audits of earlier versions do not have; each may be None.
_LATER = {"total", "detects", "mu"}
#: What JSON may have for a plain type, and how that is called.
_PLAIN: dict[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a text"),
    bool: ((bool,), "true or false"),
    int: ((int,), "an integer"),
    float: ((int, float), "a finite number"),
}


def is_audit(values: Any) -> bool:
    """Whether plain values look like ``AuditReport.to_json``, perhaps damaged."""
    return isinstance(values, Mapping) and len(_KEYS & set(values)) >= 3


def audit_from_json(values: Mapping[str, Any]) -> AuditReport:
    """An ``AuditReport`` again from its ``to_json``; a field that is missing or of another kind is refused by name."""
    if not is_audit(values):
        raise InputError(f"an audit must have {', '.join(sorted(_KEYS))}, got {', '.join(sorted(map(str, values)))}")
    try:
        audit: AuditReport = _decoded(AuditReport, values, "")
        for place, bound in enumerate(audit.bounds):
            check_choice(bound.unit, f"bounds[{place}].unit", UNITS)
    except ValueError as error:
        raise InputError(f"the audit is damaged: {error}") from None
    return audit


def _decoded(kind: Any, value: Any, where: str) -> Any:
    """A value of JSON as the type ``kind``: a frozen dataclass, a tuple, one of ``_PLAIN``, or None where allowed."""
    options = get_args(kind)
    if get_origin(kind) is UnionType:
        return None if value is None else _decoded(options[0], value, where)
    if get_origin(kind) is tuple:
        return _decoded_items(options, value, where)
    if kind is Guarantee and isinstance(value, Mapping) and value.get("epsilon", 0) is None:
        return replace(_decoded(kind, {**value, "epsilon": 0}, where), epsilon=math.inf)  # JSON has no infinity
    if is_dataclass(kind):
        return _decoded_fields(kind, value, where)
    types, words = _PLAIN[kind]
    fits = isinstance(value, types) and (kind is bool or not isinstance(value, bool))
    if not fits or (kind is float and not math.isfinite(value)):
        raise InputError(f"{where} must be {words}, got {value!r:.80}")
    return value


def _decoded_items(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InputError(f"{where} must be a list, got {value!r:.80}")
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        raise InputError(f"{where} must have {len(kinds)} entries, got {len(value)}")
    return tuple(
        _decoded(kind, entry, f"{where}[{place}]") for place, (kind, entry) in enumerate(zip(kinds, value, strict=True))
    )


def _decoded_fields(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise InputError(f"{where} must be an object, got {value!r:.80}")
    hints = get_type_hints(kind)
    start = f"{where}." if where else ""
    for name in hints:
        if name not in value and name not in _LATER:
            raise InputError(f"{start}{name} is missing")
    parts = {name: _decoded(hint, value.get(name), start + name) for name, hint in hints.items()}
    try:
        return kind(**parts)
    except ValueError as error:
        raise InputError(f"{where}: {error}" if where else str(error)) from None
