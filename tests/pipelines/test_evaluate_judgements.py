"""Scores of models and of tables against people's judgements."""

import csv
import json
from pathlib import Path

import duckdb
import numpy as np
import pytest
from ncclean_pipelines.evaluate_judgements import EvaluateJudgements
from ncclean_pipelines.score import Score
from ncclean_pipelines.synth import Synth
from scipy.stats import kendalltau

import ncclean
from ncclean.data.options import CorpusOptions, SourceOptions
from ncclean.errors import InputError
from tests import hostile


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Photographs in a folder, in Karpathy's layout and in a tar; three captions of each judged."""
    root = tmp_path_factory.mktemp("judged")
    (root / "images").mkdir()
    names = [f"photo.{n}_x.jpg" for n in range(12)]
    rng = np.random.default_rng(0)
    images, rows, members = [], [], []
    for n, name in enumerate(names):
        hostile.photo(seed=n).save(root / "images" / name, quality=95)
        own = [f"a photo of number {n}", f"number {n} again"]
        sentences = [{"raw": text} for text in own]
        images.append({"filename": name, "split": "test", "sentences": sentences})
        data = (root / "images" / name).read_bytes()
        key = name.removesuffix(".jpg").replace("photo.", "photo_")
        members += [(f"{key}.jpg", data), (f"{key}.txt", own[0].encode())]
        for caption in (own[0], f"a {n % 3} thing", f"a photo of number {(n + 1) % 12}"):
            rows.append([name, caption, *rng.integers(1, 5, 3)])
    (root / "dataset.json").write_text(json.dumps({"images": images}))
    (root / "0.tar").write_bytes(hostile.tar_bytes(members))
    for path, prefix in (("judged.csv", "photo."), ("judged_tar.csv", "photo_")):
        with open(root / path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["image", "caption", "judge1", "judge2", "judge3"])
            writer.writerows([[row[0].replace("photo.", prefix), *row[1:]] for row in rows])
    return root


def evaluate(judged, table="judged.csv", **options):
    options.setdefault("model", ["demo"])
    command = EvaluateJudgements(
        table=str(judged / table), precision="fp32", device="cpu", **options
    )
    return command.run()


def test_both_scores_of_a_model(judged):
    result = evaluate(judged, data=[str(judged / "images")])
    with open(judged / "judged.csv") as file:
        rows = list(csv.DictReader(file))
    captions = {row["caption"] for row in rows}
    found = result.summary.scores
    assert [one.score for one in found] == ["similarity", "neg_clip_loss"]
    assert [one.agreement.judgements for one in found] == [108, 108]
    assert (found[0].agreement.images, found[0].agreement.captions) == (12, 36)
    assert len(captions) < 36  # some are judged with several images
    for one in found:
        assert one.agreement.tau_b.low < one.agreement.tau_b.value < one.agreement.tau_b.high
    assert result.values["scores"][0]["tau_b"] == found[0].agreement.tau_b.value


def test_checkpoints_of_one_architecture_are_told_apart(judged):
    weights = str(Path(ncclean.__file__).parent / "models" / "demo" / "open_clip_model.safetensors")
    both = {"model": ["demo", "demo"], "pretrained": ["none", weights]}
    scores = evaluate(judged, data=[str(judged / "images")], **both).summary.scores
    assert [one.source for one in scores[::2]] == ["demo", "demo open_clip_model.safetensors"]


def test_every_source_gives_the_same(judged):
    folder, tar, json_ = (
        evaluate(judged, "judged_tar.csv" if source == "0.tar" else "judged.csv", data=[place],
                 **options).values["scores"]
        for source, place, options in (
            ("images", str(judged / "images"), {}),
            ("0.tar", str(judged / "0.tar"), {}),
            ("json", str(judged / "dataset.json"), {"source_options": root_of(judged)}),
        )
    )  # fmt: skip
    assert folder == tar == json_


def root_of(judged):
    return SourceOptions(image_root=str(judged / "images"))


def test_references_are_left_out_and_a_prefix_changes_scores(judged, refused):
    sources = {"data": [str(judged / "dataset.json")], "source_options": root_of(judged)}
    whole = evaluate(judged, **sources)
    without = evaluate(judged, drop_references=True, **sources)
    assert without.values["left_out"] == {"reference": 12}
    assert [one["captions"] for one in without.values["scores"]] == [24, 24]
    prefixed = evaluate(judged, prefix="A photo depicts", **sources)
    assert prefixed.values["scores"] != whole.values["scores"]
    refused(evaluate, judged, drop_references=True, data=[str(judged / "images")])


def test_the_mean_of_the_judges(judged):
    each, mean = (
        evaluate(judged, data=[str(judged / "images")], judges=judges).values["scores"][0]
        for judges in ("each", "mean")
    )
    assert (each["judgements"], mean["judgements"]) == (108, 36)
    assert each["pairwise_accuracy"] == mean["pairwise_accuracy"]


