"""``kernfed site`` and ``kernfed key``: what is done at a site, by whoever holds its rows."""

import logging
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from kernfed.cli.command import Command
from kernfed.cli.console import Json, emit, note
from kernfed.cli.options import DataFile, Features, Label, Persons, RowIds, Seed
from kernfed.errors import InputError, Refused

if TYPE_CHECKING:
    from kernfed.data import RawTable, Table
    from kernfed.jobs.tables import TableFile
    from kernfed.site.site import Site

app = typer.Typer(
    name="site",
    help="At a site itself: run its service, forget rows, add rows. Nobody can ask for it.",
    no_args_is_help=True,
)
RUN_EXAMPLE = "Example: kernfed site run site.toml"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
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


@app.command("run", cls=Command, epilog=RUN_EXAMPLE)
def run_site(
    settings: Annotated[Path, typer.Argument(help="site.toml: credentials, data, label, store and [policy].")],
    grace: Annotated[
        float, typer.Option(help="Seconds that a question may still take when the service is stopped.", min=0)
    ] = 30.0,
    json: Json = False,
) -> None:
    """Answer questions of the hub's callers, for as long as the process lives.

    Connects outward only, and again whenever the connection is lost. Start it several times to have several processes:
    they share the store. SIGTERM stops it once the question at hand is answered.
    """
    from kernfed.federation.engines.nats_credentials import read_service
    from kernfed.federation.engines.nats_site import SiteService, serve_until_stopped

    site, credentials, hub = read_service(settings)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=_FORMAT)
    # A table that cannot be read is reported now, and the first caller does not wait for it. A raw one has no width
    # before the sites agree on a preparation.
    with site.store.locked(), suppress(Refused):
        _ = site.width
    service = SiteService(site, credentials, url=hub)
    about = {"site": site.name, "process": service.process, "pid": os.getpid(), "hub": service.link.url}
    emit(about, json, "site {site}: process {process} (pid {pid}) serves at {hub}".format(**about))
    sys.stdout.flush()  # whoever started it may wait for this line
    serve_until_stopped(service, note, grace=grace)


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

    from kernfed.jobs.tables import TableFile
    from kernfed.site.protocol.message import Payload

    place = SitePlace(store, name, policy, holdout, seed)
    file = TableFile(data, features, label, ids=ids, persons=persons)
    numbers = _numbers(rows, place.read(file))

    def work(site: "Site") -> int:
        site.as_owner("forget_rows", Payload({"ids": np.array(numbers, dtype=np.int64)}))
        return len(set(numbers))

    _at_site(place.open(file), "forgotten", work, json)


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
    from kernfed.jobs.tables import TableFile, row_numbers
    from kernfed.site.protocol.message import Payload

    place = SitePlace(store, name, policy, holdout, seed)
    file = TableFile(data, features, label, ids=ids, persons=persons)
    table = place.read(file)
    if isinstance(table, RawTable):
        raise InputError(f"rows of a raw table are added to {data} itself, under ids of their own, and not with --new")
    further = replace(file, path=new)
    added = further.read_for(table) if persons is None else further.read(features or list(table.columns))
    arrays: dict[str, Any] = {"X": added.X}
    if added.ids is not None:
        arrays["ids"] = row_numbers(added.ids)
    people = None if added.persons is None else added.persons.tolist()

    def work(site: "Site") -> int:
        assert added.y is not None
        site.as_owner("add_rows", Payload(arrays, {"y": labels_to_values(added.y), "persons": people}))
        return len(added)

    _at_site(place.open(file), "added", work, json)


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
    from kernfed.jobs.tables import TableFile

    def work(site: "Site") -> int:
        site.publish()
        return len(site.rows().ids)

    file = TableFile(data, features, label, ids=ids, persons=persons)
    _at_site(SitePlace(store, name, policy, holdout, seed).open(file), "published", work, json)


