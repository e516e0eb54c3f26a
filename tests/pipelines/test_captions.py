"""Several captions of an image: from the shards to scores, selections, exports and batches."""

import io
import json
import tarfile
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from ncclean_pipelines.export import Export
from ncclean_pipelines.finetune import Finetune
from ncclean_pipelines.neighbours import Neighbours
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select

import ncclean
from ncclean.config import ScoreOptions
from ncclean.data.decode import Preprocessing
from ncclean.data.options import LoaderOptions
from ncclean.data.reader import read_samples
from ncclean.data.selection import SelectionReader
from ncclean.data.sources import resolve_pairs
from ncclean.data.weighted_loader import WeightedLoader
from ncclean.errors import InputError
from ncclean.scoring.clip_loss import neg_clip_loss
from ncclean.training.objectives.disncl import DisnclOptions
from ncclean.training.objectives.options import ObjectiveOptions

pytestmark = pytest.mark.usefixtures("rough_shifts")

KEYS = ("caption", "recaption")


@pytest.fixture(scope="module")
def pairs(corpus):
    """Key, image, alternative text and recaptions; those of every fifth are missing."""
    samples = [
        sample
        for shard in resolve_pairs([str(corpus)])
        for sample in read_samples(shard)
        if not sample.metadata["broken"]
    ][:120]
    texts = [sample.caption for sample in samples]
    return [
        (f"{number:05d}", sample.image, texts[number], [] if number % 5 == 0 else
         [texts[number - 1], f"a picture of {texts[number]}"])
        for number, sample in enumerate(samples)
    ]  # fmt: skip


def write_tar(pairs, folder):
    folder.mkdir()
    with tarfile.open(folder / "c.tar", "w") as tar:
        for key, image, text, more in pairs:
            record = {"caption": text, "recaption": more}
            for ending, data in (("jpg", image), ("json", json.dumps(record).encode())):
                member = tarfile.TarInfo(f"{key}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return folder


def write_parquet(pairs, folder):
    folder.mkdir()
    names = ("key", "jpg", "caption", "recaption")
    columns = zip(*pairs, strict=True)
    table = pa.table({name: list(each) for name, each in zip(names, columns, strict=True)})
    pq.write_table(table, folder / "c.parquet", row_group_size=16)
    return folder


LAYOUTS = {"tar": write_tar, "parquet": write_parquet}


def score(source, out, caption_key=KEYS, **options):
    settings = {"model": "demo", "pretrained": None, "precision": "fp32", "shift": "shuffled"}
    chosen = ScoreOptions(caption_key=caption_key, **options)
    return Score(shards=[str(source)], out=str(out), options=chosen, **settings).run().summary


@pytest.fixture(scope="module")
def scored(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("captions")
    write_tar(pairs, folder / "source")
    score(folder / "source", folder / "s.parquet", embeddings=str(folder / "embeddings"),
          block_size=100)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def table(scored):
    return pq.read_table(scored / "s.parquet")


def test_a_row_for_each_caption_that_is_there(pairs, table):
    expected = [
        (key, number, KEYS[number > 0], text)
        for key, _, caption, more in pairs
        for number, text in enumerate([caption, *more])
    ]
    columns = ("key", "caption_number", "caption_key", "text")
    found = list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))
    assert found == expected
    assert pc.all(pc.equal(table.column("status"), "ok")).as_py()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_caption_has_the_cosine_that_it_has_alone(layout, pairs, table, tmp_path):
    alone = [(key, image, more[0], []) for key, image, _, more in pairs if more]
    score(LAYOUTS[layout](alone, tmp_path / "alone"), tmp_path / "a.parquet", None)
    one = pq.read_table(tmp_path / "a.parquet").column("similarity").to_numpy()
    same = table.filter(pc.equal(table.column("caption_number"), 1)).column("similarity")
    assert np.allclose(one, same.to_numpy(), atol=2e-6)


def test_layouts_agree(pairs, table, tmp_path):
    score(write_parquet(pairs, tmp_path / "p"), tmp_path / "s.parquet", block_size=100)
    other = pq.read_table(tmp_path / "s.parquet")
    for name in set(table.column_names) - {"uid"}:
        assert other.column(name).equals(table.column(name)), name


def test_a_list_gives_rows_without_being_asked_for(pairs, tmp_path):
    lists = [(key, image, [text, *more], []) for key, image, text, more in pairs[:20]]
    score(write_parquet(lists, tmp_path / "p"), tmp_path / "s.parquet", None)
    table = pq.read_table(tmp_path / "s.parquet")
    assert len(table) == sum(len(texts) for *_, texts, _ in lists)
    assert table.column("caption_key").null_count == len(table)


def test_captions_of_an_image_are_no_candidates_of_each_other(scored, table):
    """From the exported embeddings, with what shares an image taken out by hand."""
    folder = scored / "embeddings"
    image = torch.from_numpy(np.load(folder / "img_emb" / "img_emb_0.npy")).float()
    text = torch.from_numpy(np.load(folder / "text_emb" / "text_emb_0.npy")).float()
    keys = np.array(table.column("key").to_pylist())
    blocks = table.column("block").to_numpy()
    assert blocks.max() == 2
    for block in range(3):
        rows = np.flatnonzero(blocks == block)
        cosines = image[rows] @ text[rows].T
        same = torch.from_numpy(keys[rows][:, None] == keys[rows]).fill_diagonal_(False)
        assert same.any()
        cosines[same] = -torch.inf
        losses = neg_clip_loss(cosines, float(_metadata(scored)["scale"]))
        found = table.column("neg_clip_loss").to_numpy()[rows]
        assert np.allclose(found, losses.numpy(), atol=1e-5)
        ranks = (cosines > cosines.diagonal()[:, None]).sum(dim=1).numpy()
        assert (table.column("i2t_rank").to_numpy()[rows] == ranks).all()


