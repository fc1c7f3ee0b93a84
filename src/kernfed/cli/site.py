"""``kernfed site``: what is done at a site itself, by whoever holds its rows: forgetting some, adding others."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.cli import site_run
from kernfed.cli.console import Json, emit
from kernfed.cli.running import Command
from kernfed.cli.tables import DataFile, Features, Label, Persons, RowIds, Seed, read_queries, row_numbers
from kernfed.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernfed.data import RawTable, Table
    from kernfed.site.site import Site

app = typer.Typer(
    name="site",
    help="At a site itself: run its service, forget rows, add rows. Nobody can ask for it.",
    no_args_is_help=True,
)
app.command("run", cls=Command, epilog=site_run.EXAMPLE)(site_run.run)
FORGET_EXAMPLE = "Example: kernfed site forget --store store/a --name a --data rows.parquet --label y --rows 3,17"
PUBLISH_EXAMPLE = (
    "Example: kernfed site publish --store store/a --name a --data rows.parquet --label y --policy site.toml"
)
ADD_EXAMPLE = "Example: kernfed site add --store store/a --name a --data rows.parquet --label y --new more.parquet"

Store = Annotated[Path, typer.Option(help="The site's store, or the folder of stores that has it.")]
Name = Annotated[str, typer.Option(help="Name of the site.")]
HoldOut = Annotated[float, typer.Option(help="Share of rows that the site keeps aside, as it was set up.")]
PolicyFile = Annotated[Path | None, typer.Option("--policy", help="The site's policy, a site.toml.")]
#: What changes for everybody else, and when.
_LATER = (
    "Where the policy requires privacy, the numbers of rows that others see stay as they are until `kernfed site "
    "publish`; elsewhere they change at once."
)


@app.command("forget", cls=Command, epilog=FORGET_EXAMPLE)
def forget(
    store: Store,
    name: Name,
    data: DataFile,
    label: Label,
    rows: Annotated[str, typer.Option(help="Rows to forget, by id, with commas; without --id by number from 0.")],
    features: Features = None,
    ids: RowIds = None,
    persons: Persons = None,
    policy: PolicyFile = None,
    holdout: HoldOut = 0.0,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Never use these rows again, and delete whatever the store holds of them.

    Models that held them are fitted again without them. What was released of them stays released, and stays paid.
    """
    import numpy as np

    from kernfed.site.protocol.message import Payload

    read = table_reader(store, name, data, features=features, label=label, ids=ids, persons=persons)
    numbers = _numbers(rows, read())
    site = open_site(store, name, read, policy, holdout=holdout, seed=seed)
    before = _state(site)
    site.as_owner("forget_rows", Payload({"ids": np.array(numbers, dtype=np.int64)}))
    _tell("forgotten", len(set(numbers)), site, before, json)


