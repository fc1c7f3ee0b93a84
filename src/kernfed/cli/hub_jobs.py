"""What commands do with the sites of a hub: the options that name it, and training and testing there."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.cli.console import TextTable, emit, format_bytes, format_seconds, progress
from kernfed.cli.privacy import statement
from kernfed.cli.raw import prepare_sites
from kernfed.errors import InputError

if TYPE_CHECKING:
    from kernfed.cli.learning import Learning
    from kernfed.federation import Federation

CredentialsFile = Annotated[
    Path | None,
    typer.Option("--credentials", help="File of `kernfed hub add-caller`: the sites of that hub take part."),
]
HubAddress = Annotated[
    str, typer.Option("--hub", help="tls://HOST:PORT of the hub, where it is another than in the credentials.")
]
MinReplies = Annotated[int | None, typer.Option(help="Of a hub's sites, how many must answer; default all.", min=1)]
#: Seconds that a site is waited for of which no process is connected: it may be starting again. For answers, and for
#: longer work.
_SHORT, _LONG = 2.0, 30.0


def hub_federation(credentials: Path, hub: str, seed: int = 0, *, patience: float = _LONG) -> "Federation":
    """The sites of a hub."""
    from kernfed.federation import Federation

    return Federation.nats(hub, credentials=credentials, seed=seed, patience=patience)


def refuse_with_hub(given: Mapping[str, Any]) -> None:
    """Refuse options ``{name: value}`` that are about rows here, where the rows are at the sites."""
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} is for rows on this machine; with --credentials the sites have their own")


def connected(model: Any, federation: "Federation") -> Any:
    """A model that the sites answer for, or the model as it is where it is whole."""
    return model.connect(federation) if getattr(model, "hold", "machines") == "sites" else model


def train_at_hub(
    learning: "Learning",
    out: Path,
    credentials: Path,
    hub: str,
    asked: Mapping[str, int | None],
    *,
    preparation: str,
    texts: dict[str, str],
    traffic: Path | None,
    as_json: bool,
) -> None:
    """Train with the sites of a hub and write the model; machines stay at the sites unless --hold machines.

    ``asked`` has the seed, and ``min_replies``.
    """
    from kernfed.site.fields import Given, make_learner

    learner = make_learner(learning.learner, Given(learning.values, "--"))
    started = time.perf_counter()
    with hub_federation(credentials, hub, asked["seed"] or 0) as federation, progress("training"):
        try:
            prepare_sites(federation, preparation, asked["min_replies"], texts)
            model = learner.fit(federation, min_replies=asked["min_replies"])
        finally:  # what left the sites must be known even where training failed
            if traffic is not None:
                federation.traffic.save(traffic)
        sent, sites = federation.traffic, federation.sites
    seconds = time.perf_counter() - started
    model.save(out)
    missing = {site: str(reason) for site, reason in dict(model.missing_).items()}
    result = {
        "out": out,
        "seconds": seconds,
        "learner": learning.learner,
        "sites": sites,
        "missing": missing,
        "classes": model.classes_,
        "bytes_up": sent.bytes_up,
        "bytes_down": sent.bytes_down,
        "traffic": traffic,
        "privacy": None if model.privacy is None else statement(model.privacy),
    }
    here = [site for site in sites if site not in missing]
    emit(
        result,
        as_json,
        TextTable(("site", "missing"), [(site, missing.get(site, ".")) for site in sites]),
        f"{len(here)} of {len(sites)} site(s) in {format_seconds(seconds)}, {format_bytes(sent.bytes_up)} left them; "
        f"wrote {out}",
    )


def predict_at_hub(
    model: Any,
    rows: Any,
    credentials: Path,
    hub: str,
    min_replies: int | None,
    coverage: float | None = None,
    abstain: float | None = None,
) -> dict[str, Any]:
    """Columns of the sites' answers for rows (n, p); with ``coverage`` or ``abstain`` they are asked twice."""
    from kernfed.testing.calibration import sure_columns
    from kernfed.testing.predictors import answer_columns

    if getattr(model, "hold", "machines") != "sites":
        raise InputError("this model is whole and needs no sites: leave --credentials out")
    with hub_federation(credentials, hub, patience=_SHORT) as federation:
        asked = model.connect(federation)
        sure = sure_columns(asked, rows, coverage, abstain, min_replies=min_replies)
        return answer_columns(asked.answer(rows, min_replies=min_replies)) | sure


def conform_at_hub(
    model: Any, credentials: Path, hub: str, min_replies: int | None, committee: str | None = None, privacy: Any = None
) -> Any:
    """A model with a coverage from the rows that the sites of a hub keep aside."""
    from kernfed.federation import conform

    with hub_federation(credentials, hub) as federation, progress("counting at the sites"):
        asked = connected(model, federation)
        return conform(asked, federation, min_replies=min_replies, sum=committee, privacy=privacy)


def evaluate_at_hub(
    model: Any,
    credentials: Path,
    hub: str,
    min_replies: int | None,
    *,
    influence: bool = False,
    liars: int | None = None,
) -> Any:
    """A model tested by the sites of a hub, each on the rows that it keeps aside."""
    from kernfed.federation import evaluate

    with hub_federation(credentials, hub) as federation, progress("testing at the sites"):
        asked = connected(model, federation)
        return evaluate(asked, federation, min_replies=min_replies, influence=influence, liars=liars)
