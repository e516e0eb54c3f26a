"""The SQL of a policy over hand-made tables, and the options that do not go together."""

import duckdb
import pytest

from ncclean.base.rules import METHODS
from ncclean.base.schema import SCORE_FACTS
from ncclean.errors import InputError
from ncclean.selection.policy import Policy, identifier

RANGED = {name: facts.range for name, facts in SCORE_FACTS.items() if facts.range is not None}


def evaluate(expression: str, rows: str, *columns: str) -> list[object]:
    """The values of an expression over `VALUES` rows with these columns, in the order of the id."""
    names = ", ".join(("id", *columns))
    sql = f"SELECT {expression} FROM (VALUES {rows}) AS t({names}) ORDER BY id"
    return [row[0] for row in duckdb.sql(sql).fetchall()]


def test_without_a_method_every_pair_passes():
    assert Policy().rule() is None
    assert Policy().goodness() is None
    assert Policy().bound() is None
    assert Policy().weight() == "1.0"
    assert Policy().to_json() == {}


@pytest.mark.parametrize(
    ("options", "rows", "kept"),
    [
        ({"method": "osa"}, "(1, 0.0), (2, 1e-9), (3, 0.5), (4, NULL)", [2, 3]),
        ({"method": "ncu"}, "(1, 'forget'), (2, 'retain'), (3, NULL)", [2]),
        ({"method": "ncu", "with_forget": True}, "(1, 'forget'), (2, 'retain'), (3, NULL)", [1, 2]),
        ({"method": "disncl"}, "(1, true), (2, false), (3, NULL)", [1]),
        ({"method": "noise-probability"}, "(1, 0.49), (2, 0.5), (3, 0.51), (4, NULL)", [1]),
        ({"method": "noise-probability", "threshold": 0.2}, "(1, 0.1), (2, 0.2), (3, 0.3)", [1]),
        ({"method": "noise-probability", "threshold": 0.0}, "(1, 0.0), (2, 0.1)", []),
        # The threshold is that of the score, and the method keeps its own.
        (
            {"method": "noise-probability", "score": "similarity", "threshold": 0.9},
            "(1, 0.4), (2, 0.6)",
            [1],
        ),
    ],
)
def test_a_method_keeps(options, rows, kept):
    policy = Policy(**options)
    column = METHODS[policy.method].column
    passes = evaluate(policy.rule(), rows, column)
    assert [number for number, passed in enumerate(passes, 1) if passed] == kept


@pytest.mark.parametrize("score", SCORE_FACTS)
def test_goodness_rises_with_cleanliness(score):
    policy = Policy(score=score, threshold=0.5)
    rows = "(1, '0.25'::FLOAT), (2, '0.75'), (3, NULL), (4, 'nan'), (5, 'inf')"
    low, high, *without = evaluate(policy.goodness(), rows, score)
    assert without == [None, None, None]
    if SCORE_FACTS[score].higher_is_cleaner:
        assert (low, high, policy.bound(), policy.prefers_low) == (0.25, 0.75, 0.5, False)
    else:
        assert (low, high, policy.bound(), policy.prefers_low) == (-0.25, -0.75, -0.5, True)


def test_other_columns_prefer_high_values_unless_lowest():
    assert Policy(score="mine", threshold=3).bound() == 3
    assert Policy(score="mine", threshold=3, lowest=True).bound() == -3
    assert Policy(score="mine", threshold=3, lowest=True).prefers_low


def test_a_column_name_is_quoted():
    assert identifier('a "b"') == '"a ""b"""'
    policy = Policy(score='my "score"', threshold=1, weights="my weight")
    assert '"my ""score"""' in policy.goodness()
    assert policy.weight() == '"my weight"'


@pytest.mark.parametrize(("method", "weight"), [("osa", '"osa_weight"'), ("ncu", "1.0")])
def test_weights(method, weight):
    assert Policy(method=method).weight() == weight
    assert Policy(method=method, weights="mine").weight() == '"mine"'


@pytest.mark.parametrize(
    ("method", "column"),
    [
        ("osa", "osa_weight"),
        ("ncu", "ncu_split"),
        ("disncl", "disncl_clean"),
        ("noise-probability", "noise_probability"),
    ],
)
def test_columns_name_the_option_that_needs_them(method, column):
    always = dict.fromkeys(("uid", "shard", "key", "row", "status"), "select")
    policy = Policy(method=method, score="similarity", threshold=0.1, weights="mine")
    assert policy.columns() == {
        **always, column: f"--method {method}", "mine": "--weights",
    }  # fmt: skip
    assert Policy().columns() == always


@pytest.mark.parametrize(("score", "bounds"), RANGED.items(), ids=RANGED)
def test_thresholds_lie_in_the_range_of_the_score(score, bounds, refused):
    for bound, step in zip(bounds, (-1e-6, 1e-6), strict=True):
        assert Policy(score=score, threshold=bound).threshold == bound
        refused(Policy, score=score, threshold=bound + step)


def test_a_range_is_said_in_the_message(refused):
    with pytest.raises(InputError) as caught:
        Policy(score="similarity", threshold=30)
    assert str(caught.value) == "--threshold 30 is outside the range of similarity, -1 to 1"
    refused(Policy, method="noise-probability", threshold=1.5)


@pytest.mark.parametrize("score", ["neg_clip_loss", "lemon_score", "i2t_rank", "mine"])
def test_scores_without_a_range_take_any_threshold(score):
    assert Policy(score=score, threshold=-1e9).threshold == -1e9


@pytest.mark.parametrize(
    "options",
    [
        {"method": "magic"},
        {"dedup_by": "caption"},
        {"score": "similarity", "keep_fraction": -0.1},
        {"keep_fraction": 0.5},
        {"score": "similarity"},
        {"threshold": 0.5},
        {"threshold": 0.5, "method": "ncu"},
        {"lowest": True},
        {"with_forget": True},
        {"method": "disncl", "with_forget": True},
        {"where": "a; b"},
    ],
)
def test_options_that_do_not_go_together(options, refused):
    refused(Policy, **options)


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_a_fraction_may_be_nothing_or_everything(fraction):
    assert Policy(score="similarity", keep_fraction=fraction).keep_fraction == fraction


def test_where_is_one_expression_with_its_precedence():
    policy = Policy(where="value = 1 OR value = 2 -- a comment")
    kept = evaluate(f"({policy.where}) AND id > 1", "(1, 1), (2, 2), (3, 3)", "value")
    assert kept == [False, True, False]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "ncu", "with_forget": True},
        {"score": "similarity", "threshold": 0.0, "lowest": True},
        {"score": "similarity", "keep_fraction": 0.0},
    ],
)
def test_json_has_what_differs_from_the_defaults(options):
    """A threshold of 0 is not the same as none."""
    assert Policy(**options).to_json() == options