# The site ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SitePlace:
    """Where a site keeps what it holds, and how it was set up: its store and name, its policy file, share and seed."""

    store: Path
    name: str
    policy: Path | None = None
    holdout: float = 0.0
    seed: int = 0

    @property
    def folder(self) -> Path:
        """The folder of the site's store: the one named, or inside it the one that a local federation makes."""
        for place in (self.store / f"site-{quote(self.name, safe='')}", self.store):
            if (place / "state.json").is_file():
                return place
        raise InputError(
            f"--store must be the store of site {self.name!r}, {self.store} holds none; name the folder it has kept"
        )

    def read(self, file: "TableFile") -> "Table | RawTable":
        """The site's table: raw where its store has a preparation of raw columns."""
        from kernfed.site.store import SiteStore

        return file.read_raw() if "preparation" in SiteStore(self.folder).read_state() else file.read()

    def open(self, file: "TableFile") -> "Site":
        """The site with its rows and its store, which must be there."""
        from kernfed.jobs.tables import row_numbers
        from kernfed.site.policy import Policy
        from kernfed.site.site import Site
        from kernfed.site.store import SiteStore

        def numbered() -> "Table | RawTable":
            table = self.read(file)
            return table if table.ids is None else replace(table, ids=row_numbers(table.ids))

        rules = Policy() if self.policy is None else Policy.read(self.policy)
        kept = SiteStore(self.folder)
        return Site(self.name, numbered, store=kept, policy=rules, holdout=self.holdout, seed=self.seed)


def _numbers(rows: str, table: "Table | RawTable") -> list[int]:
    """Ids of the rows that are named, as the site has them."""
    import numpy as np

    from kernfed.jobs.tables import row_numbers

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


def _state(site: "Site") -> dict[str, Any]:
    """Generations of models, and names of models and releases, in the site's store."""
    store = site.store
    return {
        "generations": dict(store.read_state()["generations"]),
        "models": set(store.names("folding")),
        "releases": set(store.names("releases")),
    }


def _at_site(site: "Site", verb: str, work: "Callable[[Site], int]", as_json: bool) -> None:
    """Do something with rows of a site, which returns how many, and print what became of models and releases."""
    before = _state(site)
    rows = work(site)
    now = _state(site)
    changed = {handle for handle, number in now["generations"].items() if number != before["generations"].get(handle)}
    fitted, gone = len(changed & now["models"]), len(before["models"] - now["models"])
    deleted = len(before["releases"] - now["releases"])
    receipt = None if verb == "published" else _newest_receipt(site)
    result = {"site": site.name, verb: rows, "models_fitted_again": fitted, "models_deleted": gone}
    emit(
        {**result, "releases_deleted": deleted, "receipt": receipt, "later": _LATER},
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


KEY_EXAMPLE = "Example: kernfed key --store store/a --name a"


def key(
    store: Annotated[Path, typer.Option(help="The site's store, or the folder of stores that has it; made if absent.")],
    name: Annotated[str, typer.Option(help="Name of the site or helper.")],
    drop_runs: Annotated[
        bool,
        typer.Option(
            "--drop-runs",
            help="Delete the keys of runs that are under way: after the store was restored from a backup, always.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Make the long-lived key of a site, once, and print its public half for the site.toml of all others.

    The private half stays in the store, in sum.key, readable by its owner only. A member of a committee whose store was
    restored from a backup may have forgotten what it answered: --drop-runs keeps it from answering the same run twice.
    """
    from kernfed.federation.summing.tasks import ONCE, identity_at
    from kernfed.files import private_folder
    from kernfed.secure.committee.member import drop_one_time_keys

    if not name:
        raise InputError("--name must be the name of the site, got none")
    inside = store / f"site-{quote(name, safe='')}"
    place = inside if inside.is_dir() else store
    private_folder(place)
    public = identity_at(place).public
    dropped = drop_one_time_keys(place / ONCE) if drop_runs else 0
    result = {"site": name, "key": public, "dropped": dropped}
    where = "Add this line to [roster] in every site.toml, and that of a member of the committee to [committee], too."
    after = f"\n\n{dropped} key(s) of runs dropped." if drop_runs else ""
    emit(result, json, f'{toml_key(name)} = "{public}"\n\n{where}{after}')


def toml_key(name: str) -> str:
    """A name as a key in a TOML file: in quotes unless it is a plain word."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else dumps(name)