@app.command("add", cls=Command, epilog=ADD_EXAMPLE)
def add(
    store: Store,
    name: Name,
    data: DataFile,
    label: Label,
    new: Annotated[Path, typer.Option(help="Table of the rows to add, with the same columns.")],
    features: Features = None,
    ids: RowIds = None,
    persons: Persons = None,
    policy: PolicyFile = None,
    holdout: HoldOut = 0.0,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Keep further rows in the site's store; they are used from the next question on.

    Ids are those of the column --id, or go on from the largest one. With --person a person who comes again under
    another id goes on paying from the same budget.
    """
    from kernfed.data import RawTable
    from kernfed.files import labels_to_values
    from kernfed.site.protocol.message import Payload

    read = table_reader(store, name, data, features=features, label=label, ids=ids, persons=persons)
    table = read()
    if isinstance(table, RawTable):
        raise InputError(f"rows of a raw table are added to {data} itself, under ids of their own, and not with --new")
    added = _new_rows(new, table, features, label, ids, persons)
    assert added.y is not None
    site = open_site(store, name, read, policy, holdout=holdout, seed=seed)
    before = _state(site)
    arrays: dict[str, Any] = {"X": added.X}
    if added.ids is not None:
        arrays["ids"] = row_numbers(added.ids)
    people = None if added.persons is None else added.persons.tolist()
    site.as_owner("add_rows", Payload(arrays, {"y": labels_to_values(added.y), "persons": people}))
    _tell("added", len(added), site, before, json)


@app.command("publish", cls=Command, epilog=PUBLISH_EXAMPLE)
def publish(
    store: Store,
    name: Name,
    data: DataFile,
    label: Label,
    features: Features = None,
    ids: RowIds = None,
    persons: Persons = None,
    policy: PolicyFile = None,
    holdout: HoldOut = 0.0,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Let others see the rows as they are now; what is next released of them under privacy is drawn and charged anew.

    Until then releases are answered as they were, also where cells were changed in place. Where the policy requires
    privacy a forgotten row leaves a blank one in its place, and added rows wait: a number of rows, or of charges, that
    changes at once would tell when somebody left, came or was corrected.
    """
    read = table_reader(store, name, data, features=features, label=label, ids=ids, persons=persons)
    site = open_site(store, name, read, policy, holdout=holdout, seed=seed)
    before = _state(site)
    site.publish()
    _tell("published", len(site.rows().ids), site, before, json)


# The site ---------------------------------------------------------------------------------------------------------


def table_reader(
    store: Path,
    name: str,
    data: Path,
    *,
    features: str | None,
    label: str,
    ids: str | None,
    persons: str | None,
) -> "Callable[[], Table | RawTable]":
    """What reads the site's table: raw where its store has a preparation of raw columns."""
    from kernfed.base.plain import read_json_file
    from kernfed.data import read_raw_table, read_table

    state = read_json_file(store_place(store, name) / "state.json")
    read = read_raw_table if "preparation" in state else read_table
    return partial(read, data, features=features, label=label, ids=ids, persons=persons)


def open_site(
    store: Path, name: str, read: "Callable[[], Table | RawTable]", policy: Path | None, *, holdout: float, seed: int
) -> "Site":
    """The site with its rows and its store, which must be there."""
    from dataclasses import replace

    from kernfed.site.policy import Policy
    from kernfed.site.site import Site
    from kernfed.site.store import SiteStore

    rules = Policy() if policy is None else Policy.read(policy)

    def numbered() -> "Table | RawTable":
        table = read()
        return table if table.ids is None else replace(table, ids=row_numbers(table.ids))

    return Site(name, numbered, store=SiteStore(store_place(store, name)), policy=rules, holdout=holdout, seed=seed)


def store_place(store: Path, name: str) -> Path:
    """The folder of the site's store: the one named, or inside it the one that a local federation makes."""
    from urllib.parse import quote

    for place in (store / f"site-{quote(name, safe='')}", store):
        if (place / "state.json").is_file():
            return place
    raise InputError(f"--store must be the store of site {name!r}, {store} holds none; name the folder it has kept")


def _numbers(rows: str, table: "Table | RawTable") -> list[int]:
    """Ids of the rows that are named, as the site has them."""
    import numpy as np

    words = [word.strip() for word in rows.split(",") if word.strip()]
    if not words:
        raise InputError("--rows must name at least one row, got none")
    if table.ids is not None and table.ids.dtype.kind not in "iu":
        named: list[int] = row_numbers(np.array(words)).tolist()
        return named
    try:
        return [int(word) for word in words]
    except ValueError:
        raise InputError(f"--rows must be ids with commas, such as 3,17, got {rows!r:.60}") from None


def _new_rows(
    path: Path, table: "Table", features: str | None, label: str, ids: str | None, persons: str | None
) -> "Table":
    from kernfed.data import read_table

    if persons is None:
        return read_queries(table, path, features, label=label, ids=ids)
    return read_table(path, features=features or list(table.columns), label=label, ids=ids, persons=persons)


def _state(site: "Site") -> dict[str, Any]:
    """Generations of models, and names of models and releases, in the site's store."""
    store = site.store
    return {
        "generations": dict(store.read_state()["generations"]),
        "models": set(store.names("folding")),
        "releases": set(store.names("releases")),
    }


def _tell(verb: str, rows: int, site: "Site", before: dict[str, Any], as_json: bool) -> None:
    now = _state(site)
    changed = {handle for handle, number in now["generations"].items() if number != before["generations"].get(handle)}
    fitted, gone = len(changed & now["models"]), len(before["models"] - now["models"])
    deleted = len(before["releases"] - now["releases"])
    told = {"site": site.name, verb: rows, "models_fitted_again": fitted, "models_deleted": gone}
    receipt = None if verb == "published" else _newest_receipt(site)
    emit(
        {**told, "releases_deleted": deleted, "receipt": receipt, "later": _LATER},
        as_json,
        f"{rows:,} row{'' if rows == 1 else 's'} {verb} at site {site.name!r}",
        f"  models fitted again, whose earlier state is void:            {fitted:,}",
        f"  models deleted, which the next training makes again:         {gone:,}",
        f"  releases of all rows together deleted, which stay paid for:  {deleted:,}",
        *([] if receipt is None else [f"  receipt, which `kernfed verify` checks: {receipt}"]),
        _LATER,
    )


def _newest_receipt(site: "Site") -> str | None:
    """Number and hash of the newest receipt: whoever notes them elsewhere finds whatever is changed up to it."""
    from kernfed.base.chain import read_head
    from kernfed.site.receipts import FOLDER

    head = read_head(site.store.path / FOLDER)
    return None if head is None else f"{head.number}:{head.chain}"
