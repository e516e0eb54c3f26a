"""Commands made from options by name: what recipes, `--set` and the functions all go through."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
from ncclean_pipelines.command import Command, build
from ncclean_pipelines.evaluate_noise import TrialOptions
from ncclean_pipelines.finetune import Finetune
from ncclean_pipelines.registry import COMMANDS
from ncclean_pipelines.stages import STAGES

from ncclean.base.option_values import parse_settings, values_by_name
from ncclean.base.options import Option, OptionError, Options, parameters
from ncclean.storage.inputs import identity

# The demo and the whole cleaning are recipes themselves.
NO_STAGES = {"audit", "clean", "query", "review", "run", "demo", "annotate"}


def test_every_command_is_a_stage_or_known_not_to_be():
    assert set(COMMANDS) - NO_STAGES == set(STAGES)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_an_option_refers_to_are_options(name):
    known = parameters(COMMANDS[name])
    for parameter in known.values():
        named = {*parameter.option.columns_of, *parameter.option.sql_over}
        assert named <= set(known)
        if named:
            assert all(known[other].option.reads is not None for other in named)


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_has_a_place_of_its_own(name):
    out = parameters(STAGES[name])["out"]
    assert out.option.in_recipes
    assert out.option.inside is not None


@pytest.mark.parametrize("name", STAGES)
def test_a_run_decides_what_starts_over(name):
    known = parameters(STAGES[name])
    decided = {
        "overwrite",
        "resume",
        "dry_run",
        "price_per_hour",
        "finalize_only",
        "calibrate_with",
    }
    decided &= set(known)
    if name == "evaluate noise":  # a trial is a question; a stage goes on from what others made
        decided |= {"inject", *parameters(TrialOptions)}
    assert all(not known[option].option.in_recipes for option in decided)
    assert {option for option, p in known.items() if not p.option.in_recipes} == decided


@dataclass(frozen=True, kw_only=True)
class Inner(Options):
    size: Annotated[int, Option("Size.", name="length", low=1)] = 3
    mode: Annotated[Literal["a", "b"], Option("Mode.")] = "a"
    seed: int = 0  # not an option


@dataclass(frozen=True, kw_only=True)
class Outer(Options):
    inner: Inner = field(default_factory=Inner)
    rate: Annotated[float | None, Option("Rate.", above=0)] = None


@dataclass(frozen=True, kw_only=True)
class Example(Command):
    """Only for these tests."""

    name = "example"
    summary = "Only for these tests."

    paths: Annotated[Sequence[str], Option("Paths.")]
    out: Annotated[str, Option("Place.")]
    outer: Outer = field(default_factory=Outer)
    shares: Annotated[Mapping[str, float] | Sequence[str], Option("Shares.")] = ()
    threads: Annotated[int, Option("Threads.", is_idle=True)] = 1
    overwrite: Annotated[bool, Option("Again.", in_recipes=False)] = False

    def run(self, progress=None):
        raise AssertionError("these tests only declare")


def test_options_of_groups_are_set_by_name():
    assert list(parameters(Example)) == [
        "paths", "out", "length", "mode", "rate", "shares", "threads", "overwrite",
    ]  # fmt: skip
    made = build(Example, {"paths": "x", "out": "o", "length": "4", "rate": "1e-3"})
    assert made == Example(paths=["x"], out="o", outer=Outer(inner=Inner(size=4), rate=1e-3))
    assert values_by_name(made) == {
        "paths": ["x"], "out": "o", "length": 4, "mode": "a", "rate": 1e-3, "shares": (),
        "threads": 1, "overwrite": False,
    }  # fmt: skip


def test_nothing_given_means_the_default():
    given = {"paths": ["x"], "out": "o", "length": None, "rate": None}
    assert build(Example, given) == Example(paths=["x"], out="o")


def test_a_mapping_may_be_written_as_text():
    shares = [
        build(Example, {"paths": "x", "out": "o", "shares": value}).shares
        for value in ({"a": 1}, "a=1", ["a=1", "b=2"])
    ]
    assert shares == [{"a": 1.0}, ["a=1"], ["a=1", "b=2"]]


@pytest.mark.parametrize(
    ("values", "option", "message"),
    [
        ({"path": "x"}, "path", r"example has no option 'path' \(did you mean paths\?\)"),
        ({"seed": 1}, "seed", "example has no option 'seed'"),
        ({"paths": "x"}, "out", "example needs out"),
        ({"paths": "x", "out": "o", "length": 0}, "length", "--length must be at least 1, got 0"),
        ({"paths": "x", "out": "o", "rate": 0}, "rate", "--rate must be above 0, got 0"),
        ({"paths": "x", "out": "o", "mode": "c"}, "mode", "--mode takes a, b, got 'c'"),
        ({"paths": "x", "out": "o", "length": "many"}, "length",
         "length: input should be a valid integer.*got 'many'"),
        ({"paths": "x", "out": "o", "length": 1.5}, "length", "length: input should be a valid"),
        ({"paths": "x", "out": ["o", "p"]}, "out", "out: input should be a valid string"),
    ],
)  # fmt: skip
def test_a_mistake_names_the_option(values, option, message):
    with pytest.raises(OptionError, match=message) as raised:
        build(Example, values)
    assert raised.value.option == option


def test_what_changes_no_result_is_left_out_of_the_identity():
    one = Example(paths=["x"], out="o", threads=1)
    two = Example(paths=["x"], out="elsewhere", threads=8, overwrite=True)
    other = Example(paths=["x"], out="o", outer=Outer(rate=0.5))
    assert identity(one) == identity(two) != identity(other)
    assert json.loads(json.dumps(identity(one))) == identity(one)


def settings(*given, method="bayes"):
    values = {"method": method, "shards": ["a"], "out": "b"}
    return build(Finetune, {**values, **parse_settings(parameters(Finetune), given, "finetune")})


def test_values_are_set_where_they_belong_and_nowhere_else():
    found = settings("a_neg=20", "b_pos=1e-3", "betas=[0.9, 0.95]", "seed=3")
    assert found.objective.bayes.a_neg == 20.0
    assert found.objective.bayes.b_pos == 1e-3
    assert found.training.betas == (0.9, 0.95)
    assert found.seed == 3
    assert found.objective.ncu == settings().objective.ncu
    assert settings().objective.bayes.a_neg == 10.0
    found = settings("disncl_gamma=0.1", "soften=no", method="disncl")
    assert found.objective.disncl.gamma == 0.1
    assert found.objective.disncl.soften is False


@pytest.mark.parametrize(
    "setting",
    ["a_neg", "a_nef=2", "a_neg=many", "a_neg=-1", "negative=opposite", "betas=[1", "gamma=0.5"],
)
def test_what_does_not_fit_is_said(setting, refused):
    refused(settings, setting)
