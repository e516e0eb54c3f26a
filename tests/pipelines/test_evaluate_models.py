"""Models on evaluation sets: the figures, the files, and the comparison of two."""

import dataclasses
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.evaluate_compare import EvaluateCompare
from ncclean_pipelines.evaluate_models import (
    EvaluateLinearProbe,
    EvaluateRetrieval,
    EvaluateZeroshot,
    _figures,
)
from ncclean_pipelines.evaluate_similarity import EvaluateSimilarity

from ncclean.base import schema
from ncclean.data.benchmark_sets import find_sets
from ncclean.data.options import SourceOptions
from ncclean.data.reader import read_samples
from ncclean.data.synthetic.heldout import write_heldout, write_retrieval_set
from ncclean.errors import InputError
from ncclean.evaluation import models_on_sets
from ncclean.evaluation.comparison import compare_results
from ncclean.evaluation.embedding import embed_classes
from ncclean.evaluation.options import EmbeddingOptions, ProbeOptions
from ncclean.evaluation.ranking import class_depth, classifier_weights
from ncclean.evaluation.results import read_results
from tests import hostile

IMAGES = 48


def on(kind, *models, data, **options):
    """An evaluation of models on sets."""
    sets = [str(one) for one in data]
    return kind(model=models, data=sets, precision="fp32", device="cpu", **options)


@pytest.fixture(scope="module")
def heldout(tmp_path_factory):
    out = tmp_path_factory.mktemp("heldout")
    write_heldout(out, IMAGES, seed=3)
    return out


@pytest.fixture(scope="module")
def evaluated(heldout, tmp_path_factory):
    """Zero-shot and retrieval results of the model that learnt noise and of the clean one."""
    out = tmp_path_factory.mktemp("results")
    for name in ("demo-noisy", "demo"):
        for kind in (EvaluateZeroshot, EvaluateRetrieval):
            on(kind, name, data=[heldout], out=str(out / name)).run()
    return out


@pytest.fixture(scope="module")
def results(evaluated):
    """Those of both models, read once: each table takes a process."""
    return {name: read_results(str(evaluated / name)) for name in ("demo-noisy", "demo")}


def test_files_are_clip_benchmarks(evaluated, heldout, demo_estimator):
    path = evaluated / "demo" / "zeroshot-shape_bundled_demo_en_zeroshot_classification.json"
    found = json.loads(path.read_text())
    assert {
        name: found[name] for name in ("dataset", "model", "pretrained", "task", "language")
    } == {
        "dataset": "zeroshot-shape",
        "model": "demo",
        "pretrained": "bundled",
        "task": "zeroshot_classification",
        "language": "en",
    }
    assert list(found["metrics"]) == ["acc1", "acc5", "mean_per_class_recall"]
    assert (found["images"], found["classes"], found["skipped"]) == (IMAGES, 12, {})
    table = pq.read_table(path.with_suffix(".parquet"))
    assert table.schema.equals(schema.OUTCOMES)
    assert table.num_rows == IMAGES
    retrieval = json.loads(next((evaluated / "demo").glob("retrieval_*.json")).read_text())
    names = [f"{what}_retrieval_recall@{k}" for what in ("image", "text") for k in (1, 5, 10)]
    assert list(retrieval["metrics"]) == [*names, "rsum"]
    assert retrieval["captions"] == 5 * IMAGES
    # Four classes: the first five say nothing.
    count = json.loads(next((evaluated / "demo").glob("zeroshot-count_*.json")).read_text())
    assert "acc5" not in count["metrics"]


def test_figures_are_those_of_the_functions(results, heldout, demo_estimator):
    (one,) = find_sets([str(heldout / "zeroshot-texture")], "classification")
    options = EmbeddingOptions()
    found = embed_classes(demo_estimator, one.shards("test"), 4, options)
    weights = classifier_weights(demo_estimator.encode_text, one.classnames(), one.templates())
    predicted = class_depth(found.image, weights, found.labels) == 0
    (result,) = [r for r in results["demo"] if r.dataset == one.name]
    assert result.metrics["acc1"] == pytest.approx(float(predicted.float().mean()))
    balanced = [float(predicted[found.labels == n].float().mean()) for n in range(4)]
    assert result.metrics["mean_per_class_recall"] == pytest.approx(sum(balanced) / 4)


