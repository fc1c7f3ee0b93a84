"""Checks at the edges say what came and what to do."""

import re

import numpy as np
import pytest
from scipy import sparse

import kernfed as kf
from kernfed.base.checks import check_rows


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_array", "coo_array", "lil_matrix"])
@pytest.mark.parametrize(
    ("name", "told"),
    [("X", "X is sparse; use X.toarray()"), ("Y of site 'a'", "Y of site 'a' is sparse; use Y.toarray()")],
)
def test_sparse_rows_are_refused_with_the_way_out(kind, name, told):
    rows = getattr(sparse, kind)(np.eye(3))
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        check_rows(rows, name)
    assert np.array_equal(check_rows(rows.toarray(), name), np.eye(3))


def test_sparse_rows_of_a_machine_and_of_a_site():
    rows = sparse.csr_array(np.eye(3))
    with pytest.raises(ValueError, match=r"^X is sparse; use X\.toarray\(\)$"):
        kf.KAHM(scale=None).fit(rows)
    with pytest.raises(ValueError, match=r"^X of site 'a' is sparse; use X\.toarray\(\)$"):
        kf.Federation.local({"a": (rows, [0, 1, 0])})
