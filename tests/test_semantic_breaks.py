"""The breaks of `semantic_breaks.yaml`: each is a change of code, and most still apply."""

import ast
import functools
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.semantic_breaks import Break

TESTS = Path(__file__).parent
BREAKS = yaml.safe_load((TESTS / "semantic_breaks.yaml").read_text("utf-8"))


def applies(one):
    path = TESTS.parent / one["file"]
    return path.is_file() and path.read_text("utf-8").count(one["old"]) == 1


@functools.cache
def meaning(file):
    return ast.dump(ast.parse((TESTS.parent / file).read_text("utf-8")))


def test_nearly_all_breaks_still_apply():
    """Mend the entries whose text has moved before there are more of them."""
    gone = [f"{one['file']}: {one['means']}" for one in BREAKS if not applies(one)]
    assert len(gone) <= 5, gone


def test_a_hundred_breaks_are_planted_all_over_the_product():
    planted = [one for one in BREAKS if one["set"] == "planted"]
    assert len(planted) >= 100
    names = Counter((one["file"], one["means"]) for one in BREAKS)
    assert max(names.values()) == 1
    assert {one["file"].split("/")[0] for one in planted} >= {"ncclean", "pipelines", "cli"}


@pytest.mark.parametrize("one", BREAKS, ids=lambda one: f"{one['file']}: {one['means']}")
def test_a_break_is_code_and_names_tests_that_exist(one):
    files = Break(**{**one, "tests": tuple(one.get("tests", ()))}).test_files()
    assert all((TESTS.parent / path).exists() for path in files)
    assert one["old"] != one["new"]
    if applies(one):
        text = (TESTS.parent / one["file"]).read_text("utf-8")
        broken = ast.parse(text.replace(one["old"], one["new"]))
        assert ast.dump(broken) != meaning(one["file"])
