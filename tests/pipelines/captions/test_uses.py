"""Several captions of an image: from a selection to exports, batches, runs and reports."""

from collections import Counter

import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.export import Export
from ncclean_pipelines.finetune import Finetune

import ncclean.webdataset
from ncclean.data.decode import Preprocessing
from ncclean.data.options import LoaderOptions
from ncclean.data.reader import read_samples
from ncclean.data.selection_reader import SelectionReader
from ncclean.data.sources import resolve_pairs
from ncclean.data.weighted_loader import WeightedLoader
from ncclean.errors import InputError
from ncclean.training.objectives.options import DisnclOptions, ObjectiveOptions
from tests.pipelines.captions.sources import KEYS, LAYOUTS

pytestmark = pytest.mark.usefixtures("rough_shifts")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_export_writes_the_best_and_tells_the_others(layout, pairs, selection, tmp_path):
    source = LAYOUTS[layout](pairs, tmp_path / "source")
    result = ncclean.export(
        str(selection), str(tmp_path / "out"), shards=str(source), caption_key=KEYS
    )
    assert not result.failures
    best = {}
    for row in pq.read_table(selection).to_pylist():
        best.setdefault(row["key"], []).append((row["caption_rank"], row["caption_number"]))
    texts = {key: [text, *more] for key, _, text, more in pairs}
    found = [s for r in resolve_pairs([str(tmp_path / "out")]) for s in read_samples(r)]
    assert [sample.key for sample in found] == sorted(best)
    images = {key: image for key, image, *_ in pairs}
    for sample in found:
        ranked = [texts[sample.key][number] for _, number in sorted(best[sample.key])]
        assert sample.caption == sample.metadata["caption"] == ranked[0]
        assert sample.metadata["captions"] == ranked
        assert sample.metadata["other_captions"] == []
        assert sample.image == images[sample.key]


def test_export_of_the_best_alone(pairs, scored, tmp_path):
    ncclean.select(str(scored / "s.parquet"), str(tmp_path / "b.parquet"), best_caption=True)
    ncclean.export(
        str(tmp_path / "b.parquet"), str(tmp_path / "out"), shards=str(scored / "source"),
        caption_key=KEYS, scores=str(scored / "s.parquet"), columns=["similarity"],
    )  # fmt: skip
    rows = pq.read_table(scored / "s.parquet").to_pylist()
    best = {}
    for row in rows:
        best[row["key"]] = max(best.get(row["key"], -1), row["similarity"])
    found = [s for r in resolve_pairs([str(tmp_path / "out")]) for s in read_samples(r)]
    for sample in found:
        assert sample.metadata["similarity"] == pytest.approx(best[sample.key], abs=1e-6)
        assert len(sample.metadata["captions"]) == 1
    assert sum(len(sample.metadata["other_captions"]) for sample in found) == len(rows) - len(found)


def test_a_selection_knows_its_captions(selection, scored, tmp_path):
    """Another order of the keys would be that of other captions."""
    source, chosen = str(scored / "source"), str(selection)
    reads = [
        lambda out, **keys: ncclean.export(chosen, str(tmp_path / out), shards=source, **keys),
        lambda _, **keys: ncclean.webdataset.select(chosen, **keys),
        lambda _, **keys: ncclean.webdataset.SelectedPairs(source, chosen, **keys),
        lambda _, **keys: ncclean.webdataset.SelectedRows(source, chosen, **keys),
        lambda out, caption_key=None: Finetune(
            method="clip", shards=[source], selection=chosen, out=str(tmp_path / out),
            loader=LoaderOptions(caption_key=caption_key),
        ).finetuning()._inputs(),
    ]  # fmt: skip
    for read in reads:
        with pytest.raises(
            InputError, match=r"key caption --caption-key recaption, not with .* re"
        ):
            read("refused", caption_key=KEYS[::-1])
    exported, stage, pairs, *_, (_, _, captions) = [read("out") for read in reads]
    assert not exported.failures
    assert stage.caption_key == captions == list(KEYS)
    expected = {
        text.encode() for (text,) in batches(source, selection, captions="best")[1][0].values()
    }
    best = ncclean.webdataset.SelectedPairs(source, chosen, captions="best")
    assert {pair["txt"] for pair in best} == expected <= {pair["txt"] for pair in pairs}