def check_replaces_its_own(run, place):
    """It writes `place` again, but not over a file that quotes the mark, unless it is asked to."""
    run()
    place.write_text(json.dumps({"note": place.read_bytes()[:300].decode("latin1")}))
    with pytest.raises(InputError, match="is in the way: it was not written by"):
        run()
    run(overwrite=True)
    run()  # which is its own again


@pytest.mark.slow
def test_the_clean_model_is_better_and_the_comparison_says_so(evaluated):
    before, after = (read_results(str(evaluated / name)) for name in ("demo-noisy", "demo"))
    found = compare_results(before, after, draws=300)
    others = compare_results(before, after, draws=300, seed=1)
    assert [one.metrics for one in others] != [one.metrics for one in found]
    assert len(found) == 5
    by_set = {each.dataset: {m.name: m for m in each.metrics} for each in found}
    for name in ("shape", "texture", "count"):
        metric = by_set[f"zeroshot-{name}"]["acc1"]
        assert metric.excludes_zero
        assert metric.difference > 0.3
        assert metric.low < metric.difference < metric.high
    retrieval = by_set["retrieval"]
    assert retrieval["rsum"].low > 0
    check_replaces_its_own(
        lambda **options: EvaluateCompare(
            a=str(evaluated / "demo-noisy"),
            b=str(evaluated / "demo"),
            draws=100,
            out=str(evaluated / "compared.json"),
            **options,
        ).run(),
        evaluated / "compared.json",
    )
    # The figures compared are those that the files report.
    for results, side in ((before, "a"), (after, "b")):
        for result in results:
            for name, value in result.metrics.items():
                assert getattr(by_set[result.dataset][name], side) == pytest.approx(value)


