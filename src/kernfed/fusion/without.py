"""What a model would say of queries without some of its sites, from one scoring of them.

Machines combine by a minimum (or the k-th smallest), so a site is left out of the scores that are there already. A head
is made of sums: its place is taken by heads that were made of the sums of the others.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.labels import ClassIndex
from kernfed.errors import InputError
from kernfed.fusion.model import FusionModel
from kernfed.fusion.parts import FusedParts, Visit
from kernfed.kahm.model import FoldingModel
from kernfed.kahm.projection import project
from kernfed.ridge.model import RidgeModel

#: Names of sites that are left out together.
SiteSet = tuple[str, ...]


def probabilities_without(
    model: Any, X: npt.ArrayLike, sets: Sequence[SiteSet], heads: Sequence[RidgeModel] = (), **options: Any
) -> FloatArray:
    """Probabilities (1 + V, n, C) of rows (n, p): by all sites first, then without each of V ``sets`` of sites.

    ``heads`` are heads without the first sets, in their order; to further sets the head of all sites answers. The
    temperature, the weight of the parts and the prior are those of the model. ``options`` as in ``predict_proba``.
    """
    if isinstance(model, RidgeModel):
        return _of_heads(model, X, len(sets), heads)
    if isinstance(model, FoldingModel):
        by_site = model.site_scores(X, **options)
        return np.stack([_certain(model.probabilities_of(model.combined(by_site, own))) for own in ((), *sets)])
    if isinstance(model, FusionModel):
        return _of_fusion(model, X, sets, heads, **options)
    raise InputError(
        f"sites are left out of a FoldingModel, a RidgeModel or a FusionModel, got a {type(model).__name__}"
    )


def values_without(model: RidgeModel, X: npt.ArrayLike, heads: Sequence[RidgeModel]) -> FloatArray:
    """Values (1 + V, n, C) of the model and of V heads on its features, which are computed once."""
    return np.stack(model.values_by([model, *heads], X))


def _of_heads(model: RidgeModel, X: npt.ArrayLike, sets: int, heads: Sequence[RidgeModel]) -> FloatArray:
    values = values_without(model, X, heads)
    likely = [model.probabilities_of(own) for own in values]
    return np.stack([*likely, *[likely[0]] * (sets - len(heads))])


def _of_fusion(
    model: FusionModel, X: npt.ArrayLike, sets: Sequence[SiteSet], heads: Sequence[RidgeModel], **options: Any
) -> FloatArray:
    if model.folding is None:
        assert model.ridge is not None
        return _of_heads(replace(model.ridge, prior=model.prior), X, len(sets), heads)
    whole = replace(model, visit_=Visit())
    queries = model.folding.checked_rows(X)
    by_site = model.folding.site_scores(queries, **options)
    places = ClassIndex(model.classes_).numbers(model.folding.classes_)
    travelled = np.ones(len(queries), dtype=bool)
    values = _head_values(model, queries, heads)
    likely = []
    for number, left in enumerate([(), *sets]):
        head = number if 0 < number <= len(heads) else 0
        scores = np.full((len(queries), len(model.classes_)), np.inf)
        scores[:, places] = model.folding.combined(by_site, left)
        likely.append(_certain(whole.scored(FusedParts(values[head], scores, None, travelled), None)[1]))
    return np.stack(likely)


def _head_values(model: FusionModel, queries: FloatArray, heads: Sequence[RidgeModel]) -> FloatArray:
    """Values (1 + V, n, C) of the head and of V others for checked rows, in the classes of the model."""
    if model.ridge is None:
        return model.head_values(queries)[None]
    assert model.folding is not None
    plain = replace(model.ridge, preparation=None, feature_names_in_=())
    own = values_without(plain, project(queries, model.folding.basis), heads)
    return np.stack([model.placed_values(values) for values in own])


def _certain(probabilities: FloatArray) -> FloatArray:
    """Probabilities (n, C), all alike where nobody is left to tell the classes apart."""
    return np.where(np.isnan(probabilities), 1 / probabilities.shape[1], probabilities)
