"""The quick slice of every experiment runs, so that none can rot unseen."""

import json
import math

import pytest

from kernfed_papers.experiment import Row
from kernfed_papers.rows import missing_data
from kernfed_papers.runner import list_experiments, run_experiment

EXPERIMENTS = {experiment.id: experiment for experiment in list_experiments()}


@pytest.fixture
def runnable(request):
    """The experiment, or a skip that says which data are not at hand."""
    experiment = EXPERIMENTS[request.param]
    reasons = [missing_data(dataset) for dataset in experiment.datasets]
    if reasons and all(reasons):
        pytest.skip(f"{experiment.id} {' or '.join(reasons)}")
    return experiment


@pytest.mark.slow
@pytest.mark.parametrize("runnable", EXPERIMENTS, indirect=True)
def test_the_quick_slice_runs(runnable):
    result = run_experiment(runnable.id, quick=True, folder=None)
    assert result.rows, "an experiment has rows, also where some are not run"
    named = [(row.label, row.unit) for row in result.rows]
    assert len(named) == len(set(named)), "a label and a unit name one row"
    for row in result.rows:
        for value in (row.published, row.ours, row.deviation, row.x):
            assert value is None or math.isfinite(value), row
        assert row.ours is not None or row.note.startswith("not run: "), row
        assert row.deviation is None or row.deviation >= 0, row
        assert not row.series or row.x is not None, row
        assert row.matrix is None or len({len(line) for line in row.matrix}) == 1, row
    assert runnable.axes is not None or not any(row.series for row in result.rows), "curves need axes"
    again = json.loads(json.dumps(result.to_json(), allow_nan=False))["rows"]
    for row, values in zip(result.rows, again, strict=True):
        matrix = values.pop("matrix", None)
        assert Row(**values, matrix=matrix and tuple(map(tuple, matrix))) == row
    assert str(result)
