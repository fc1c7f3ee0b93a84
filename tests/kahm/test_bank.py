"""Many machines at once: the same numbers as one by one, to the last bit whatever the chunks, jobs and threads."""

import threading

import joblib
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from kernfed import KAHM
from kernfed.base.threads import resolve_jobs, single_blas_thread
from kernfed.kahm.bank import BLOCK, Bank, fit_machines
from kernfed.kahm.machine import explicit_images, fit_machine, recover_rows
from kernfed.kahm.model_file import pack_machines, unpack_machines
from kernfed.kahm.products import gram_matrix, multiply, multiply_rows
from kernfed.kahm.tile import group_machines
from oracles.kahm import literal_kahm

SIZES = [1, 2, 5, 20, 20, 21, 23, 60, 61, 100, 400]


@pytest.fixture
def batches(rng):
    return [rng.standard_normal((size, 30)) + rng.standard_normal(30) for size in SIZES]


def make_bank(batches, dtype="float64", layers=1, n_jobs=1):
    machines = fit_machines(batches, dtype=dtype, layers=layers, n_jobs=n_jobs)
    return Bank.assemble(machines, [i % 3 for i in range(len(machines))], 4)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-11), ("float32", 1e-4)])
def test_bank_is_its_machines_one_by_one(batches, dtype, tolerance, layers, rng):
    bank = make_bank(batches, dtype, layers)
    queries = rng.standard_normal((50, 30))
    alone = np.column_stack([Bank.assemble([m], [0], 1).scores(queries, "rms").values[:, 0] for m in bank.machines])
    np.testing.assert_allclose(bank.machine_scores(queries, "rms"), alone, rtol=tolerance)
    scores = bank.scores(queries, "rms")
    for group in range(3):
        own = np.flatnonzero(bank.groups == group)
        np.testing.assert_array_equal(scores.values[:, group], bank.machine_scores(queries, "rms")[:, own].min(axis=1))
        assert (np.isin(scores.winners[:, group], own)).all()


def test_absent_group_scores_as_absent(batches, rng):
    bank = make_bank(batches)
    queries = rng.standard_normal((3, 30))
    assert (bank.scores(queries, "rms").values[:, 3] == 1).all()
    assert np.isinf(bank.scores(queries, "distance").values[:, 3]).all()
    assert (bank.scores(queries, "distance").winners[:, 3] == -1).all()


def test_padding_and_grouping_cover_every_machine_once(batches):
    machines = fit_machines(batches)
    groups = list(group_machines(machines))
    assert sorted(i for group in groups for i in group) == list(range(len(machines)))
    assert any(len(group) > 1 for group in groups)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("measure", ["distance", "rms"])
def test_chunks_order_and_jobs_change_no_bit(batches, dtype, measure, rng):
    bank = make_bank(batches, dtype)
    queries = rng.standard_normal((BLOCK + 37, 30))
    expected = bank.scores(queries, measure, n_jobs=1).values
    for jobs in (2, 3):
        assert (bank.scores(queries, measure, n_jobs=jobs).values == expected).all()
    for chunk in (1, 7, 100, BLOCK):
        starts = range(0, min(len(queries), 20 * chunk), chunk)
        parts = np.concatenate([bank.scores(queries[i : i + chunk], measure).values for i in starts])
        assert (parts == expected[: len(parts)]).all()
    order = rng.permutation(len(queries))
    assert (bank.scores(queries[order], measure).values == expected[order]).all()
    for threads in (1, 2):
        with threadpool_limits(threads):
            assert (bank.scores(queries, measure).values == expected).all()


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_fit_does_not_depend_on_jobs_or_backend(batches, backend):
    one = pack_machines(fit_machines(batches, n_jobs=1))
    with joblib.parallel_config(backend=backend, n_jobs=2):
        two = pack_machines(fit_machines(batches))
    for name in one:
        assert (one[name] == two[name]).all()


def test_ties_go_to_the_first_machine(rng):
    rows = rng.standard_normal((20, 4))
    (machine,) = fit_machines([rows])
    bank = Bank.assemble([machine, machine, machine], [0, 0, 1], 2)
    winners = bank.scores(rng.standard_normal((9, 4)), "distance").winners
    assert (winners == [0, 2]).all()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_packing_keeps_every_bit(batches, dtype, rng):
    bank = make_bank(batches, dtype, layers=2)
    again = Bank.assemble(unpack_machines(pack_machines(bank.machines)), bank.groups.tolist(), 4)
    queries = rng.standard_normal((40, 30))
    assert (again.scores(queries, "rms").values == bank.scores(queries, "rms").values).all()


@pytest.mark.parametrize("name", ["shapes", "mean", "directions", "scores", "exponent", "image", "regularization"])
def test_packing_refuses_arrays_that_do_not_fit(batches, name):
    packed = pack_machines(fit_machines(batches))
    with pytest.raises(ValueError, match=r"need|early|many|has|must"):
        unpack_machines({**packed, name: packed[name][:-1]})


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-11), ("float32", 1e-5)])
def test_a_machine_contains_its_rows(batches, dtype, tolerance):
    """Said openly: whoever receives a machine can recompute the rows it was made from."""
    for rows, machine in zip(batches, fit_machines(batches, dtype=dtype), strict=True):
        np.testing.assert_allclose(recover_rows(machine), rows, atol=tolerance)


