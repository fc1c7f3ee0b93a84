"""Three hospitals with a store and a policy each: train, answer, restart, forget a patient.

Run with ``python examples/three_hospitals.py``. In one process here; every line but the first block is the same when
the hospitals are on machines of their own.
"""

import tempfile
from pathlib import Path

import kernfed as kf
from kernfed.federation import Policy

digits = kf.data.load_dataset("digits", scaling="unit")
parts = kf.data.partition_dirichlet(digits.y_train, n_sites=3, alpha=0.3, seed=1)
names = ("north", "south", "east")
rows = {name: (digits.x_train[part], digits.y_train[part], part) for name, part in zip(names, parts, strict=True)}

with tempfile.TemporaryDirectory() as folder:
    # A hospital's own decision. It would be the file site.toml on its machine.
    policy_file = Path(folder) / "site.toml"
    tasks = '["describe", "folding_choose", "folding_fit", "scores", "forget_rows"]'
    policy_file.write_text(f"tasks = {tasks}\nmin_rows_per_class = 5\n")
    policies = {name: Policy.read(policy_file) for name in names}

    with kf.Federation.local(rows, store=f"{folder}/stores", policies=policies) as federation:
        model = kf.FoldingLearner(measure="distance").fit(federation)
        print(f"three hospitals together: {(model.predict(digits.x_test) == digits.y_test).mean():.1%}")
        for name in model.sites:
            alone = (model.local(name).predict(digits.x_test) == digits.y_test).mean()
            print(f"  {name} alone: {alone:.1%}")
        model.save(f"{folder}/model.kfd")  # a handle: no rows in it

    # Another day, another process: the stores remember the machines.
    with kf.Federation.local(rows, store=f"{folder}/stores", policies=policies) as federation:
        model = kf.load(f"{folder}/model.kfd").connect(federation)
        found = model.explain(digits.x_test[:3])
        for label, site, batch in zip(found.label, found.site, found.batch, strict=True):
            print(f"a {label}, because it is nearest to batch {batch} of {site}")

        patient = int(parts[0][0])  # the id of a row at north
        newer = model.forget("north", rows=[patient])
        before, now = (one.members_["north"].rows for one in (model, newer))
        print(f"patient {patient} forgotten: {before} rows before, {now} now")
        print(federation.traffic)