def test_captions_that_the_shards_lack_are_missing(pairs, selection, scored, tmp_path):
    """An older selection does not know its captions."""
    table = pq.read_table(selection).replace_schema_metadata(None)
    pq.write_table(table, older := str(tmp_path / "older.parquet"))
    out = str(tmp_path / "out")
    result = Export(selection=older, out=out, shards=[str(scored / "source")]).run()
    assert result.summary.samples + sum(result.summary.missing.values()) == 40
    assert result.failures


def batches(source, selection, epochs=1, **options):
    """Captions by uid in each epoch."""
    loader = WeightedLoader(
        resolve_pairs([str(source)]),
        SelectionReader(str(selection), options.get("captions", "all")) if selection else None,
        Preprocessing((32, 32), (0.5,) * 3, (0.5,) * 3),
        LoaderOptions(batch_size=8, augment=False, drop_last=False, caption_key=KEYS, **options),
    )
    seen = []
    for epoch in range(epochs):
        captions = {}
        for batch in loader.epoch(epoch):
            for uid, caption in zip(batch.uids, batch.captions, strict=True):
                captions.setdefault(uid, []).append(caption)
        seen.append(captions)
    return loader, seen


def by_uid(table, selection):
    texts = {(row["uid"], row["caption_number"]): row["text"] for row in table.to_pylist()}
    found = {}
    for row in pq.read_table(selection).to_pylist():
        text = texts[row["uid"], row["caption_number"]]
        found.setdefault(row["uid"], []).append((row["caption_rank"], text))
    return {uid: [text for _, text in sorted(ranked)] for uid, ranked in found.items()}


def test_all_captions_are_samples_of_their_own(scored, table, selection):
    loader, (seen,) = batches(scored / "source", selection)
    expected = by_uid(table, selection)
    assert loader.samples == sum(map(len, expected.values()))
    assert {uid: sorted(texts) for uid, texts in seen.items()} == {
        uid: sorted(texts) for uid, texts in expected.items()
    }


def test_the_best_caption_of_each_image(scored, table, selection):
    loader, (seen,) = batches(scored / "source", selection, captions="best")
    expected = by_uid(table, selection)
    assert loader.samples == len(expected) == 40
    assert seen == {uid: texts[:1] for uid, texts in expected.items()}


@pytest.mark.parametrize("with_selection", [True, False])
def test_a_sample_of_the_captions_in_each_epoch(with_selection, scored, table, selection):
    chosen = selection if with_selection else None
    loader, seen = batches(scored / "source", chosen, 6, captions="sample")
    texts = by_uid(table, selection)
    assert loader.samples == (40 if with_selection else 60)
    for captions in seen:
        assert {len(each) for each in captions.values()} == {1}
    counts = Counter()
    for uid, of_image in texts.items():
        drawn = {captions[uid][0] for captions in seen}
        assert drawn <= set(of_image)
        counts[len(drawn)] += len(of_image) == 3
    assert counts[3] > counts[1]  # of 6 draws from 3
    assert batches(scored / "source", chosen, 2, captions="sample")[1] == seen[:2]


def test_the_best_of_captions_that_nobody_compared(scored, tmp_path, refused):
    refused(
        ncclean.finetune,
        shards=str(scored / "source"),
        out=str(tmp_path / "o"),
        model="demo",
        captions="best",
        method="clip",
    )


def test_draws_do_not_go_with_features_that_are_computed_once(tmp_path, refused):
    refused(
        Finetune,
        shards=["x"],
        out="y",
        method="disncl",
        loader=LoaderOptions(captions="sample"),
        objective=ObjectiveOptions(disncl=DisnclOptions(freeze_towers=True)),
    )


@pytest.mark.slow
def test_a_run_on_all_captions(scored, selection, tmp_path):
    """A moving average of each pair's beliefs must tell two captions of an image apart."""
    result = ncclean.finetune(
        shards=str(scored / "source"), out=str(tmp_path / "o"), model="demo", method="bayes",
        selection=str(selection), caption_key=list(KEYS), captions="all", batch_size=32, steps=4,
        moving_average=0.5,
    )  # fmt: skip
    assert result.summary.steps == 4
    loader = batches(scored / "source", selection)[0]
    names = [name for batch in loader.epoch(0) for name in batch.pair_names]
    assert len(names) == len(set(names)) == loader.samples


def test_a_report_shows_both_captions(scored, tmp_path):
    ncclean.write_report(
        str(scored / "s.parquet"), str(tmp_path / "r.html"), shards=str(scored / "source"),
        pairs=100,
    )  # fmt: skip
    page = (tmp_path / "r.html").read_text()
    assert page.count("a picture of ") > 40
    assert page.count("<img ") == page.count("data:image/webp")
