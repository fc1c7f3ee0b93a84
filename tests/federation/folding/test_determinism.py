"""No bit of a result depends on the order of sites, on threads, on chunks, or on who else takes part."""

import threading
from collections.abc import Callable
from typing import Any

import joblib
import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from kernfed import KAHMClassifier
from kernfed.federation import Federation, FoldingLearner, LocalEngine
from kernfed.federation.folding import questions as folding_questions
from kernfed.kahm.model import FoldingModel
from oracles.federation import SFM, Data, sites_data


@pytest.fixture(scope="module")
def data() -> Data:
    """Wide enough that products are spread over BLAS threads where nobody prevents it, and then round differently."""
    return sites_data(np.random.default_rng(1), "abcd", rows=330, width=120)


@pytest.fixture(scope="module")
def queries() -> Any:
    return sites_data(np.random.default_rng(2), "q", rows=150, width=120)["q"][0]


def learner(**options: Any) -> FoldingLearner:
    return FoldingLearner(**{**SFM, "batch_size": 110, **options})


def bits(model: FoldingModel, queries: Any) -> list[bytes]:
    told = model.explain(queries)
    return [
        model.scores_by_site(queries).tobytes(),
        model.predict_proba(queries).tobytes(),
        told.batch.tobytes(),
        np.float64(model.temperature_).tobytes(),
    ]


@pytest.fixture(scope="module")
def reference(data: Data, queries: Any) -> list[bytes]:
    with Federation.local(data) as federation:
        return bits(learner().fit(federation), queries)


def test_again(data: Data, queries: Any, reference: list[bytes]) -> None:
    with Federation.local(data) as federation:
        assert bits(learner().fit(federation), queries) == reference


@pytest.mark.parametrize("order", ["dcba", "bdac"])
def test_order_of_sites(data: Data, queries: Any, reference: list[bytes], order: str) -> None:
    with Federation.local({name: data[name] for name in order}) as federation:
        assert bits(learner().fit(federation), queries) == reference


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_of_blas(data: Data, queries: Any, reference: list[bytes], threads: int) -> None:
    with threadpool_limits(threads), Federation.local(data) as federation:
        assert bits(learner().fit(federation), queries) == reference


@pytest.mark.parametrize("jobs", [1, 3])
def test_threads_of_joblib(data: Data, queries: Any, reference: list[bytes], jobs: int) -> None:
    with joblib.parallel_config(backend="threading", n_jobs=jobs), Federation.local(data) as federation:
        assert bits(learner().fit(federation), queries) == reference


def in_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_whichever_thread_computed_first(data: Data, queries: Any, reference: list[bytes]) -> None:
    """Limits on BLAS threads can belong to the thread that set them first; sites compute in threads of their own."""
    KAHMClassifier(batch_size=110, partition="kmeans", scale=None).fit(*data["a"])  # here, before any site
    with Federation.local(data) as federation:
        assert bits(learner().fit(federation), queries) == reference
        assert in_thread(lambda: bits(learner().fit(federation), queries)) == reference
    with Federation.local(data) as federation:
        assert in_thread(lambda: bits(learner().fit(federation), queries)) == reference
        assert bits(learner().fit(federation), queries) == reference


@pytest.mark.parametrize("measure", ["rms", "distance"])
def test_one_site_is_the_centralised_classifier(data: Data, queries: Any, measure: str) -> None:
    """Fitted here and fitted in a site's thread."""
    with Federation.local({"a": data["a"]}) as federation:
        found = learner(measure=measure).fit(federation).scores(queries)
        central = KAHMClassifier(measure, batch_size=110, partition="order", scale=None).fit(*data["a"])
        np.testing.assert_array_equal(found, central.scores(queries))


def test_sites_one_after_the_other(data: Data, queries: Any, reference: list[bytes]) -> None:
    """One site computes at a time; otherwise as many as there are cores."""
    engine = LocalEngine.from_data(data)
    engine._cores = threading.Semaphore(1)
    with Federation(engine) as federation:
        assert bits(learner().fit(federation), queries) == reference


@pytest.mark.parametrize("size", [1, 7, 128, 149])
def test_chunks_of_queries(data: Data, queries: Any, reference: list[bytes], size: int, monkeypatch: Any) -> None:
    with Federation.local(data) as federation:
        model = learner().fit(federation)
        by_hand = np.concatenate([model.scores_by_site(queries[i : i + 50]) for i in range(0, 150, 50)], axis=1)
        assert by_hand.tobytes() == reference[0]
        order = np.random.default_rng(0).permutation(150)
        np.testing.assert_array_equal(model.scores_by_site(queries[order]), by_hand[:, order])
        monkeypatch.setattr(folding_questions, "_NUMBERS_PER_MESSAGE", 120 * size)
        if size > 1:
            assert bits(model, queries) == reference
        else:
            assert model.scores_by_site(queries[:9]).tobytes() == by_hand[:, :9].tobytes()


def test_layout_of_rows_and_queries(data: Data, queries: Any, reference: list[bytes]) -> None:
    strange = {name: (np.asfortranarray(np.concatenate([X, X]))[: len(X)], y) for name, (X, y) in data.items()}
    with Federation.local(strange) as federation:
        model = learner().fit(federation)
        assert bits(model, np.asfortranarray(queries)) == reference
        assert bits(model, np.concatenate([queries, queries], axis=1)[:, :120]) == reference


@pytest.mark.parametrize("partition", ["random", "kmeans", "order"])
def test_a_site_more_changes_no_other_sites_batches(data: Data, queries: Any, partition: str) -> None:
    some = learner(partition=partition, batch_size=40)
    with Federation.local(data) as federation, Federation.local({name: data[name] for name in "bd"}) as smaller:
        everybody, few = some.fit(federation), some.fit(smaller)
        assert few.members_["d"] == everybody.members_["d"]
        np.testing.assert_array_equal(few.scores_by_site(queries), everybody.scores_by_site(queries)[[1, 3]])


@pytest.mark.parametrize("partition", ["random", "kmeans"])
def test_the_seed_decides(data: Data, queries: Any, partition: str) -> None:
    def scores(seed: int) -> bytes:
        with Federation.local({"a": data["a"]}, seed=seed) as federation:
            return bytes(learner(partition=partition, batch_size=40).fit(federation).scores(queries).tobytes())

    assert scores(1) == scores(1)
    assert scores(1) != scores(2)


def test_a_store_changes_nothing(data: Data, queries: Any, reference: list[bytes], tmp_path: Any) -> None:
    for _ in range(2):  # made, then read again
        with Federation.local(data, store=tmp_path) as federation:
            assert bits(learner().fit(federation), queries) == reference
