"""What a report is made of, by looking at the file: a model, an audit, or results."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernfed_papers.pages.result_pages import results_report
from kernfed_papers.pages.results import Summary, read_results

from kernfed.errors import FileFormatError, InputError
from kernfed.federation import load
from kernfed.privacy.audit import AuditReport
from kernfed.report.audits import audit_from_json, audit_report, is_audit
from kernfed.report.content import ReportData
from kernfed.report.evidence import Evidence, check_traffic
from kernfed.report.models import is_model, model_report

#: How an officer's page begins, as HTML or as Markdown.
_PAGES = {b"<": "HTML", b"# privacy of": "Markdown"}
_EXPECTED = "expected a model file, the JSON of an audit, or results (a .jsonl file or a folder of them)"


@dataclass(frozen=True)
class Source:
    """What was found: one of ``model``, ``audit`` and ``results``, and the traffic that came with an audit."""

    model: Any = None
    audit: AuditReport | None = None
    results: tuple[Summary, ...] = ()
    traffic: tuple[Mapping[str, Any], ...] = ()

    def report(self, evidence: Evidence | None = None, title: str = "") -> ReportData:
        """The report of it; ``evidence`` is for models."""
        if self.model is not None:
            return model_report(self.model, evidence, title=title)
        traffic = tuple(evidence.traffic) if evidence is not None and evidence.traffic else self.traffic
        found = audit_report(self.audit, traffic) if self.audit is not None else results_report(self.results)
        return replace(found, title=title) if title else found


def read_source(path: Path) -> Source:
    """Read a model, an audit or results; anything else is refused."""
    if path.is_dir() or path.suffix == ".jsonl":
        return Source(results=read_results(path))
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


def _read_model(path: Path) -> Source:
    try:
        model = load(path)
    except FileFormatError as error:
        raise InputError(f"{error}; {_EXPECTED}") from None
    if not is_model(model):
        raise InputError(f"{path} holds a {type(model).__name__}, of which there is no report")
    return Source(model)


def _read_json(path: Path) -> Source:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also what is not UTF-8, or nested without end
        raise InputError(f"{path} is no JSON: {error}; {_EXPECTED}") from None
    holders: list[Any] = []
    if isinstance(values, dict):
        holders = [values, values.get("audit"), values.get("report")]
    for found in holders:
        if is_audit(found):
            try:
                return Source(audit=audit_from_json(found), traffic=check_traffic(values.get("traffic") or ()))
            except ValueError as error:
                raise InputError(f"{path}: {error}; make it anew with kernfed audit --out FILE") from None
    raise InputError(f"{path} is JSON of something else; {_EXPECTED}")


def read_traffic(path: Path) -> tuple[Mapping[str, Any], ...]:
    """A record of traffic as ``Traffic.save`` writes it."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no record of traffic: {error}") from None
    return check_traffic(values)
