"""Settings of learners: one table per method, the learner's own defaults, and nothing that is given and ignored."""

from inspect import signature

import pytest

from kernfed.site.fields import (
    Given,
    LearnerSettings,
    Setting,
    describe,
    learner_settings,
    learners,
    make_learner,
    plain_arguments,
    settings_by_name,
)
from kernfed.site.protocol.task import resolve

LEARNERS = ("folding", "ridge", "personal", "fusion")
#: Those whose settings are all their own; the fusion's are those of its parts, too.
PLAIN = ("folding", "ridge", "personal")
#: What stands behind several settings, and is none of the learner by itself.
JOINT = {"epsilon", "delta", "bounds", "d", "radius", "dimension", "basis", "label-epsilon", "classes"}


def parameters(learner):
    return signature(resolve(learners()[learner].learner).__init__).parameters


def test_every_method_that_learns_declares_its_settings():
    assert tuple(learners()) == LEARNERS
    assert all(isinstance(learner_settings(name), LearnerSettings) for name in LEARNERS)


@pytest.mark.parametrize("learner", PLAIN)
def test_what_is_told_as_default_is_what_the_learner_does(learner):
    known = parameters(learner)
    for setting in learner_settings(learner).table:
        if setting.name in JOINT:
            continue
        assert setting.argument in known, setting.name
        if setting.usual == setting.absent:
            continue
        usual = setting.usual if setting.read is None else setting.read(setting.usual, setting.name)
        assert usual == known[setting.argument].default, setting.name


@pytest.mark.parametrize("learner", LEARNERS)
def test_nothing_given_is_the_learner_itself(learner):
    usual = resolve(learners()[learner].learner)()
    assert make_learner(learner, Given()).get_params() == usual.get_params()


#: Values that differ from what is usual, of settings that are texts without a list of choices.
OTHERS = {"weights": "local", "batch-size": "7"}


def other_values(learner):
    """Each setting that stands for itself, with another value than the usual one."""
    for setting in learner_settings(learner).table:
        if setting.name in (*JOINT, "privacy", "smoothing", "k", "trusted-classes"):
            continue
        other = next((choice for choice in setting.choices if choice != setting.usual), None)
        if other is None:
            other = setting.usual + 1 if isinstance(setting.usual, int) else OTHERS.get(setting.name, "0.5")
        yield setting, other


def differing(usual, changed):
    usual, changed = usual.get_params(deep=False), changed.get_params(deep=False)
    return {name for name in usual if usual[name] != changed[name]}


@pytest.mark.parametrize("learner", PLAIN)
def test_each_setting_reaches_the_learner(learner):
    for setting, other in other_values(learner):
        changed = make_learner(learner, Given({setting.name: other}))
        assert differing(make_learner(learner, Given()), changed) == {setting.argument}


def test_each_setting_of_a_fusion_reaches_it_or_the_part_it_is_of():
    usual = make_learner("fusion", Given())
    for setting, other in other_values("fusion"):
        changed = make_learner("fusion", Given({setting.name: other}))
        if setting.argument in parameters("fusion"):
            assert differing(usual, changed) == {setting.argument}
            continue
        expected = {"folding" if setting.name in learner_settings("folding").names else "ridge"}
        if setting.name == "scale":  # one unit for both
            expected = {"folding", "ridge"}
        assert differing(usual, changed) == expected
        for part in expected:
            assert differing(make_learner(part, Given()), getattr(changed, part)) == {setting.argument}


@pytest.mark.parametrize(("text", "labels"), [("3, cat", ("3", "cat")), ("all", "all")])
def test_trusted_classes_are_labels_by_commas(text, labels):
    learner = make_learner("folding", Given({"aggregate": "kth", "trusted-classes": text}))
    assert learner.trusted_classes == labels


@pytest.mark.parametrize(
    ("learner", "values", "told"),
    [
        ("folding", {"rounds": 3}, "--rounds is for --learner ridge or fusion, not for folding; leave it out"),
        ("ridge", {"gains": "no"}, "--gains is for --learner personal, not for ridge"),
        ("personal", {"batch-size": 3}, "--batch-size is for --learner folding or fusion, not for personal"),
        ("folding", {"components": 3}, "--components is for --learner ridge or personal or fusion, not for folding"),
        ("forest", {}, "--learner must be one of 'folding', 'ridge', 'personal', 'fusion', got 'forest'"),
        ("folding", {"measure": "far"}, "--measure must be one of"),
        ("folding", {"batch-size": -1}, "--batch-size must be auto or a number >= 1, got -1"),
        ("folding", {"k": 3}, "--k needs --aggregate kth"),
        ("folding", {"trusted-classes": "a"}, "--trusted-classes needs --aggregate kth"),
        ("ridge", {"regularization": "1,few"}, "--regularization must be auto, a number, or several"),
        ("ridge", {"bandwidth": "wide"}, "--bandwidth must be auto, median or a number"),
        ("personal", {"weights": "1,few"}, "--weights must be a rule or C_Q,C_P"),
        ("ridge", {"privacy": "{"}, "--privacy must be a JSON object"),
    ],
)
def test_what_cannot_be_is_refused_by_name(learner, values, told):
    with pytest.raises(ValueError, match=told):
        make_learner(learner, Given(values, "--"))


def test_texts_that_stand_for_more():
    ridge = make_learner("ridge", Given({"regularization": "0.1, 0.01", "bandwidth": "2.5"}))
    assert ridge.get_params()["regularization"] == (0.1, 0.01)
    assert ridge.get_params()["bandwidth"] == 2.5
    personal = make_learner("personal", Given({"weights": "0.2,0.1", "gains": "no", "regularization": "0.5"}))
    told = personal.get_params()
    assert (told["weights"], told["gains"], told["regularization"]) == ((0.2, 0.1), False, 0.5)


def test_settings_of_one_name_are_described_together():
    assert describe(settings_by_name()["components"]).endswith("; default 200 (personal).")
    assert "; default auto (ridge), median (personal)" in describe(settings_by_name()["bandwidth"])
    assert describe({"": Setting("x", "Something.")}) == "Something."


def test_a_table_alone_is_enough():
    table = (Setting("depth", "How deep.", 3, at_least=1, parameter="layers"), Setting("colour", "Which.", "red"))
    assert plain_arguments(table, Given({"depth": 4})) == {"layers": 4}
    with pytest.raises(ValueError, match="depth must be >= 1, got 0"):
        plain_arguments(table, Given({"depth": 0}))