def test_missing_and_hostile_images_are_counted(judged, tmp_path, refused):
    path = tmp_path / "j.csv"
    text = (judged / "judged.csv").read_text()
    outside = "../../etc/passwd,x,1,2,3\nnowhere.jpg,x,1,1,1\nnowhere.jpg,y,1,1,1\n"
    path.write_text(text + outside + ",x,1,1,1\n")
    result = evaluate(tmp_path, "j.csv", data=[str(judged / "images")])
    assert result.values["left_out"] == {"image_missing": 1}
    assert result.values["missing"] == {"demo": {"image_missing": 2}}
    assert result.values["scores"][0]["captions"] == 36
    assert any("without a score of demo: 2 image_missing" in str(one) for one in result.shown)
    # Of a corpus nothing but the judged images is looked at.
    result = evaluate(tmp_path, "j.csv", data=[str(judged / "dataset.json")],
                      source_options=root_of(judged))  # fmt: skip
    assert result.values["missing"] == {"demo": {"not_in_source": 2}}
    refused(evaluate, judged, data=[str(tmp_path_with_a_photo(tmp_path))])


def tmp_path_with_a_photo(tmp_path):
    (tmp_path / "other").mkdir()
    hostile.photo().save(tmp_path / "other" / "z.jpg")
    return tmp_path / "other"


@pytest.mark.slow
def test_columns_of_a_score_table(tmp_path, refused):
    """Judgements of a scored corpus: what people say is the cosine itself, rounded."""
    Synth(out=str(tmp_path / "s"), corpus=CorpusOptions(pairs=40), noise=0.3, held_out=0).run()
    table = tmp_path / "scores.parquet"
    Score(shards=[str(tmp_path / "s")], model="demo", device="cpu", precision="fp32",
          out=str(table)).run()  # fmt: skip
    rows = duckdb.sql(f"SELECT key, text, similarity FROM '{table}'").fetchall()
    with open(tmp_path / "j.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "caption", "score"])
        writer.writerows([f"{key}.jpg", text, round(cosine, 2)] for key, text, cosine in rows)
        writer.writerow([f"{rows[0][0]}.jpg", "never scored", 1])
    result = evaluate(
        tmp_path, "j.csv", model=(), scores=[str(table)], score=["minus = -similarity"]
    )
    by_name = {one["score"]: one for one in result.values["scores"]}
    expected = kendalltau([row[2] for row in rows], [round(row[2], 2) for row in rows]).statistic
    assert by_name["similarity"]["tau_b"] == pytest.approx(expected)
    assert by_name["minus"]["tau_b"] == pytest.approx(-expected)
    rank = by_name["i2t_rank"]
    assert (rank["reversed"], rank["tau_b"] > 0.2) == (True, True)
    assert result.values["missing"] == {str(table): {"not_in_scores": 1}}
    (tmp_path / "foreign.csv").write_text("image,caption,score\nq.jpg,x,1\nr.jpg,y,2\n")
    refused(evaluate, tmp_path, "foreign.csv", model=(), scores=[str(table)])


@pytest.mark.parametrize(
    "options",
    [
        {"model": ()},
        {},
        {"data": ["x"], "score": ["similarity"]},
        {"model": (), "scores": ["x"], "prefix": "y"},
    ],
)
def test_options_that_do_not_go_together(judged, options, refused):
    refused(evaluate, judged, **options)


def test_the_result_is_written_and_replaces_its_own(judged, tmp_path, refused):
    out = tmp_path / "j.json"
    for _ in range(2):
        evaluate(judged, data=[str(judged / "images")], out=str(out))
    assert json.loads(out.read_text())["rating_columns"] == ["judge1", "judge2", "judge3"]
    out.write_text("{}")
    refused(evaluate, judged, data=[str(judged / "images")], out=str(out))


def test_names_that_two_samples_may_mean(judged, tmp_path, refused):
    (tmp_path / "s").mkdir()
    members = [
        member
        for number, key in enumerate(("a/1", "b/1", "a/2"))
        for member in (
            (f"{key}.jpg", (judged / "images" / f"photo.{number}_x.jpg").read_bytes()),
            (f"{key}.txt", b"x"),
        )
    ]
    (tmp_path / "s" / "0.tar").write_bytes(hostile.tar_bytes(members))
    options = {"data": [str(tmp_path / "s")]}
    path = tmp_path / "j.csv"
    path.write_text("image,caption,score\na/1.jpg,x,1\nb/1.jpg,yy,2\na/2.jpg,zzz,3\n")
    assert evaluate(tmp_path, "j.csv", **options).values["scores"][0]["images"] == 3
    path.write_text("image,caption,score\n1.jpg,x,1\n2.jpg,yy,2\n")
    refused(evaluate, tmp_path, "j.csv", **options)


@pytest.mark.parametrize("option", ["pretrained", "preprocess"])
def test_weights_without_a_model_are_not_dropped(option):
    with pytest.raises(InputError, match=rf"--{option} .*--model"):
        EvaluateJudgements(table="t.csv", scores=["s.parquet"], **{option: ["openai"]})
