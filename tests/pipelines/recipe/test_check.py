"""Inputs that are not there and columns that nothing produces, found before anything starts."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.recipe.check import check_columns, check_inputs, inputs_of

from ncclean.base.options import Reads
from ncclean.recipes.source import RecipeError

from .recipes import made

SCORE = "stages:\n  score:\n    shards: /s\n    model: demo\n    embeddings: true\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stages:\n  score:\n    shards: {here}/none.tar\n", "line 3: {here}/none.tar does not"),
        ("stages:\n  score:\n    shards: [{here}/a.tar, {here}/b.tar]\n    model: demo\n",
         "line 3: {here}/b.tar does not exist"),
        ("stages:\n  score:\n    shards: '{here}/{{0..2}}.tar'\n", "line 3: {here}/0.tar does not"),
        ("stages:\n  score:\n    shards: {here}/a.tar\n    model: demi\n",
         "line 4: no model called 'demi'; did you mean demo"),
        ("stages:\n  score:\n    shards: {here}/a.tar\n    model: local-dir:{here}\n",
         "line 4: {here} holds no open_clip_config.json"),
        ("stages:\n  score:\n    shards: {here}/a.tar\n    model: {here}/x.pt\n",
         "line 4: {here}/x.pt does not exist"),
        ("stages:\n  score:\n    shards: {here}/a.tar\n    model: ViT-B-32\n    pretrained: x\n",
         "line 4: --pretrained x is neither"),
        ("stages:\n  select:\n    scores: {here}/s.parquet\n", "line 3: {here}/s.parquet does not"),
        ("stages:\n  neighbours:\n    embeddings: {here}/e\n", "line 3: {here}/e does not exist"),
    ],
)  # fmt: skip
def test_an_input_that_is_not_there_is_named_with_the_line(tmp_path, text, message):
    (tmp_path / "a.tar").touch()
    recipe = made(text.format(here=tmp_path), tmp_path / "run")
    with pytest.raises(RecipeError) as raised:
        check_inputs(recipe)
    assert str(raised.value).startswith(f"r.yaml, {message.format(here=tmp_path)}")


def test_a_stage_may_leave_its_model_to_the_default(tmp_path):
    (tmp_path / "a.tar").touch()
    check_inputs(made(f"stages:\n  score:\n    shards: {tmp_path}/a.tar\n", tmp_path / "run"))


def test_what_stages_make_is_not_looked_for(tmp_path):
    (tmp_path / "a.tar").touch()
    recipe = made(
        "stages:\n"
        f"  score:\n    shards: {tmp_path}/a.tar\n    model: demo\n"
        "  select:\n    scores: ['${score}', '${run}/more.parquet']\n"
        f"  a:\n    command: finetune\n    method: clip\n    "
        f"shards: ['{tmp_path}/a.tar', '${{run}}/x']\n"
        "    selection: ${select}\n    model: demo\n"
        "  b:\n    command: score\n    shards: ${run}/x\n    model: ${a}\n",
        tmp_path / "run",
    )
    check_inputs(recipe)
    assert list(inputs_of(recipe.stages["a"])) == [
        ("shards", Reads.SHARDS, f"{tmp_path}/a.tar"),
        ("model", Reads.MODEL, "demo"),
    ]
    assert list(inputs_of(recipe.stages["select"])) == []


@pytest.mark.parametrize(
    ("stage", "line", "column"),
    [
        ("  select:\n    scores: ${score}\n    score: beauty\n    threshold: 1\n", 8, "beauty"),
        ("  select:\n    scores: ${score}\n    weights: osa_wait\n", 8, "osa_wait"),
        ("  select:\n    scores: ${score}\n    where: width > 3 AND hight > 3\n", 8, "hight"),
        ("  n:\n    command: evaluate noise\n    scores: ${score}\n    column: [similarity, x]\n",
         9, "'x'"),
        ("  n:\n    command: evaluate noise\n    scores: ${score}\n    threshold: {similar: 0.2}\n",
         9, "similar"),
        ("  n:\n    command: evaluate noise\n    scores: ${score}\n    rule: [width > 3, depth < 2]"
         "\n", 9, "depth"),
        ("  export:\n    selection: x\n    shards: /s\n    scores: ${score}\n"
         "    columns: [similarity, age]\n", 10, "age"),
    ],
)  # fmt: skip
def test_a_column_that_no_stage_produces_is_named_with_the_line(tmp_path, stage, line, column):
    with pytest.raises(RecipeError) as raised:
        check_columns(made(SCORE + stage, tmp_path))
    assert str(raised.value).startswith(f"r.yaml, line {line}: ")
    assert column in str(raised.value)


def test_columns_come_from_all_tables_that_a_stage_reads(tmp_path, refused):
    joined = SCORE + (
        "  neighbours:\n    embeddings: ${score.embeddings}\n"
        "  n:\n    command: evaluate noise\n    scores: ${score}\n    join: ${neighbours}\n"
        "    column: [lemon_score]\n    rule: better_captions > 3\n"
    )
    check_columns(made(joined, tmp_path))
    refused(check_columns, made(joined.replace("    join: ${neighbours}\n", ""), tmp_path))


def test_a_table_from_outside_is_asked_for_its_columns(tmp_path, refused):
    pq.write_table(pa.table({"uid": ["a"], "beauty": [0.5]}), tmp_path / "t.parquet")
    text = "stages:\n  select:\n    scores: {}\n    score: {}\n    threshold: 1\n"
    check_columns(made(text.format(tmp_path / "t.parquet", "beauty"), tmp_path))
    wrong = made(text.format(tmp_path / "t.parquet", "age"), tmp_path)
    refused(check_columns, wrong)
    check_columns(wrong, look=False)


def test_joined_tables_of_stages_and_from_outside(tmp_path, refused):
    uids = {"uid": ["a"], "similarity": [0.5], "beauty": [0.5]}
    pq.write_table(pa.table(uids), tmp_path / "dfn.parquet")
    text = SCORE + (
        "  neighbours:\n    embeddings: ${score.embeddings}\n"
        "  select:\n    scores: ${score}\n"
        f"    join: [{tmp_path}/dfn.parquet, 'n=${{neighbours}}']\n"
        "    where: beauty > 1 AND n.better_captions = 0\n    keep_fraction: 0.5\n"
        "    score: rank(dfn.similarity) - rank(lemon_score)\n    weights: dfn.beauty\n"
        "  n:\n    command: evaluate noise\n    scores: ${score}\n    join: ${neighbours}\n"
        "    score: mix = similarity - lemon_score\n    threshold: {mix: 0.5}\n"
    )
    recipe = made(text, tmp_path / "run")
    check_columns(recipe)
    assert ("join", Reads.JOINED, f"{tmp_path}/dfn.parquet") in list(
        inputs_of(recipe.stages["select"])
    )
    for right, wrong in (
        ("beauty > 1", "ugliness > 1"),
        ("rank(dfn.similarity)", "rank(dfn.size)"),
        ("rank(dfn.similarity)", "rank(a, b)"),
        ("dfn.beauty", "dfn.ugliness"),
        ("{mix: 0.5}", "{max: 0.5}"),
        ("'n=${neighbours}'", "'dfn=${neighbours}'"),
    ):
        assert right in text
        refused(check_columns, made(text.replace(right, wrong), tmp_path / "run"))
