"""A head and a weight from what sites released for their machines: nothing more leaves them, and nothing is charged.

Differential privacy is kept by whatever is computed from a release. The machines of a private model contain the
released rows, or rows made from released moments, so a federation of exactly these rows is built here, where the head
is fitted and the weight chosen as anywhere else.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from kernfed.federation.asking import Federation
from kernfed.federation.folding.questions import collect_machines
from kernfed.federation.fusion.weighing import usual_weight
from kernfed.federation.ridge.learner import RidgeLearner
from kernfed.fusion.model import FusionModel
from kernfed.kahm.bank import Bank
from kernfed.kahm.machine import recover_rows
from kernfed.kahm.model import FoldingModel


def released_head(
    federation: Federation, machines: FoldingModel, ridge: RidgeLearner, weight: float | None
) -> FusionModel:
    """Machines of released rows with a head of the same rows; the usual weight unless one is given."""
    banks = machines.banks_
    lost: dict[str, str] = {}
    if banks is None:
        banks, lost = federation.run(collect_machines(machines, machines.sites, min_replies=0))
    model = FusionModel(machines, None, missing_=machines.missing_)
    if not banks:
        return replace(model, headless_=lost, temperature_=machines.temperature_)
    released = {site: _rows_of(machines, site, bank) for site, bank in banks.items()}
    with Federation.local(released, seed=federation.seed) as local:
        head = ridge.fit(local)
    head = replace(head, privacy=machines.privacy)
    chosen, temperature, choice = usual_weight(weight, head)
    return replace(model, ridge=head, weight_=chosen, temperature_=temperature, choice_=choice, headless_=dict(lost))


def _rows_of(machines: FoldingModel, site: str, bank: Bank) -> tuple[Any, Any]:
    """Rows that a site's machines contain, in the units of queries, and their labels."""
    labels = np.asarray(machines.members_[site].held(machines.classes_))
    scale = machines.parameters.scale
    rows = [recover_rows(machine) for machine in bank.machines]
    rows = rows if scale is None else [scale.restore(own) for own in rows]
    y = np.repeat(labels[bank.groups], [len(own) for own in rows])
    return np.concatenate(rows), y
