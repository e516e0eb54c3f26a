"""The page of a run and its tables."""

import math
import re
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from ncclean.recipes.folder import RunFolder, StageRecord
from ncclean.recipes.matrix_tables import DETECTION, Means, tables_of
from ncclean.recipes.page import write_page
from ncclean.recipes.tables import result_tables
from tests.pipelines.recipe.recipes import made

TEXT = """\
about: A <b>bold</b> recipe.
stages:
  score:
    shards: x.tar
    model: demo
  a:
    command: finetune
    method: clip
    shards: x.tar
"""


def record(stage, command, **found):
    finished = datetime(2026, 1, 2, tzinfo=timezone.utc).isoformat()
    return StageRecord(
        stage=stage, command=command, identity={}, done=True, seconds=65.0, finished=finished,
        **found,
    )  # fmt: skip


def test_the_page_has_figures_files_and_failures_and_loads_nothing(tmp_path):
    recipe, folder = made(TEXT, tmp_path), RunFolder(tmp_path)
    (tmp_path / "recipe.yaml").write_text("stages: {}\n")
    done = record(
        "score",
        "score",
        figures={"noise rate": "12.5%"},
        made=["${run}/score/scores.parquet", "s3://bucket/e"],
        failures={"00001": "<script>alert(1)</script>"},
    )
    write_page(recipe.name, recipe.about, recipe.stages, folder, {"score": done})
    html = folder.page.read_text()
    assert "12.5%" in html
    assert 'href="score/scores.parquet"' in html
    assert 'href="logs/score.log"' in html
    assert "s3://bucket/e" in html
    assert "1.1 minutes" in html
    assert "1 of 2" in html
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "<b>bold" not in html
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', html)


def test_models_are_columns_named_after_their_stages(tmp_path):
    def result(model, dataset, metrics):
        return {"model": model, "dataset": dataset, "metrics": metrics}

    recipe = made(TEXT, tmp_path)
    found = {
        "results": [
            result("demo", "shapes", {"acc1": 0.5, "acc5": 0.9}),
            result(f"local-dir:{tmp_path}/a", "shapes", {"acc1": 0.75}),
            result("demo", "pairs", {"rsum": 400.0}),
        ]
    }
    records = {"score": record("score", "evaluate zeroshot", result=found)}
    (table,) = result_tables(recipe.stages, records)
    assert table.heads == ("figure", "demo", "a")
    assert table.rows == (("shapes acc1", "50.0%", "75.0%"), ("pairs rsum", "400.0", ""))


@pytest.mark.parametrize("cell", [{}, {"seed": 0}])
def test_two_measurements_of_a_model_are_two_results(cell):
    """Such as by two solvers: the second neither replaces the first nor averages with it."""
    stages, records = {}, {}
    for name, accuracy in (("lbfgs", 0.5), ("adamw", 0.25)):
        result = {"model": "demo", "dataset": "shapes", "metrics": {"lp_acc1": accuracy}}
        stages[name] = SimpleNamespace(name=name, base=name, cell=cell, model=None)
        records[name] = record(name, "evaluate linear-probe", result={"results": [result]})
    (table,) = tables_of(stages, records)
    if cell:
        assert table.rows == (("demo (lbfgs)", "1", "50.0"), ("demo (adamw)", "1", "25.0"))
    else:
        assert table.heads == ("figure", "demo (lbfgs)", "demo (adamw)")
        assert table.rows == (("shapes lp_acc1", "50.0%", "25.0%"),)


def test_noise_is_shown_by_kind_and_what_is_flagged_of_the_clean_pairs(tmp_path):
    def of_kind(kind, auroc):
        return {"kind": kind, "report": {"auroc": auroc}}

    found = {
        "noisy": {"all": 1200, "ncr": 1000, "hard": 200},
        "scores": [
            {"column": "similarity", "kinds": [of_kind("all", 0.75), of_kind("ncr", 0.875)]}
        ],
        "rules": [
            {"rule": "osa_noisy", "noise_caught": {"all": 0.5, "ncr": 0.75}, "clean_kept": 0.9},
            {"rule": "none", "noise_caught": {}, "clean_kept": None},
        ],
    }
    records = {"n": record("n", "evaluate noise", result=found)}
    scores, rules = result_tables(made(TEXT, tmp_path).stages, records)
    kinds = ("all noise (1,200)", "permuted caption (1,000)", "one wrong word (200)")
    assert scores.heads == ("score", *kinds)
    (row,) = scores.rows
    assert row[0] == "similarity"
    assert [float(cell) for cell in row[1:3]] == pytest.approx([0.75, 0.875], abs=0.001)
    assert rules.heads == ("rule", *kinds, "clean pairs")
    first, second = rules.rows
    percent = [float(cell.rstrip(" %")) for cell in (first[1], first[2], first[4])]
    assert percent == [50.0, 75.0, 10.0]
    assert second[4] == first[3]  # nothing is known of either


def test_a_figure_that_some_runs_lack_says_how_many_have_it():
    """Precision where nothing is flagged: the mean of two of three runs was said to be of three."""
    means = Means("")
    for seed, precision in enumerate((0.5, math.nan, 0.7)):
        means.add("osa", {"seed": seed}, "recall", 0.5)
        means.add("osa", {"seed": seed}, "precision", precision)
        means.add("osa", {"seed": seed}, "rate", None)
    ((*_, runs, recall, precision, rate),) = means.table("score", 1).rows
    assert (runs, recall, precision, rate) == ("3", "0.5 ± 0.0", "0.6 ± 0.1 (2)", "-")


def test_repeated_stages_have_a_row_for_each_score_and_the_spread_of_each_figure(tmp_path):
    def found(auroc):
        report = dict.fromkeys(DETECTION, 0.5) | {"auroc": auroc}
        return {"scores": [{"column": "similarity", "kinds": [{"kind": "all", "report": report}]}]}

    def scored(rate):
        return {"noise_rate": rate, "noise_rate_low": rate - 0.1, "noise_rate_high": rate + 0.1}

    stages, records = {}, {}
    for seed, (auroc, rate) in enumerate(((0.8, 0.2), (0.9, 0.3))):
        for base, command, result in (
            ("found", "evaluate noise", found(auroc)),
            ("score", "score", scored(rate)),
        ):
            name = f"{base}--seed-{seed}"
            cell = {"rate": 0.2, "seed": seed}
            stages[name] = SimpleNamespace(name=name, base=base, cell=cell, model=None)
            records[name] = record(name, command, result=result)
    noise, rates = tables_of(stages, records)
    assert noise.heads == ("rate", "score", "runs", "AUROC", "average precision", "precision",
                           "recall", "f1")  # fmt: skip
    assert noise.rows[0][:4] == ("0.2", "similarity", "2", "0.850 ± 0.071")
    assert rates.rows == (("0.2", "score", "2", "15.0 ± 7.1", "25.0 ± 7.1", "35.0 ± 7.1"),)
    folder = RunFolder(tmp_path)
    folder.write_tables((noise, rates))
    assert {path.suffix for path in (tmp_path / "tables").iterdir()} == {".csv", ".tex"}
    assert len(list((tmp_path / "tables").iterdir())) == 4
    (tmp_path / "tables" / "mine.tex").write_text("kept")
    folder.write_tables((rates,))
    assert len(list((tmp_path / "tables").iterdir())) == 3
