"""The error channels of engines: what a broken table says stays at its site, on the way through each engine too."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from kernfed.errors import InputError
from kernfed.federation.engines.local import Engine, LocalEngine
from kernfed.site.protocol.message import Payload, Question, encode_question
from kernfed.site.site import Site
from noninterference.cases import policy, recording

#: Where a table is broken, and what stands there.
BROKEN = ((3, "f1", "41.5 mg"), (977, "f2", "Maier"))


def broken_site(place: tuple[int, str, str]) -> Site:
    """A site whose table cannot be read, with the place and the text of the cell in the error."""
    row, column, cell = place

    def read() -> Any:
        raise InputError(f"/srv/tables/{cell}.csv: row {row} of column {column!r} holds {cell!r}")

    return Site("site", read, policy=policy())


def singular_site(place: tuple[int, str, str]) -> Site:
    """A site whose computation fails for a reason that depends on a row, in the words of a library."""

    def read() -> Any:
        raise np.linalg.LinAlgError(f"{place[0]}-th leading minor of the array is not positive definite")

    return Site("site", read, policy=policy())


def local(make: Callable[[Any], Site], place: Any) -> Engine:
    return LocalEngine({"site": make(place)})


def flower(make: Callable[[Any], Site], place: Any) -> Engine:
    pytest.importorskip("flwr", reason="needs the extra [flower]")
    from federation.flower_grid import InProcessGrid, client_app
    from kernfed.federation.engines.flower import FlowerEngine

    app = client_app(lambda _: make(place))
    return FlowerEngine(InProcessGrid(app, {11: {"site": "site"}}))


def flower_without_site(_: Callable[[Any], Site], place: Any) -> Engine:
    """The site cannot even be set up."""
    pytest.importorskip("flwr", reason="needs the extra [flower]")
    from federation.flower_grid import InProcessGrid, client_app
    from kernfed.federation.engines.flower import FlowerEngine

    def fail(_: Any) -> Site:
        raise InputError(f"row {place[0]} holds {place[2]!r}")

    return FlowerEngine(InProcessGrid(client_app(fail), {11: {"site": "site"}}))


def over_hub(make: Callable[[Any], Site], place: Any) -> Engine:
    pytest.importorskip("nats", reason="needs the extra [serve]")
    from federation.hub_server import WholeHub

    return WholeHub({"site": make(place)})


def carried(engine: Engine, task: str, payload: Payload) -> Mapping[str, Any]:
    question = Question("run", "id", task, payload)
    try:
        return engine.carry(encode_question(question), ["site"], 30.0)
    finally:
        engine.close()


@pytest.mark.parametrize("make", [broken_site, singular_site])
@pytest.mark.parametrize("through", [local, flower, flower_without_site])
@pytest.mark.parametrize("task", ["describe", "ridge_survey", "ridge_release", "personal_release", "folding_fit"])
def test_where_a_table_is_broken_is_not_told(through: Any, make: Any, task: str) -> None:
    payload = recording("public classes")[task][0]
    first, second = (carried(through(make, place), task, payload)["site"] for place in BROKEN)
    assert isinstance(first, bytes)
    assert first == second
    assert b"Maier" not in second
    assert b"srv" not in second


def test_where_a_table_is_broken_is_not_told_over_a_hub() -> None:
    test_where_a_table_is_broken_is_not_told(over_hub, broken_site, "ridge_survey")


@pytest.mark.parametrize("through", [local, flower, over_hub])
def test_rows_are_not_told_by_an_engine_either(through: Any) -> None:
    """Rows of which some overflow in every product, and rows that do not."""
    replies = []
    for scale in (1.0, 1e300):
        X = scale * np.random.default_rng(0).uniform(-1, 1, size=(12, 3))
        site = Site("site", X, np.arange(12) % 3, policy=policy(tasks=("describe", "ridge_survey", "machines")))
        tasks = ("describe", "ridge_survey", "machines", "ridge_release")
        engine = through(lambda _, site=site: site, None)
        for task in tasks:
            question = encode_question(Question("run", task, task, recording("public classes")[task][0]))
            replies.append(engine.carry(question, ["site"], 30.0)["site"])
        engine.close()
    assert replies[:4] == replies[4:]
