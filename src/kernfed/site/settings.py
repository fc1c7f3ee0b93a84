"""A site from plain settings: those of a Flower node, or of the file that a site's own service is started with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernfed.base.checks import check_count, check_number
from kernfed.data import RawTable, Table, read_raw_table, read_table
from kernfed.errors import InputError, PolicyError
from kernfed.site.policy import Policy
from kernfed.site.site import Site
from kernfed.site.store import SiteStore

#: Settings that a site needs, and those that may be left out.
NEEDED = ("data", "label", "store")
OPTIONAL = ("raw", "features", "ids", "persons", "policy", "holdout", "seed", "scaling", "encoder")


def site_from_settings(name: str, settings: Mapping[str, Any], where: str, *, folder: Path | None = None) -> Site:
    """Site ``name`` as settings describe it; ``where`` they stand is told with what is wrong in them.

    data (a table), label, store (a folder) are needed; features, ids, persons, policy (a file, or the settings of one;
    without it only schema and scores leave), raw (true for columns of all kinds, which sites prepare together),
    holdout, seed, scaling and encoder may be given. Paths are absolute, or begin at ``folder`` where there is one.
    """
    known = {*NEEDED, *OPTIONAL}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise InputError(f"unknown setting {unknown[0]!r} in {where}; known are {sorted(known)}")
    data, store = _path(settings, "data", where, folder), _path(settings, "store", where, folder)
    label, features, ids, persons = (_text(settings, word, where) for word in ("label", "features", "ids", "persons"))
    if label is None:
        raise InputError(f'{where} must name the column of labels: label="y"')
    policy = _policy(settings, where, folder)

    raw = settings.get("raw", False)
    if not isinstance(raw, bool):
        raise InputError(f"raw in {where} must be true or false, got {raw!r}")

    def read() -> Table | RawTable:
        return (read_raw_table if raw else read_table)(data, features=features, label=label, ids=ids, persons=persons)

    return Site(
        name,
        read,
        store=SiteStore(store),
        policy=policy,
        scaling=_text(settings, "scaling", where) or "",
        encoder=_text(settings, "encoder", where) or "",
        holdout=check_number(settings.get("holdout", 0.0), f"holdout in {where}", at_least=0, below=1),
        seed=check_count(settings.get("seed", 0), f"seed in {where}", at_least=0),
    )


def _policy(settings: Mapping[str, Any], where: str, folder: Path | None) -> Policy:
    if "policy" not in settings:
        return Policy()
    if isinstance(settings["policy"], dict):
        try:
            return Policy.from_settings(settings["policy"])
        except ValueError as error:
            raise PolicyError(f"policy in {where}: {error}") from None
    return Policy.read(_path(settings, "policy", where, folder))


def _text(settings: Mapping[str, Any], word: str, where: str) -> str | None:
    value = settings.get(word)
    if value is not None and (not isinstance(value, str) or not value):
        raise InputError(f"{word} in {where} must be text, got {value!r}")
    return value


def _path(settings: Mapping[str, Any], word: str, where: str, folder: Path | None) -> Path:
    value = _text(settings, word, where)
    if value is None or (folder is None and not Path(value).is_absolute()):
        kind = "an absolute path" if folder is None else "a path"
        raise InputError(f"{word} in {where} must be {kind}, got {value!r}")
    return Path(value) if folder is None else folder / value