def test_only_a_comparison_of_one_model_with_another_names_them(evaluated, tmp_path):
    """A folder of one model, one of the other, and one of both."""
    for folder, name, kind in (
        ("noisy", "demo-noisy", "zeroshot-shape"),
        ("clean", "demo", "zeroshot-shape"),
        ("clean", "demo", "retrieval"),
        ("mixed", "demo", "zeroshot-shape"),
        ("mixed", "demo-noisy", "retrieval"),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        for path in (evaluated / name).glob(f"{kind}*"):
            shutil.copy(path, tmp_path / folder)

    def named(a):
        places = {"a": str(tmp_path / a), "b": str(tmp_path / "clean")}
        shown = EvaluateCompare(**places, draws=100).run().shown
        return [str(line)[:2] for line in shown if str(line).startswith(("A:", "B:"))]

    assert named("noisy") == ["A:", "B:"]
    assert named("mixed") == []


def test_what_cannot_be_compared(evaluated, results, tmp_path, refused):
    before, after = results["demo-noisy"], results["demo"]
    refused(compare_results, before, [*after, *after])
    shapes = [r for r in before if r.dataset == "zeroshot-shape"]
    refused(compare_results, shapes, [r for r in after if r.dataset != "zeroshot-shape"])
    refused(read_results, str(tmp_path))
    lone = shutil.copy(next((evaluated / "demo").glob("zeroshot-shape*.json")), tmp_path)
    refused(read_results, str(lone))
    (tmp_path / "other.json").write_text('{"a": 1}')
    refused(read_results, str(tmp_path / "other.json"))


def test_other_samples_cannot_be_compared(results, tmp_path, refused):
    write_retrieval_set(tmp_path / "retrieval", 12, 4)
    after = on(EvaluateRetrieval, "demo", data=[tmp_path / "retrieval"]).run().summary
    before = [r for r in results["demo"] if r.dataset == "retrieval"]
    refused(compare_results, before, after)


def test_a_model_compared_with_itself_differs_by_nothing(results):
    for each in compare_results(results["demo"], results["demo"], draws=50):
        assert all(m.difference == 0 and m.low < 0 < m.high for m in each.metrics)
        assert not any(m.excludes_zero for m in each.metrics)


@pytest.mark.parametrize("solver", ["lbfgs", "adamw"])
def test_linear_probe(heldout, solver):
    probe = ProbeOptions(solver=solver, epochs=40, learning_rate=0.05)
    command = on(EvaluateLinearProbe, "demo", data=[heldout / "zeroshot-texture"], probe=probe)
    (result,) = command.run().summary
    assert list(result.metrics) == ["lp_acc1", "lp_mean_per_class_recall"]
    assert result.metrics["lp_acc1"] > 0.85
    assert result.settings["train_images"] == IMAGES
    assert ("regularisation" in result.settings) == (solver == "lbfgs")


def test_the_1k_protocol_needs_enough_images(heldout, monkeypatch):
    monkeypatch.setattr(models_on_sets, "FOLDS", 2)
    monkeypatch.setattr(models_on_sets, "FOLD_IMAGES", IMAGES // 2)
    monkeypatch.setattr(models_on_sets, "fold_recall", folds_of_half)
    (result,) = on(EvaluateRetrieval, "demo", data=[heldout]).run().summary
    metrics = result.metrics
    assert metrics["1k_image_retrieval_recall@1"] >= metrics["image_retrieval_recall@1"]
    assert metrics["1k_rsum"] >= metrics["rsum"]
    assert len(metrics) == 14


def folds_of_half(image, text, owners):
    from ncclean.evaluation.ranking import fold_recall

    return fold_recall(image, text, owners, folds=2, fold_images=IMAGES // 2)


def test_each_model_has_its_own_weights_and_preprocessing(heldout):
    one_each = on(
        EvaluateSimilarity, "ViT-B-32", "demo", data=[heldout], against="demo-noisy",
        pretrained=["openai", "none", "w.pt"], preprocess=["none", "webli", "none"],
    )  # fmt: skip
    requests = [(one.model, one.pretrained, one.preprocess) for one in one_each.requests()]
    assert requests == [
        ("ViT-B-32", "openai", None), ("demo", None, "webli"), ("demo-noisy", "w.pt", None),
    ]  # fmt: skip
    for_all = on(EvaluateSimilarity, "a", data=[heldout], against="b", pretrained=["x"])
    assert [one.pretrained for one in for_all.requests()] == ["x", "x"]


def test_requests_are_checked_before_anything_is_loaded(heldout, tmp_path, refused):
    nobody = "no-such-model"
    for weights in ({}, {"pretrained": ["a/w.pt", "b/w.pt"]}, {"preprocess": ["a", "b"]}):
        refused(on, EvaluateZeroshot, nobody, nobody, data=[heldout], **weights)
    refused(on, EvaluateZeroshot, data=[heldout])
    refused(on, EvaluateZeroshot, nobody, "demo", data=[heldout], pretrained=["a", "b", "c"])
    refused(on, EvaluateZeroshot, nobody, "demo", data=[heldout], preprocess=["a", "b", "c"])
    refused(on, EvaluateZeroshot, "demo", data=[heldout], pretrained=["openai"])
    several = on(EvaluateZeroshot, nobody, data=[heldout], out=str(tmp_path / "r.json"))
    refused(several.run)
    mine = tmp_path / "mine.json"
    mine.write_text('{"a": 1}')
    in_the_way = on(EvaluateZeroshot, nobody, data=[heldout / "zeroshot-count"], out=str(mine))
    refused(in_the_way.run)
    assert mine.read_text() == '{"a": 1}'
    lacking = tmp_path / "lacking"
    shutil.copytree(heldout / "zeroshot-count", lacking)
    (lacking / "test" / "0.tar").unlink()
    refused(on, EvaluateZeroshot, nobody, data=[lacking])


def test_a_file_of_somebody_elses_in_the_folder_is_found_before_it_is_replaced(
    heldout, tmp_path, refused
):
    again = on(EvaluateZeroshot, "demo", data=[heldout / "zeroshot-count"], out=str(tmp_path))
    again.run()
    (result,) = tmp_path.glob("*.json")
    result.write_text('{"a": 1}')
    refused(again.run)
    assert result.read_text() == '{"a": 1}'


def test_broken_images_are_counted(heldout, tmp_path):
    folder = tmp_path / "set"
    (folder / "test").mkdir(parents=True)
    (folder / "dataset_type.txt").write_text("retrieval")
    groups = [hostile.sample(f"{n}", hostile.JPEG, b"words") for n in range(3)]
    groups.append([("x.jpg", b"<html>"), ("x.txt", b"words")])
    data = hostile.tar_bytes([member for group in groups for member in group])
    (folder / "test" / "0.tar").write_bytes(data)
    (result,) = on(EvaluateRetrieval, "demo", data=[folder]).run().summary
    assert (result.images, result.skipped) == (3, {"image_corrupt": 1})


def test_similarities_before_and_after(heldout, tmp_path, refused):
    both, plot = ("demo-noisy", "demo"), str(tmp_path / "f.png")
    result = on(EvaluateSimilarity, *both, data=[heldout / "retrieval"], plot=plot).run()
    before, after = (each.to_json() for each in result.summary)
    assert result.made == (plot,)
    assert (tmp_path / "f.png").stat().st_size > 1000
    for found in (before, after):
        assert found["images"] == IMAGES
        assert found["positive"]["mean"] > found["hardest"]["mean"] > found["negative"]["mean"]
    gaps = [found["positive"]["mean"] - found["hardest"]["mean"] for found in (before, after)]
    assert gaps[1] > gaps[0]
    # The shard of the set by itself is the same.
    shard = heldout / "retrieval" / "test" / "0.tar"
    (alone,) = on(EvaluateSimilarity, "demo", data=[shard]).run().summary
    assert alone.to_json() == after
    classes = on(EvaluateSimilarity, "demo", data=[heldout / "zeroshot-shape"])
    refused(classes.run)


@pytest.mark.slow
def test_similarities_and_their_figure_replace_their_own(tmp_path):
    write_retrieval_set(tmp_path / "set", 8, 1)
    options = {"data": [tmp_path / "set"], "out": str(tmp_path / "s")}
    against = on(EvaluateSimilarity, "demo-noisy", against="demo", data=[tmp_path / "set"]).run()
    both = on(EvaluateSimilarity, "demo-noisy", "demo", **options).run()
    assert against["models"] == both["models"]
    options["plot"] = str(tmp_path / "f.png")
    for place in (tmp_path / "s" / "similarity.json", tmp_path / "f.png"):
        check_replaces_its_own(
            lambda **more: on(EvaluateSimilarity, "demo", **options, **more).run(), place
        )


@pytest.fixture
def labelled(heldout, tmp_path):
    """The rendered sets of shapes and textures in CyCLIP's layout."""
    for name in ("shape", "texture"):
        (source,) = find_sets([str(heldout / f"zeroshot-{name}")], "classification")
        for split in ("test", "train"):
            folder = tmp_path / name / split
            folder.mkdir(parents=True)
            rows = ["image,label"]
            for shard in source.shards(split):
                for sample in read_samples(shard, "cls"):
                    (folder / f"{sample.key}.jpg").write_bytes(sample.image)
                    rows.append(f"{sample.key}.jpg,{sample.caption}")
            (folder / "labels.csv").write_text("\n".join(rows))
        (tmp_path / name / "classnames.txt").write_text("\n".join(source.classnames()))
        (tmp_path / name / "zeroshot_classification_templates.txt").write_text(
            "\n".join(source.templates())
        )
    return tmp_path


def test_sets_of_cyclip_give_what_those_of_clip_benchmark_give(heldout, labelled):
    texture = ["texture"]
    for kind, names in ((EvaluateZeroshot, ["shape", *texture]), (EvaluateLinearProbe, texture)):
        data = labelled if len(names) > 1 else labelled / "texture"
        theirs = on(kind, "demo", data=[data]).run().summary
        assert [one.dataset for one in theirs] == names
        for one in theirs:
            (ours,) = on(kind, "demo", data=[heldout / f"zeroshot-{one.dataset}"]).run().summary
            assert one.metrics == ours.metrics
            assert one.images == ours.images


def test_a_probe_with_weights_and_epochs_of_a_set(labelled, tmp_path, refused):
    """Half of the training labels are wrong; the score table knows which."""
    path = labelled / "texture" / "train" / "labels.csv"
    lines = path.read_text().splitlines()
    names = [line.partition(",") for line in lines[1:]]
    wrong = [
        (name, (int(label) + number % 2) % 4, float(number % 2 == 0))
        for number, (name, _, label) in enumerate(names)
    ]
    mixed = "\n".join(["image,label", *(f"{name},{label}" for name, label, _ in wrong)])
    path.write_text(mixed)
    keys = [name.removesuffix(".jpg") for name, _, _ in wrong][:-1]
    table = pa.table(
        {"shard": ["x"] * len(keys), "key": keys, "clean": [w for *_, w in wrong][:-1]}
    )
    pq.write_table(table, tmp_path / "w.parquet")
    options = {"data": [labelled / "texture"]}
    (plain,) = on(EvaluateLinearProbe, "demo", **options).run().summary
    path.write_text(
        "\n".join(["image,label", *(f"{name},{label}" for name, label, w in wrong[:-1] if w)])
    )
    (clean,) = on(EvaluateLinearProbe, "demo", **options).run().summary
    path.write_text(mixed)
    options |= {"scores": [str(tmp_path / "w.parquet")], "weights": "clean"}
    (weighted,) = on(EvaluateLinearProbe, "demo", **options).run().summary
    assert weighted.metrics == clean.metrics != plain.metrics
    assert weighted.skipped == {"train_without_weight": 1}
    assert weighted.settings["train_images"] == len(wrong) - 1
    assert weighted.settings["weights"] == "clean"
    adamw = {"probe": ProbeOptions(solver="adamw", learning_rate=0.01), "set_epochs": ["texture=3"]}
    (short,) = on(EvaluateLinearProbe, "demo", data=[labelled / "texture"], **adamw).run().summary
    assert short.settings["epochs"] == 3
    refused(
        on,
        EvaluateLinearProbe,
        "demo",
        data=[labelled / "texture"],
        set_epochs=["textures=3"],
        probe=adamw["probe"],
    )


@pytest.mark.parametrize(
    "options",
    [
        {"set_epochs": ["a=3"]},
        {"weights": "x"},
        {"scores": ["x"]},
        {"set_epochs": ["a=no"], "probe": ProbeOptions(solver="adamw")},
    ],
)
def test_options_of_a_probe_that_do_not_go_together(options, refused):
    refused(on, EvaluateLinearProbe, "demo", data=["x"], **options)


def test_karpathys_json_gives_what_the_shards_give(heldout, tmp_path, refused):
    (one,) = find_sets([str(heldout / "retrieval")], "retrieval")
    images = []
    for shard in one.shards("test"):
        for sample in read_samples(shard):
            (tmp_path / f"{sample.key}.jpg").write_bytes(sample.image)
            sentences = [{"raw": line} for line in sample.caption.splitlines()]
            images.append(
                {"filename": f"{sample.key}.jpg", "split": "test", "sentences": sentences}
            )
    images.append({**images[0], "filename": "nowhere.jpg", "split": "train"})
    (tmp_path / "dataset.json").write_text(json.dumps({"images": images}))
    (theirs,) = on(EvaluateRetrieval, "demo", data=[heldout / "retrieval"]).run().summary
    (ours,) = on(EvaluateRetrieval, "demo", data=[tmp_path / "dataset.json"]).run().summary
    assert (ours.metrics, ours.skipped) == (theirs.metrics, {})
    (few,) = (
        on(EvaluateRetrieval, "demo", data=[tmp_path / "dataset.json"], captions_per_image=2)
        .run()
        .summary
    )
    assert (few.images, few.captions) == (IMAGES, 2 * IMAGES)
    (train,) = on(
        EvaluateRetrieval, "demo", data=[tmp_path / "dataset.json"],
        source_options=SourceOptions(split=("test", "train")),
    ).run().summary  # fmt: skip
    assert (train.dataset, train.skipped) == ("dataset-test-train", {"image_missing": 1})
    refused(
        on,
        EvaluateRetrieval,
        "demo",
        data=[tmp_path / "dataset.json"],
        source_options=SourceOptions(split=("val",)),
    )


def test_hostile_labels_of_cyclip(labelled, tmp_path, refused):
    folder = labelled / "texture"
    path = folder / "test" / "labels.csv"
    lines = path.read_text().splitlines()
    (folder / "outside.jpg").write_bytes(
        (folder / "test" / f"{lines[1].split(',')[0]}").read_bytes()
    )
    (folder / "test" / "broken.jpg").write_bytes(b"no image")
    odd = ["../outside.jpg,1", "/etc/passwd,1", "nowhere.jpg,1", "broken.jpg,1"]
    path.write_text("\n".join([*lines, *odd]))
    (result,) = on(EvaluateZeroshot, "demo", data=[folder]).run().summary
    assert result.images == IMAGES
    assert result.skipped == {"image_missing": 3, "image_corrupt": 1}
    for label in ("4", "-1", "cat", ""):
        path.write_text("\n".join([lines[0], lines[1].split(",")[0] + "," + label]))
        refused(on, EvaluateZeroshot, "demo", data=[folder])


def test_models_of_one_file_name_have_their_own_figures(results):
    """Their mean would be nobody's."""
    result = results["demo"][0]
    of_models = [
        dataclasses.replace(result, model=f"{seed}/model", metrics={"acc1": value})
        for seed, value in (("a", 0.25), ("b", 0.75))
    ]
    figures = {"a/model, acc1": "25.0%", "b/model, acc1": "75.0%"}
    assert _figures(of_models) == figures
    assert _figures(of_models[:1]) == {"model, acc1": "25.0%"}