def _metadata(folder):
    metadata = pq.read_metadata(folder / "s.parquet").metadata
    return {name.decode(): value.decode() for name, value in metadata.items()}


def test_embeddings_keep_captions_apart(scored, table, tmp_path):
    settings = {"scale": float(_metadata(scored)["scale"]), "shift": "shuffled"}
    ncclean.score(str(scored / "embeddings"), str(tmp_path / "e.parquet"), block_size=100,
                  **settings)  # fmt: skip
    other = pq.read_table(tmp_path / "e.parquet")
    for name in ("key", "row", "caption_number", "caption_key", "text", "block", "i2t_rank"):
        assert other.column(name).equals(table.column(name)), name
    for name in ("neg_clip_loss", "noise_probability"):
        assert np.allclose(other.column(name), table.column(name), atol=5e-4), name


def test_the_image_is_no_near_duplicate_of_itself(pairs, scored, tmp_path):
    out = tmp_path / "n.parquet"
    Neighbours(embeddings=[str(scored / "embeddings")], out=str(out)).run()
    found = pq.read_table(out)
    assert found.column("caption_number").to_pylist()[:3] == [0, 0, 1]
    grouped = found.filter(pc.is_valid(found.column("image_group")))
    images = {}
    for row in grouped.to_pylist():
        images.setdefault(row["image_group"], set()).add(row["key"])
    assert all(len(keys) > 1 for keys in images.values())
    selected = tmp_path / "d.parquet"
    Select(scores=[str(scored / "s.parquet")], out=str(selected), dedup=str(out)).run()
    kept = pq.read_table(selected)
    copies = pc.sum(pc.is_valid(found.column("pair_group"))).as_py()
    assert copies > 0
    assert len(found) - copies < len(kept) < len(found)


def test_best_caption(scored, table, tmp_path):
    out = tmp_path / "b.parquet"
    settings = {"best_caption": True, "score": "neg_clip_loss", "where": "caption_number < 2"}
    ncclean.select(str(scored / "s.parquet"), str(out), **settings)
    kept = pq.read_table(out).to_pylist()
    best = {}
    for row in table.to_pylist():
        if row["caption_number"] < 2:
            best.setdefault(row["key"], []).append((row["neg_clip_loss"], row["caption_number"]))
    assert {row["key"]: row["caption_number"] for row in kept} == {
        key: max(options)[1] for key, options in best.items()
    }
    assert {row["caption_rank"] for row in kept} == {0}
    fifth = tmp_path / "f.parquet"
    ncclean.select(str(scored / "s.parquet"), str(fifth), **settings, keep_fraction=0.2)
    assert len(pq.read_table(fifth)) == len(kept) // 5


@pytest.fixture(scope="module")
def selection(scored):
    """All captions but those of every third image."""
    out = scored / "selection.parquet"
    ncclean.select(str(scored / "s.parquet"), str(out), where="key::INT % 3 > 0")
    return out


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


def test_captions_that_the_shards_lack_are_missing(pairs, selection, scored, tmp_path):
    export = Export(selection=str(selection), out=str(tmp_path), shards=[str(scored / "source")])
    result = export.run()
    assert result.summary.samples + sum(result.summary.missing.values()) == 80
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
    assert not loader.counts.skipped


def test_the_best_caption_of_each_image(scored, table, selection):
    loader, (seen,) = batches(scored / "source", selection, captions="best")
    expected = by_uid(table, selection)
    assert loader.samples == len(expected) == 80
    assert seen == {uid: texts[:1] for uid, texts in expected.items()}


@pytest.mark.parametrize("with_selection", [True, False])
def test_a_sample_of_the_captions_in_each_epoch(with_selection, scored, table, selection):
    chosen = selection if with_selection else None
    loader, seen = batches(scored / "source", chosen, 6, captions="sample")
    texts = by_uid(table, selection)
    assert loader.samples == (80 if with_selection else 120)
    for captions in seen:
        assert {len(each) for each in captions.values()} == {1}
    counts = Counter()
    for uid, of_image in texts.items():
        drawn = {captions[uid][0] for captions in seen}
        assert drawn <= set(of_image)
        counts[len(drawn)] += len(of_image) == 3
    assert counts[3] > counts[1]  # of 6 draws from 3
    assert batches(scored / "source", chosen, 6, captions="sample")[1] == seen


def test_the_best_of_captions_that_nobody_compared(scored, tmp_path):
    with pytest.raises(InputError, match="--captions best needs a --selection"):
        ncclean.finetune(
            shards=str(scored / "source"), out=str(tmp_path / "o"), model="demo", captions="best",
            method="clip",
        )  # fmt: skip


def test_draws_do_not_go_with_features_that_are_computed_once(tmp_path):
    with pytest.raises(InputError, match="take --captions all or best"):
        Finetune(
            shards=["x"], out="y", method="disncl", loader=LoaderOptions(captions="sample"),
            objective=ObjectiveOptions(disncl=DisnclOptions(freeze_towers=True)),
        )  # fmt: skip


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
    assert page.count("a picture of ") > 60
    assert page.count("<img ") == page.count("data:image/webp")
