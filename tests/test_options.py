"""Options as annotated fields: what they accept, and how groups of them become one list."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from ncclean_pipelines.evaluate_noise import EvaluateNoise

from ncclean.base.estimates import UNKNOWN, Estimate, flattened
from ncclean.base.formats import interval, on_workers, short_rate, stated_rate
from ncclean.base.option_values import as_list, build_options, numbers_by_name
from ncclean.base.options import (
    EXTRAS,
    MISSING,
    Option,
    OptionError,
    Options,
    closest,
    parameters,
    value_of,
)
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
    refused(lambda: Bakery("town", oven=Oven(heat=-1)))


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


# Values of options as people type them.


def test_numbers_by_name():
    assert numbers_by_name("takes a=1", ["similarity = 0.25", "x=y=-1e3"], float) == {
        "similarity": 0.25,
        "x=y": -1000.0,
    }
    assert numbers_by_name("takes a=1", {"a": 2}, int, least=1) == {"a": 2}
    assert numbers_by_name("takes a=1", ["a=-inf"], float) == {"a": -math.inf}


@pytest.mark.parametrize("text", ["a", "a=", "=1", " =1", "a=x", "a=1.5", "a=0", "a=-1"])
def test_what_is_no_number_of_a_name_is_refused(text, refused):
    refused(numbers_by_name, "--x takes a=1", [text], int, least=1)


def test_nan_is_no_number(refused):
    refused(numbers_by_name, "--x takes a=1", ["a=nan"], float)


def test_values_as_lists():
    assert as_list(None) == []
    assert as_list("ab") == ["ab"]
    assert as_list(("a", "b")) == ["a", "b"]
    assert as_list({"a": 1}) == ["a"]


def test_the_closest_word():
    assert closest("similarty", ["similarity", "text"]) == " (did you mean similarity?)"
    assert closest("zzz", ["similarity", "text"]) == ""


# A share with its interval, to metadata and JSON and back.


@dataclass(frozen=True)
class Trial:
    pairs: int
    rate: Estimate
    other: Estimate = UNKNOWN


def test_json_has_three_fields_of_it_and_none_for_what_is_not_known():
    assert asdict(Trial(3, Estimate(0.2, 0.1)), dict_factory=flattened) == {
        "pairs": 3, "rate": 0.2, "rate_low": 0.1, "rate_high": None,
        "other": None, "other_low": None, "other_high": None,
    }  # fmt: skip


def test_it_is_read_from_what_it_wrote():
    rate = Estimate(0.2, 0.1, 0.3)
    metadata = {name: str(value) for name, value in rate.fields("noise_rate").items()}
    assert Estimate.of_fields(metadata, "noise_rate") == rate
    unknown = {name: str(value) for name, value in UNKNOWN.fields("noise_rate").items()}
    assert Estimate.of_fields(unknown, "noise_rate") == UNKNOWN == Estimate.of_fields({}, "x")
    broken = Estimate.of_fields({"rate": "0.2", "rate_low": "a", "rate_high": None}, "rate")
    assert (broken.value, broken.is_known, broken.has_interval) == (0.2, True, False)


def test_a_rate_of_zero_is_known():
    fields = {"rate": 0.0, "rate_low": 0.0, "rate_high": 0.1}
    assert Estimate.of_fields(fields, "rate") == Estimate(0.0, 0.0, 0.1)


def test_an_interval_has_both_ends():
    assert Estimate(0.2, 0.1, 0.3).has_interval
    assert not Estimate(0.2, 0.1).has_interval
    assert not Estimate(0.2, high=0.3).has_interval


# Numbers as text.


def test_a_corpus_that_may_be_clean_is_not_called_noisy():
    """The most that it may be comes first; the rest of the intervals are as ever."""
    maybe = Estimate(0.071, 0.0, 0.123)
    assert short_rate(maybe) == "at most 12.3%"
    assert stated_rate(maybe).startswith("at most 12.3%")
    assert "7.1%" in stated_rate(maybe)
    for rate in (Estimate(0.2, 0.1, 0.3), Estimate(0.0, 0.0, 0.01), UNKNOWN):
        assert stated_rate(rate) == interval(rate)
        assert "most" not in short_rate(rate)


@pytest.mark.parametrize(("workers", "busy"), [(8, 8), (64, 8)])
def test_workers_without_work_are_named(workers, busy):
    text = on_workers(2.5, workers, busy)
    assert text.startswith(f"2.50 hours on {workers} workers")
    assert ("at most 8 can be busy" in text) == (busy < workers)


@dataclass(frozen=True)
class Renamed(Options):
    """An option that had another name."""

    flame: Annotated[int, Option("Flame.", former="heat")] = 3


def test_a_former_name_is_taken_with_a_warning(caplog):
    assert build_options(Renamed, {"flame": 4}, "cook").flame == 4
    assert not caplog.messages
    assert build_options(Renamed, {"heat": "5"}, "cook").flame == 5
    assert caplog.messages == [
        "--heat is called --flame now; the next version knows this name only"
    ]
