"""Options of a stage: all that a command takes, and what the request has besides."""

import dataclasses
from dataclasses import MISSING, dataclass, field

import pytest
import typer
from ncclean_cli.app import app
from pipelines.recipe.commands import COMMANDS
from pipelines.recipe.options import build, flatten

# Decided by the run, about how a result is shown, or a way to set options.
_NOT_OPTIONS = {"json_", "quiet", "overwrite", "resume", "dry_run", "finalize_only", "set_"}
# Arguments and options that a recipe calls otherwise, by what they hold.
_RENAMED = {
    ("select", "paths"): "scores",
    ("report", "paths"): "scores",
    # A list of words on the command line, a switch for each in a recipe.
    ("finetune", "disncl_variant"): "bounded_adversary",
}
# Commands that are no step from shards to a model.
# The last two look into the folder of one run, beside what a stage would make.
_NO_STAGES = {"query", "run", "demo", "evaluate disentanglement", "evaluate weights"}


def commands():
    top = typer.main.get_command(app).commands
    for name, command in top.items():
        for inner, each in getattr(command, "commands", {}).items():
            yield f"{name} {inner}", each
        if not hasattr(command, "commands"):
            yield name, command


def test_every_command_is_a_stage_or_known_not_to_be():
    assert {name for name, _ in commands()} - _NO_STAGES == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_recipe_knows_every_option_of_the_command(name):
    known = set(COMMANDS[name].options)
    for parameter in dict(commands())[name].params:
        option = _RENAMED.get((name, parameter.name), parameter.name.rstrip("_"))
        if parameter.name not in _NOT_OPTIONS:
            assert option in known, f"the recipe's {name} has no {option}"


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_says_of_its_options_are_options(name):
    command = COMMANDS[name]
    assert set(command.reads) <= set(command.options)
    assert set(command.inside) <= set(command.options)
    assert "out" in command.options


@dataclass(frozen=True)
class Inner:
    seed: int = 0
    mode: str = "a"
    size: int = 3


@dataclass(frozen=True)
class Other:
    seed: int = 0
    mode: str = "b"


@dataclass(frozen=True)
class Request:
    shards: list[str]
    inner: Inner = field(default_factory=Inner)
    other: Other = field(default_factory=Other)
    hidden: bool = False


def test_fields_are_flat_shared_or_named_after_their_owner():
    options = flatten(Request, {"inner.size": "length"}, ["hidden"])
    assert list(options) == ["shards", "seed", "mode", "length", "other_mode"]
    assert options["shards"].default is MISSING
    assert options["shards"].is_list
    assert options["seed"].places == (("inner", "seed"), ("other", "seed"))
    assert options["other_mode"].default == "b"
    request = build(Request, options, {"shards": ["x"], "seed": 5, "length": 4, "other_mode": "c"})
    assert request == Request(["x"], Inner(5, "a", 4), Other(5, "c"))


def test_what_is_not_given_keeps_the_default_of_the_request():
    options = flatten(Request)
    assert build(Request, options, {"shards": []}) == Request([])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_field_of_a_request_can_be_set(name):
    command = COMMANDS[name]
    places = {place for option in command.options.values() for place in option.places}
    for each in dataclasses.fields(command.request):
        reached = any(place[0] == each.name for place in places)
        assert reached or each.name in {*_NOT_OPTIONS, "made"}, each.name
