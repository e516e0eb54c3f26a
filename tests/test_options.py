"""Options as annotated fields: what they accept, and how groups of them become one list."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from ncclean_pipelines.evaluate_noise import EvaluateNoise

from ncclean.base.options import EXTRAS, MISSING, Option, OptionError, Options, parameters, value_of
from ncclean.errors import InputError


@dataclass(frozen=True)
class Kitchen(Options):
    """One of everything."""

    pans: Annotated[int, Option("Pans.", low=1, high=9)] = 3
    heat: Annotated[float | None, Option("Heat.", above=0, below=1)] = None
    fuel: Annotated[Literal["gas", "wood"], Option("Fuel.")] = "gas"
    dishes: Annotated[Sequence[Literal["soup", "cake"]], Option("Dishes.")] = ()
    shares: Annotated[Sequence[float], Option("Shares.", low=0, high=1)] = ()
    menu: Annotated[str | None, Option("Menu.", endings=(".pdf", ".txt"))] = None
    is_open: Annotated[bool, Option("Open.", low=5)] = True
    cook: str = "nobody"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pans": 0}, "--pans must be at least 1, got 0"),
        ({"pans": 10}, "--pans must be at most 9, got 10"),
        ({"heat": 0.0}, "--heat must be above 0, got 0"),
        ({"heat": 1.0}, "--heat must be below 1, got 1"),
        ({"heat": 1.0000001}, "--heat must be below 1, got 1.0000001"),
        ({"heat": float("nan")}, "--heat must be above 0, got nan"),
        ({"shares": [0.5, 1.5]}, "--shares must be at most 1, got 1.5"),
        ({"fuel": "coal"}, "--fuel takes gas, wood, got 'coal'"),
        ({"fuel": False}, "--fuel takes gas, wood, got False"),
        ({"dishes": ["soup", "stone"]}, "--dishes takes soup, cake, got 'stone'"),
        ({"menu": "menu.doc"}, "--menu takes a file ending in .pdf, .txt, got menu.doc"),
    ],
)
def test_values_out_of_range_are_refused_with_the_flag(values, message):
    with pytest.raises(OptionError) as error:
        Kitchen(**values)
    assert str(error.value) == message
    assert error.value.option == next(iter(values))


@pytest.mark.parametrize(
    "values",
    [
        {"pans": 1},
        {"pans": 9},
        {"heat": 0.5},
        {"heat": None},
        {"dishes": ("cake",)},
        {"shares": [0, 1]},
        {"menu": "MENU.PDF"},
        {"menu": None},
        {"is_open": False},  # a bool is no number
        {"cook": "anything"},
    ],
)
def test_values_in_range_are_taken(values):
    kitchen = Kitchen(**values)
    assert {name: getattr(kitchen, name) for name in values} == values


def test_parameters_tell_what_a_field_takes():
    known = parameters(Kitchen)
    assert list(known) == ["pans", "heat", "fuel", "dishes", "shares", "menu", "is_open"]
    assert known["fuel"].choices == ("gas", "wood")
    assert known["dishes"].choices == ("soup", "cake")
    assert known["pans"].choices == ()
    assert [name for name, one in known.items() if one.is_list] == ["dishes", "shares"]
    assert known["shares"].takes == list[float]
    assert known["is_open"].flag == "--is-open"
    assert known["pans"].default == 3
    assert not any(one.is_required for one in known.values())


@dataclass(frozen=True)
class Oven(Options):
    methods: ClassVar = ("bake",)

    heat: Annotated[int, Option("Heat.", low=0, name="oven_heat")] = 200
    fan: Annotated[bool, Option("Fan.", methods=("bake", "dry"))] = False


@dataclass(frozen=True)
class Bakery(Options):
    where: Annotated[str, Option("Where.", flags=("-w", "--place"))]
    staff: Annotated[Mapping[str, int] | Sequence[str], Option("Staff.")] = ()
    oven: Oven = field(default_factory=Oven)
    names: Annotated[Sequence[str], Option("Names.")] = field(default_factory=lambda: ["a"])


def test_groups_are_flattened_by_name():
    known = parameters(Bakery)
    assert {name: one.place for name, one in known.items()} == {
        "where": ("where",),
        "staff": ("staff",),
        "oven_heat": ("oven", "heat"),
        "fan": ("oven", "fan"),
        "names": ("names",),
    }
    assert known["oven_heat"].flag == "--oven-heat"
    assert known["where"].flag == "--place"
    assert known["where"].is_required
    assert known["where"].default is MISSING
    assert known["names"].default == ["a"]
    assert known["staff"].is_mapping
    assert known["staff"].is_list
    bakery = Bakery("town", oven=Oven(heat=90))
    assert value_of(bakery, known["oven_heat"]) == 90
    assert value_of(bakery, known["where"]) == "town"


def test_a_group_says_whose_options_it_holds():
    known = parameters(Bakery)
    assert known["oven_heat"].option.methods == ("bake",)
    assert known["fan"].option.methods == ("bake", "dry")
    assert known["where"].option.methods == ()


def test_groups_check_their_own(refused):
    refused(Bakery, "town", oven=Oven(heat=-1))


@dataclass(frozen=True)
class Twice(Options):
    oven_heat: Annotated[int, Option("Heat.")] = 1
    oven: Oven = field(default_factory=Oven)


def test_a_name_twice_is_a_mistake_of_the_declaration():
    with pytest.raises(TypeError, match="Twice has two options called 'oven_heat'"):
        parameters(Twice)


def test_errors_survive_a_process():
    error = pickle.loads(pickle.dumps(OptionError("pans", "--pans must be at least 1, got 0")))
    assert isinstance(error, OptionError)
    assert isinstance(error, InputError)
    assert (error.option, str(error)) == ("pans", "--pans must be at least 1, got 0")


def test_what_is_not_installed_is_named_before_anything_starts(monkeypatch, refused):
    monkeypatch.setattr("ncclean.base.options.find_spec", lambda name: None)
    refused(EvaluateNoise, scores=["s.parquet"], plot="noise.pdf")
    EvaluateNoise(scores=["s.parquet"])


def test_extras_are_those_of_the_project():
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8")
    for extra, module in EXTRAS.items():
        assert re.search(rf'^{extra} = \["{module}>=', text, re.M)
