"""The detection rules against the schema and against DuckDB, and the ratios by hand."""

import math

import duckdb
import numpy as np
import pytest

from ncclean.base.rules import METHODS, RULES, DetectionCounts, Rule, flagging_condition
from ncclean.base.schema import SCORE_COLUMNS, SCORE_FACTS, SCORES

TITLED = [pytest.param(rule, id=rule.title) for rule in RULES]


@pytest.fixture
def table():
    """Every value on which a rule or a method can turn, one row each; the rest is null."""
    half = float(np.nextafter(np.float32(0.5), np.float32(0)))
    values = {
        "osa_noisy": [True, False],
        "osa_weight": [0.0, 1e-30, 0.5],
        "ncu_split": ["forget", "retain"],
        "disncl_clean": [True, False],
        "noise_probability": [0.0, half, 0.5, 1.0],
        "clean_posterior": [0.0, half, 0.5, 1.0],
    }
    connection = duckdb.connect()
    columns = ", ".join(f"{c.name} {c.sql_type}" for c in SCORE_COLUMNS)
    connection.execute(f"CREATE TABLE scores ({columns})")
    for name, column in values.items():
        for value in column:
            connection.execute(f"INSERT INTO scores ({name}) VALUES (?)", [value])
    return connection


def rows(table, expression, column):
    return dict(
        table.execute(
            f"SELECT {column}, {expression} FROM scores WHERE {column} IS NOT NULL"
        ).fetchall()
    )


@pytest.mark.parametrize("rule", TITLED)
def test_columns_are_those_of_the_condition(rule, table):
    assert rule.columns
    assert set(rule.columns) <= set(SCORES.names)
    absent = [name for name in SCORES.names if name not in rule.columns]
    table.execute(f"CREATE VIEW few AS SELECT * EXCLUDE ({', '.join(absent)}) FROM scores")
    table.execute(f"SELECT {rule.condition} FROM few")  # needs nothing else
    for name in rule.columns:
        with pytest.raises(duckdb.BinderException):
            table.execute(f"SELECT {rule.condition} FROM (SELECT * EXCLUDE ({name}) FROM scores)")


@pytest.mark.parametrize("rule", TITLED)
def test_a_pair_without_a_value_is_neither_flagged_nor_kept(rule, table):
    everywhere = " AND ".join(f"{name} IS NULL" for name in rule.columns)
    expressions = [rule.condition] + ([rule.method.keeps] if rule.method else [])
    if rule.method is not None:
        everywhere += f" AND {rule.method.column} IS NULL"
    for expression in expressions:
        values = table.execute(f"SELECT DISTINCT {expression} FROM scores WHERE {everywhere}")
        assert values.fetchall() == [(None,)]


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.method is not None])
def test_a_method_keeps_exactly_what_its_rule_does_not_flag(rule, table):
    (column,) = rule.columns
    if rule.method.column == column:
        flagged, kept = (rows(table, e, column) for e in (rule.condition, rule.method.keeps))
        assert flagged
        assert {value: not flag for value, flag in flagged.items()} == kept
    else:
        assert rule.method.name == "osa"  # osa_noisy is true where osa_weight is 0
        assert rows(table, "osa_weight > 0", "osa_weight") == rows(
            table, rule.method.keeps, "osa_weight"
        )


@pytest.mark.parametrize("rule", [rule for rule in RULES if set(rule.columns) & set(SCORE_FACTS)])
def test_a_rule_on_a_score_flags_its_noisy_side(rule, table):
    (column,) = rule.columns
    facts = SCORE_FACTS[column]
    low, high = facts.range
    flagged = rows(table, rule.condition, column)
    assert flagged[low] is facts.higher_is_cleaner
    assert flagged[high] is not facts.higher_is_cleaner
    assert flagged[facts.noise_threshold] is not facts.exclusive


def test_names_for_the_terminal_and_for_the_page():
    assert [(rule.title, rule.name) for rule in RULES] == [
        ("osa_noisy", "osa_noisy"),
        ("ncu forget", "ncu_split = forget"),
        ("not disncl_clean", "not disncl_clean"),
        ("noise_probability >= 0.5", "noise_probability ≥ 0.5"),
        ("clean_posterior < 0.5", "clean_posterior < 0.5"),
    ]
    assert [rule.short for rule in RULES] == [
        "OSA", "NCU", "DisNCL", "p\N{NO-BREAK SPACE}≥\N{NO-BREAK SPACE}½", "Mixture",
    ]  # fmt: skip
    assert list(METHODS) == ["osa", "ncu", "disncl", "noise-probability"]
    assert Rule("mine", "width < 100").columns == ()


@pytest.mark.parametrize(
    ("cleaner", "exclusive", "sign"),
    [(True, False, "<="), (True, True, "<"), (False, False, ">="), (False, True, ">")],
)
def test_the_sign_of_a_threshold(cleaner, exclusive, sign):
    condition = flagging_condition("x", 1 / 3, higher_is_cleaner=cleaner, exclusive=exclusive)
    assert condition == f"x {sign} 0.3333333333333333"
    large = flagging_condition("x", 12345, higher_is_cleaner=cleaner, exclusive=exclusive)
    assert large == f"x {sign} 12345"


def test_ratios_by_hand():
    counts = DetectionCounts(caught=6, alarms=2, noisy=10, clean=30)
    assert counts.flagged == 8
    assert counts.precision == 6 / 8
    assert counts.recall == 6 / 10
    assert counts.f1 == pytest.approx(2 * 0.75 * 0.6 / (0.75 + 0.6))
    assert counts.accuracy == (6 + 28) / 40
    assert counts.clean_kept == 28 / 30
    assert counts.clean_flagged == 2 / 30


def test_a_ratio_without_a_denominator_is_nan():
    nothing = DetectionCounts(caught=0, alarms=0, noisy=0, clean=0)
    for name in ("precision", "recall", "f1", "accuracy", "clean_kept", "clean_flagged"):
        assert math.isnan(getattr(nothing, name)), name
