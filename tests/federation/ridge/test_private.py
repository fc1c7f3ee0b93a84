"""Ridge regression from released sums: one release for any regularisation, and nothing else of the rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernfed
from contracts.engines import lying
from kernfed.errors import FileFormatError, InputError, TooFewReplies
from kernfed.federation import Federation, Payload, Policy, RidgeLearner
from kernfed.files import Record, from_record, to_record
from kernfed.privacy import RecordGaussian, RecordRidge
from kernfed.privacy.values import mechanism_to_values
from kernfed.ridge.model import RidgeModel
from kernfed.ridge.parameters import RidgeParameters
from kernfed.site.release.permit import LEDGER, open_ledger
from oracles.federation import Data, sites_data

MECHANISM = RecordRidge(3.0, 1e-5, radius=1.0, target_radius=1.0)
#: Sites of these tests live as long as the test; that a ledger is not kept is tested in test_private_folding.
pytestmark = pytest.mark.filterwarnings("ignore::kernfed.errors.LedgerNotKept")


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return {name: (X / 6.0, y) for name, (X, y) in sites_data(rng, "ab", rows=400).items()}


def learner(privacy: Any = MECHANISM, **settings: Any) -> RidgeLearner:
    return RidgeLearner(
        **{"method": "exact", "features": "given", "regularization": 1e-3, "privacy": privacy, **settings}
    )


def charges(federation: Federation, name: str = "a") -> int:
    site = federation.engine.site(name)  # type: ignore[attr-defined]
    return len(open_ledger(site).entries()) if (site.store.path / LEDGER).exists() else 0


def test_released_once_for_every_regularisation(data: Data, tmp_path: Path) -> None:
    with Federation.local(data, store=tmp_path) as federation:
        first = learner().fit(federation)
        again = learner().fit(federation)
        other = learner(regularization=10.0).fit(federation)
        assert first.weights_.tobytes() == again.weights_.tobytes()
        assert np.abs(other.weights_).max() < np.abs(first.weights_).max()
        assert [charges(federation, name) for name in "ab"] == [1, 1]
        learner(RecordRidge(2.0, 1e-5, 1.0, 1.0)).fit(federation)
        assert charges(federation) == 2
    with Federation.local(data, store=tmp_path) as federation:
        assert learner().fit(federation).weights_.tobytes() == first.weights_.tobytes()
        assert charges(federation) == 2


def test_with_little_noise_it_is_the_exact_solution(data: Data) -> None:
    with Federation.local(data) as federation:
        exact = learner(None, regularization=0.1, fit_intercept=False).fit(federation)
        noisy = learner(RecordRidge(100.0, 1e-5, 1.0, 1.0), regularization=0.1).fit(federation)
        np.testing.assert_allclose(noisy.weights_, exact.weights_, atol=0.05 * np.abs(exact.weights_).max())
        X = np.vstack([X for X, _ in data.values()])
        assert (noisy.predict(X) == exact.predict(X)).mean() > 0.95


def test_targets_to_regress_and_fourier_features(rng: np.random.Generator) -> None:
    X = rng.uniform(-1, 1, (2000, 1))
    y = np.sin(3 * X[:, 0])
    data = {"a": (X[:1000], y[:1000]), "b": (X[1000:], y[1000:])}
    settings = {"features": "fourier", "n_components": 20, "bandwidth": 1.0, "task": "regress", "regularization": 1e-4}
    with Federation.local(data) as federation:
        model = learner(RecordRidge(8.0, 1e-5, 1.0, 1.0), **settings).fit(federation)
        assert model.score(X, y) > 0.5
        assert "targets are protected" in str(model.privacy)  # type: ignore[attr-defined]
        assert {entry.task for entry in federation.traffic} == {"ridge_survey", "ridge_release"}


def test_the_statement_is_printed_saved_and_loaded(data: Data, tmp_path: Path) -> None:
    with Federation.local(data) as federation:
        model: Any = learner().fit(federation)
    for guarantee in (model.privacy.record, model.privacy.element):
        assert (guarantee.epsilon, guarantee.delta) == (3.0, 1e-5)
    assert model.privacy.protects == "rows"
    assert set(model.privacy.spent) == {"a", "b"}
    assert str(model).splitlines()[-1].startswith("privacy: record (3, 1e-05)")
    model.save(tmp_path / "model.kfd")
    loaded = kernfed.load(tmp_path / "model.kfd")
    assert str(loaded.privacy) == str(model.privacy)
    X = data["a"][0]
    assert (loaded.predict(X) == model.predict(X)).all()
    record = to_record(model)
    for damage in ({"privacy": {}}, {"parameters": record.values["values"]["privacy"]}):
        with pytest.raises(FileFormatError):
            from_record(Record(record.arrays, {**record.values, "values": {**record.values["values"], **damage}}))


def test_without_privacy_the_model_is_as_ever(data: Data) -> None:
    with Federation.local(data) as federation:
        model = learner(None).fit(federation)
        assert type(model) is RidgeModel
        assert model.privacy is None


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"privacy": 1.0}, "privacy must be None or kernfed.privacy.RecordRidge"),
        ({"privacy": RecordGaussian(1.0, 1e-5, 1.0)}, "privacy must be None or"),
        *(
            ({"method": method}, f"method='{method}' exchanges sums of the raw rows")
            for method in ("conjugate", "newton", "dkrr")
        ),
        ({"features": "fourier", "bandwidth": "median"}, "bandwidth='median' looks at the raw rows"),
        ({"features": "fourier"}, "bandwidth='auto' looks at the raw rows"),
        ({"features": "fourier", "bandwidth": 1.0, "head": "logistic"}, "head='logistic' exchanges sums"),
        ({"scale": "columns"}, "scale='columns' looks at the raw rows"),
        ({"regularization": [0.1, 1.0]}, "choosing among regularizations looks"),
        ({"class_weight": "balanced"}, "class_weight needs rows of other norms"),
        ({"diagnose": True}, "diagnose exchanges sums of the raw rows"),
    ],
)
def test_what_cannot_be_had_is_said(settings: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        learner(**settings).options()


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ({"max_record_epsilon": 2.0}, "at most 2 at delta 1e-05"),
        (
            {"mechanisms": ("record-moments",), "max_record_epsilon": 9.0},
            "releases by record-moments, not by 'record-ridge'",
        ),
        ({"private_labels": True, "max_record_epsilon": 9.0}, "requires randomised labels"),
    ],
)
def test_policies_are_asked_first(data: Data, policy: Any, told: str) -> None:
    with Federation.local(data, policies={"b": Policy(("*",), **policy)}) as federation:
        with pytest.raises(TooFewReplies, match=f"'b': .*{told}"):
            learner().fit(federation)
        assert charges(federation, "b") == 0
        with pytest.raises(TooFewReplies, match="requires privacy" if "private_labels" not in policy else told):
            learner(None).fit(federation)


def test_a_site_that_requires_privacy_takes_part(data: Data) -> None:
    policy = Policy(("*",), max_record_epsilon=3.0, mechanisms=("record-ridge",))
    with Federation.local(data, policies=dict.fromkeys(data, policy)) as federation:
        learner().fit(federation)
        with pytest.raises(TooFewReplies, match="privacy budget does not allow this release"):
            learner(RecordRidge(3.0, 1e-5, radius=0.5, target_radius=1.0)).fit(federation)


@pytest.mark.parametrize(
    "values",
    [{}, 5, {"kind": "record-ridge"}, {"kind": "randomized-labels", "epsilon": 1.0, "classes": [0, 1]}],
    ids=str,
)
def test_hostile_questions(data: Data, values: Any) -> None:
    with Federation.local(data) as federation:
        asked = Payload(
            values={"parameters": RidgeParameters(4, "given", classes=(0, 1)).to_values(), "privacy": values}
        )
        refusal = federation.ask("ridge_release", asked, sites=["a"], min_replies=0).missing["a"]
        assert refusal.code == "bad question"
        assert charges(federation) == 0


@pytest.mark.parametrize("change", [{"class_weights": (1.0, 2.0, 3.0)}, {"fit_intercept": True}, {"width": 6}])
def test_problems_that_released_sums_are_not_for(data: Data, change: Any) -> None:
    width = data["a"][0].shape[1]
    parameters = RidgeParameters(**{"width": width, "features": "given", "classes": (0, 1, 2), **change})
    values = {"parameters": parameters.to_values(), "privacy": mechanism_to_values(MECHANISM)}
    with Federation.local(data) as federation:
        refusal = federation.ask("ridge_release", Payload(values=values), sites=["a"], min_replies=0).missing["a"]
        assert refusal.code == "bad question"
        assert charges(federation) == 0


@pytest.mark.parametrize("task", ["ridge_survey", "personal_survey"])
def test_a_survey_where_privacy_is_required_tells_no_distance(data: Data, task: str) -> None:
    asked = Payload(values={"task": "classify", "median": True, "seed": 0})
    policies = {"a": Policy(("*",), require_privacy=True, max_record_epsilon=50.0)}
    with Federation.local(data, policies=policies) as federation:
        replies = federation.ask(task, asked)
    assert replies["a"].arrays["facts"].tolist() == [400.0, 0.0]
    assert replies["b"].arrays["facts"][1] > 0


@pytest.mark.parametrize(
    "change",
    [
        lambda p: Payload(p.arrays, {"privacy": {**p.values["privacy"], "record": ["1.0", "1e-5"]}}),
        lambda p: Payload({**p.arrays, "scalars": np.array([-1.0, 0.0])}, p.values),
        lambda p: Payload({**p.arrays, "second": p.arrays["second"][:2]}, p.values),
        lambda p: Payload({**p.arrays, "cross": p.arrays["cross"] * np.nan}, p.values),
        lambda p: Payload(p.arrays, {}),
    ],
)
def test_lies_are_refused(data: Data, change: Any) -> None:
    federation = Federation(lying(Federation.local(data).engine, "b", change, task="ridge_release"))
    with pytest.raises(TooFewReplies, match="'b'"):
        learner().fit(federation)


def test_forgotten_rows_are_not_in_the_next_sums(data: Data) -> None:
    with Federation.local(data) as federation:
        before = learner().fit(federation)
        federation.ask("forget_rows", Payload({"ids": np.array([3])}), sites=["a"])
        after = learner().fit(federation)
        assert before.weights_.tobytes() != after.weights_.tobytes()
        assert [charges(federation, name) for name in "ab"] == [2, 1]
