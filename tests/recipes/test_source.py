"""YAML with the lines of its values."""

import pytest

from ncclean.errors import InputError
from ncclean.recipes.source import RecipeError, parse, read_source

TEXT = """\
vars:
  data: /x

stages:
  score:
    shards:
      - a
      - b
  bare:
"""


def test_lines_of_keys_and_items():
    lines = parse(TEXT, "r.yaml").lines
    assert lines[("vars", "data")] == 2
    assert lines[("stages", "score", "shards")] == 6
    assert lines[("stages", "score", "shards", 1)] == 8


def test_an_error_names_the_nearest_line():
    error = parse(TEXT, "r.yaml").error(("stages", "score", "model", "x"), "is wrong")
    assert str(error) == "r.yaml, line 5: is wrong"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", "r.yaml, line 3: not YAML"),
        ("stages:\n  a:\n    x: 1\n    y: 2\n    x: 3\n", "r.yaml, line 5: x is given already "
         "in line 3"),
        ("- a\n- b\n", "r.yaml, line 1: a recipe is a mapping"),
        ("", "r.yaml, line 1: a recipe is a mapping"),
        ("a: !!python/object:os.system x\n", "r.yaml, line 1"),
    ],
)  # fmt: skip
def test_what_is_no_recipe_is_refused_with_the_line(text, message):
    with pytest.raises(RecipeError) as raised:
        parse(text, "r.yaml")
    assert str(raised.value).startswith(message)


def test_files_that_cannot_be_read(tmp_path, refused):
    refused(read_source, tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    refused(read_source, tmp_path / "bytes.yaml")


def test_set_changes_options_variables_and_the_engine():
    source = parse(TEXT, "r.yaml")
    for change in ("score.batch_size=64", "data=/mnt", "engine.workers=4", "bare.epochs=1e-5"):
        source.change(change)
    assert source.values == {
        "vars": {"data": "/mnt"},
        "engine": {"workers": 4},
        "stages": {
            "score": {"shards": ["a", "b"], "batch_size": 64},
            "bare": {"epochs": "1e-5"},  # YAML's idea of a number; pydantic reads it as one
        },
    }
    assert str(source.error(("stages", "score", "batch_size"), "no")) == (
        "--set score.batch_size: no"
    )
    assert str(source.error(("vars", "data"), "no")) == "--set data: no"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("score", "--set takes KEY=VALUE"),
        ("=3", "--set takes KEY=VALUE"),
        ("scores.a=1", "no stage 'scores'; the stages are score, bare"),
        ("dat=/mnt", "no variable 'dat'"),
        ("score.a=[1", "not YAML"),
    ],
)
def test_a_change_that_fits_nothing_is_refused(change, message):
    with pytest.raises(InputError) as raised:
        parse(TEXT, "r.yaml").change(change)
    assert message in str(raised.value)


def test_what_a_person_gave_is_named_as_they_gave_it():
    source = parse(TEXT, "r.yaml")
    source.change("score.model=x", "--model")
    source.change("score.seed=1")
    assert str(source.error(("stages", "score", "model"), "wrong")) == "--model: wrong"
    assert str(source.error(("stages", "score", "seed"), "wrong")) == "--set score.seed: wrong"


def test_aliases_of_aliases_are_a_sentence_and_not_a_billion_values(refused):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    refused(parse, "\n".join(lines), "r.yaml")


def test_nesting_without_end_is_a_sentence(refused):
    refused(parse, "stages: " + "[" * 5_000 + "]" * 5_000, "r.yaml")
