"""Values of options as people type them."""

import math

import pytest

from ncclean.base.option_values import as_list, closest, numbers_by_name


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