def test_far_clusters_in_float32(rng):
    """Machines far from the bank's centre are computed again in float64 where float32 has no digits left."""
    batches = [rng.standard_normal((30, 10)) + offset for offset in (-1e4, 0.0, 1e4)]
    bank = Bank.assemble(fit_machines(batches, dtype="float32"), [0, 1, 2], 3)
    for group, rows in enumerate(batches):
        queries = rows[:5] + 0.5
        expected = literal_kahm(rows).distance(queries).astype(float)
        np.testing.assert_allclose(bank.scores(queries, "distance").values[:, group], expected, rtol=1e-3)


def test_bank_refuses_nothing_and_mixtures(rng):
    with pytest.raises(ValueError, match="at least one machine"):
        Bank.assemble([], [], 1)
    machines = fit_machines([rng.standard_normal((5, 3))]) + fit_machines([rng.standard_normal((5, 4))])
    with pytest.raises(ValueError, match="one width and one dtype"):
        Bank.assemble(machines, [0, 0], 1)


def test_rows_beyond_the_range_of_float32_are_refused():
    with pytest.raises(ValueError, match="rescale"):
        KAHM(dtype="float32", scale=None).fit(np.full((3, 2), 1e20))


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_single_thread_limit_is_shared_and_restored():
    with threadpool_limits(2):
        with single_blas_thread():
            with single_blas_thread():
                assert blas_threads() == {1}
            assert blas_threads() == {1}  # the inner one must not lift the outer one's limit
            assert resolve_jobs(None) == 1
        assert blas_threads() == {2}


def test_limit_holds_in_threads_that_did_not_set_the_first_one():
    """A thread that set a limit earlier and still lives must not keep the others from setting theirs."""
    seen = []

    def work():
        with single_blas_thread():
            seen.append(blas_threads())
        seen.append(blas_threads())

    before = blas_threads()
    with threadpool_limits(2):
        inside = blas_threads()
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
            thread.join()
    assert seen == [{1}, inside, {1}, inside]
    assert blas_threads() == before


def test_jobs_follow_the_argument_then_joblib_then_blas():
    assert resolve_jobs(3) == 3
    assert resolve_jobs(None) == max(blas_threads())
    with joblib.parallel_config(n_jobs=5):
        assert resolve_jobs(None) is None


@pytest.mark.parametrize("shape", [(700, 900), (5, 3), (513, 2), (1, 1)])
def test_products_in_blocks_are_products(shape, rng):
    rows = rng.standard_normal(shape)
    for threads in (1, 3):
        np.testing.assert_allclose(gram_matrix(rows, threads), rows @ rows.T, atol=1e-11)
        out = np.empty((shape[0], shape[0]))
        multiply(rows, rows.T, out, threads)
        np.testing.assert_allclose(out, rows @ rows.T, atol=1e-11)


def test_threads_of_one_machine_change_no_bit(rng):
    rows = rng.standard_normal((600, 1300))
    one, two = (pack_machines([fit_machine(rows, threads=threads)]) for threads in (1, 2))
    for name in one:
        assert (one[name] == two[name]).all()


def test_who_else_is_looked_at_again_does_not_matter():
    """Queries near a plane of rows are in doubt in float32; their explicit images were products of changing size."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((100, 2)) @ rng.standard_normal((2, 20))
    bank = Bank.assemble([fit_machine(rows, dtype=np.float32)], [0], 1)
    queries = rows[rng.integers(0, 100, 128)] + 1e-4 * rng.standard_normal((128, 20))
    whole = bank.scores(queries, "distance").values
    alone = np.concatenate([bank.scores(queries[[number]], "distance").values for number in range(128)])
    np.testing.assert_array_equal(alone, whole)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_no_bit_of_a_product_depends_on_how_many_rows_there_are(dtype, rng):
    """One piece and several, cut where the matrix is large; BLAS alone rounds otherwise from one row to two."""
    for length, columns in ((7, 5), (300, 250)):
        rows, matrix = rng.standard_normal((41, length)).astype(dtype), rng.standard_normal((length, columns))
        whole = multiply_rows(rows, matrix.astype(dtype))
        np.testing.assert_allclose(whole, rows @ matrix, atol=1e-11 if dtype == "float64" else 1e-4)
        for count in (1, 2, 7, 8, 9, 16, 40):
            assert (multiply_rows(rows[:count], matrix.astype(dtype)) == whole[:count]).all()


@pytest.mark.parametrize("layers", [1, 2])
def test_explicit_images_are_those_of_each_query_alone(layers, rng):
    machine = fit_machine(rng.standard_normal((60, 12)), layers=layers)
    queries = rng.standard_normal((21, 12))
    whole = explicit_images(machine, queries)
    for count in (1, 3, 20):
        part = explicit_images(machine, queries[-count:])
        assert (part.image == whole.image[-count:]).all()
        assert (part.memberships == whole.memberships[-count:]).all()
