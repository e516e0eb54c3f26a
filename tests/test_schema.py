"""The rows of the schema agree with each other, and the facts of a score with its producer."""

import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec

import pyarrow as pa
import pytest

from ncclean.base import schema
from ncclean.base.schema import SCORE_FACTS, ScoreFacts
from ncclean.data.samples import Place
from ncclean.evaluation.noise_choice import BUILT_IN_SCORES

TABLES = {
    "scores": schema.SCORE_COLUMNS,
    "neighbours": schema.NEIGHBOUR_COLUMNS,
    "optional": schema.OPTIONAL_COLUMNS,
    "outcomes": schema.OUTCOME_COLUMNS,
}
COLUMNS = [pytest.param(c, id=f"{t}-{c.name}") for t, table in TABLES.items() for c in table]
SCORES = [pytest.param(name, facts, id=name) for name, facts in SCORE_FACTS.items()]


@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_has_a_meaning_and_a_module_that_computes_it(column):
    assert column.meaning
    assert find_spec(f"ncclean.{column.producer}") is not None
    assert column.field() == pa.field(column.name, column.type)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_names_are_unique(table):
    names = [column.name for column in table]
    assert len(set(names)) == len(names)


def test_calibrated_columns_are_columns_in_the_order_of_the_table():
    names = schema.SCORES.names
    assert set(schema.DICTIONARY_COLUMNS) <= set(names)
    assert list(schema.CALIBRATED_COLUMNS) == [
        "osa_weight", "osa_noisy", "noise_probability", "null_p_value", "clean_posterior",
    ]  # fmt: skip
    assert [names.index(name) for name in schema.CALIBRATED_COLUMNS] == sorted(
        names.index(name) for name in schema.CALIBRATED_COLUMNS
    )


def test_the_table_has_the_places_of_samples():
    assert Place._fields == schema.PLACE_COLUMNS
    assert set(schema.PLACE_COLUMNS) <= set(schema.SCORES.names)


@pytest.mark.parametrize(("name", "facts"), SCORES)
def test_facts_are_coherent(name, facts):
    column = next(c for t in TABLES.values() for c in t if c.name == name)
    assert pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
    if facts.range is not None:
        low, high = facts.range
        assert low < high
        if facts.noise_threshold is not None:
            assert low < facts.noise_threshold < high
    assert not (facts.exclusive and facts.noise_threshold is None)
    # The report draws its curves from the table of scores alone.
    if facts.report_place:
        assert name in schema.SCORES.names
    if facts.evaluation_place:
        optional = [column.name for column in schema.OPTIONAL_COLUMNS]
        assert name in [*schema.SCORES.names, *optional]


def test_every_numeric_score_says_which_direction_is_clean():
    """Widths, counts, positions and cosines within a group say nothing about noise."""
    no_scores = {"row", "caption_number", "width", "height", "block"}
    no_scores |= {"image_offset", "image_size", "sample_offset", "sample_size"}
    no_scores |= {"caption_tokens", "part_count", "worst_part_number"}
    no_scores |= {"image_group_similarity", "text_group_similarity", "cluster"}
    numeric = {
        column.name
        for column in (*schema.SCORE_COLUMNS, *schema.OPTIONAL_COLUMNS, *schema.NEIGHBOUR_COLUMNS)
        if pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
    }
    assert numeric - no_scores == set(SCORE_FACTS)


def test_shares_lie_between_0_and_1():
    assert {name for name, facts in SCORE_FACTS.items() if facts.is_share} == {
        "ncu_confidence", "noise_probability", "null_p_value", "clean_posterior",
        "near_miss_probability", "part_noise_probability",
    }  # fmt: skip


def test_directions():
    assert {name for name, facts in SCORE_FACTS.items() if facts.higher_is_cleaner} == {
        "similarity", "osa_weight", "ncu_confidence", "neg_clip_loss", "clean_posterior",
        "reference_similarity", "canonical_similarity", "word_margin", "near_miss_score",
        "worst_part_similarity", "mean_part_similarity",
    }  # fmt: skip


def test_places_order_the_scores_without_ties():
    assert list(schema.REPORT_SCORES) == [
        "noise_probability", "similarity", "neg_clip_loss", "ncu_confidence", "osa_weight",
        "clean_posterior",
    ]  # fmt: skip
    assert list(schema.EVALUATED_SCORES) == [
        "similarity", "osa_weight", "ncu_confidence", "neg_clip_loss", "noise_probability",
        "null_p_value", "clean_posterior", "i2t_rank", "t2i_rank",
        "word_margin", "near_miss_score", "near_miss_probability", "canonical_similarity",
        "worst_part_similarity", "mean_part_similarity", "part_noise_probability",
    ]  # fmt: skip
    for places in (
        [facts.report_place for facts in schema.REPORT_SCORES.values()],
        [facts.evaluation_place for facts in schema.EVALUATED_SCORES.values()],
    ):
        assert places == list(range(1, len(places) + 1))


def test_a_score_without_places_is_left_out():
    optional = {field.name: field.default for field in fields(ScoreFacts)}
    assert optional["report_place"] == optional["evaluation_place"] == 0
    assert "lemon_score" not in schema.REPORT_SCORES | schema.EVALUATED_SCORES


def test_evaluate_noise_reads_the_rows():
    assert [score.column for score in BUILT_IN_SCORES] == list(schema.EVALUATED_SCORES)
    conditions = {
        score.column: score.condition(score.threshold)
        for score in BUILT_IN_SCORES
        if score.threshold is not None
    }
    assert conditions == {
        "osa_weight": "osa_weight <= 0",
        "noise_probability": "noise_probability >= 0.5",
        "null_p_value": "null_p_value >= 0.05",
        "clean_posterior": "clean_posterior < 0.5",
        "i2t_rank": "i2t_rank >= 1",
        "t2i_rank": "t2i_rank >= 1",
        "near_miss_probability": "near_miss_probability >= 0.5",
        "part_noise_probability": "part_noise_probability >= 0.5",
    }


def test_the_schema_loads_nothing_but_pyarrow():
    code = (
        "import sys, ncclean.base.schema, ncclean.base.rules;"
        "print({'torch', 'duckdb', 'sklearn', 'scipy', 'ncclean.scoring'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "set()", result.stderr
