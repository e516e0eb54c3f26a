"""Two corpora with the same names of shards and keys are told apart by their uids."""

import contextlib
import json
import shutil
import tarfile
from io import BytesIO
from types import SimpleNamespace

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import webdataset as wds
from ncclean_pipelines.adapt import Adapt
from ncclean_pipelines.explain import Explain
from ncclean_pipelines.export import Export
from ncclean_pipelines.finetune import Finetune
from ncclean_pipelines.neighbours import Neighbours
from ncclean_pipelines.report import Report
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select
from upath import UPath

from ncclean.base.config import ScoreOptions
from ncclean.data.embeddings.units import resolve_embeddings
from ncclean.data.member_samples import sample_uid
from ncclean.data.shards import match_shards, resolve_shards, shards_by_name
from ncclean.errors import InputError
from ncclean.explaining.fixes import fixes_path
from ncclean.reviewing.decided import Decided
from ncclean.reviewing.search import Task
from ncclean.reviewing.table import ReviewTable
from ncclean.reviewing.vector_search import WordSearch
from ncclean.selection.policy import Policy
from ncclean.storage.joined import query
from ncclean.storage.same_corpus import as_scored, captions_as_scored
from ncclean.storage.tables import fingerprints
from ncclean.webdataset import select
from tests import hostile
from tests.factories import rendered

KEYS = [f"{number:09d}" for number in range(30)]


def write(folder, name, uids):
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"{name}.tar", "w") as tar:
        for key, uid in zip(KEYS, uids, strict=True):
            members = {"jpg": hostile.JPEG, "txt": b"a cat"}
            if uid is not None:
                members["json"] = json.dumps({"uid": uid}).encode()
            for extension, data in members.items():
                info = tarfile.TarInfo(f"{key}.{extension}")
                info.size = len(data)
                tar.addfile(info, BytesIO(data))


def table(path, shard, uids, keys=KEYS):
    columns = {"uid": uids, "shard": [shard] * len(keys), "key": keys,
               "weight": [1.0] * len(keys), "split": ["retain"] * len(keys)}  # fmt: skip
    pq.write_table(pa.table(columns), path)
    return [str(path)]


@pytest.fixture
def corpora(tmp_path):
    ours, theirs = [f"a{k}" for k in KEYS], [f"b{k}" for k in KEYS]
    write(tmp_path / "a", "00000", ours)
    write(tmp_path / "b", "00000", theirs)
    return tmp_path, table(tmp_path / "a.parquet", "00000", ours)


def shards(*folders):
    return resolve_shards([str(folder) for folder in folders])


def test_another_corpus_is_refused_and_the_own_is_not(corpora, refused):
    folder, tables = corpora
    as_scored(tables, shards(folder / "a"))
    refused(as_scored, tables, shards(folder / "b"))
    both = [*tables, *table(folder / "b.parquet", "00000", [f"b{k}" for k in KEYS])]
    as_scored(both, shards(folder / "a"))  # selections, of which all samples are compared
    for path in both:
        with_status(path, ["ok"] * len(KEYS))
    refused(as_scored, both, shards(folder / "a"))  # b's pairs would have a's pictures


def with_status(path, status):
    pq.write_table(pq.read_table(path).append_column("status", pa.array(status)), path)


def test_repeats_of_a_key_are_not_compared(tmp_path):
    write(tmp_path / "a", "00000", [f"a{k}" for k in KEYS])
    uids = [*(f"a{k}" for k in KEYS), "x"]
    path = table(tmp_path / "a.parquet", "00000", uids, [*KEYS, KEYS[0]])
    with_status(path[0], ["ok"] * len(KEYS) + ["duplicate_key"])
    as_scored(path, shards(tmp_path / "a"))


def test_shards_after_the_first_are_compared_too(corpora):
    folder, _ = corpora
    for name, uids in (("a", "a"), ("b", "c")):
        write(folder / name, "00001", [f"{uids}{key}1" for key in KEYS])
    write(folder / "b", "00000", [f"a{key}" for key in KEYS])
    uids = [f"a{key}{one}" for one in ("", "1") for key in KEYS]
    names = [name for name in ("00000", "00001") for _ in KEYS]
    columns = {"uid": uids, "shard": names, "key": KEYS * 2}
    pq.write_table(pa.table(columns), folder / "two.parquet")
    as_scored([str(folder / "two.parquet")], shards(folder / "a"))
    with pytest.raises(InputError, match="00001"):
        as_scored([str(folder / "two.parquet")], shards(folder / "b"))


def test_names_with_folders_meet_those_without(corpora, refused):
    folder, _ = corpora
    longer = table(folder / "l.parquet", "x/00000", [f"a{k}" for k in KEYS])
    as_scored(longer, shards(folder / "a"))
    refused(as_scored, longer, shards(folder / "b"))
    assert [one.name for one in as_scored(longer, shards(folder / "a"))] == ["x/00000"]


def test_of_two_names_that_end_alike_a_shard_has_the_one_of_its_folder(tmp_path, refused):
    """Pairs of the other shard had its pictures, and were exported with them."""
    for folder in "abc":
        write(tmp_path / folder, "0", [None] * len(KEYS))
    names = [name for name in ("a/0", "b/0") for _ in KEYS]
    path = table(tmp_path / "t.parquet", None, [f"{n}" for n in range(60)], KEYS * 2)
    columns = pq.read_table(path[0]).set_column(1, "shard", pa.array(names))
    pq.write_table(columns, path[0])
    both = shards(tmp_path / "a", tmp_path / "b")
    assert [one.name for one in as_scored(path, both)] == ["a/0", "b/0"]
    [one] = as_scored(path, shards(tmp_path / "b"))
    assert (one.name, match_shards(["b/0"], [one])) == ("b/0", {"b/0": one})
    refused(match_shards, ["a/0", "b/0"], [one])
    refused(match_shards, ["a/0", "b/0"], shards(tmp_path / "c"))
    write(tmp_path / "a" / "c", "0", [None] * len(KEYS))  # below a folder of that name
    assert not shards_by_name(["a/0", "b/0"], shards(tmp_path / "a" / "c"))
    assert shards_by_name(["0", "a/0"], shards(tmp_path / "c")).keys() == {"0"}


def test_what_cannot_be_compared_is_let_pass(corpora):
    folder, tables = corpora
    write(folder / "c", "00000", [None] * len(KEYS))  # uids of the names and keys
    as_scored(tables, shards(folder / "c"))
    hashes = [sample_uid({}, "00000", key) for key in KEYS]
    as_scored(table(folder / "h.parquet", "00000", hashes), shards(folder / "c"))
    (folder / "d").mkdir()
    (folder / "d" / "00000.tar").write_bytes(b"<html>" * 1000)
    as_scored(tables, shards(folder / "d"))
    others = table(folder / "o.parquet", "00000", ["x"], keys=["zzz"])
    as_scored(others, shards(folder / "b"))


def test_stages_that_read_both_ask(corpora, refused):
    folder, (selection,) = corpora
    other = [str(folder / "b")]
    common = {"selection": selection, "shards": other}
    for command in (
        Export(out=str(folder / "e"), **common),
        Finetune(method="clip", out=str(folder / "f"), model="demo", **common),
    ):
        refused(command.run)
    assert not (folder / "e").exists()
    assert not (folder / "f").exists()


def test_report_and_adapt_ask_too(tmp_path, refused):

    for seed in (0, 1):
        rendered(tmp_path / str(seed), pairs=40, shard_size=40, seed=seed)
    scores = str(tmp_path / "s.parquet")
    Score(shards=[str(tmp_path / "0")], out=scores, model="demo", shift=0.1).run()
    other = [str(tmp_path / "1")]
    refused(Report, scores=[scores], out=str(tmp_path / "r.html"), shards=other)
    refused(Adapt, scores=[scores], out=str(tmp_path / "a"), shards=other, model="demo")


@pytest.fixture
def selected(tmp_path):
    """A corpus, its scores and a selection of all its pairs."""
    rendered(tmp_path / "c", pairs=40, shard_size=20)
    scores, selection = str(tmp_path / "s"), str(tmp_path / "sel.parquet")
    Score(shards=[str(tmp_path / "c")], out=scores, model="demo", shift=0.1).run()
    Select(scores=[scores], out=selection).run()
    return tmp_path / "c", scores, selection


def rewritten(tar):
    """The same size, and the same places of images: one caption is another."""
    data = tar.read_bytes()
    caption = data.index(b".txt") - 9
    begin = (caption // 512 + 1) * 512
    tar.write_bytes(data[:begin] + b"!" + data[begin + 1 :])
    return tar


def test_shards_that_changed_since_the_scoring_are_named(selected, caplog):
    folder, scores, selection = selected
    for tables in ([scores], [selection], [selection, scores]):
        as_scored(tables, shards(folder))
    assert not caplog.records
    rewritten(folder / "00001.tar")
    for tables in ([scores], [selection]):
        said = []
        as_scored(tables, shards(folder), said.append)
        (text,) = said
        assert text.startswith("1 shard changed since the scoring")
        assert "00001.tar" in text
    as_scored([selection], shards(folder))
    assert len(caplog.records) == 1  # in Python
    tars = [str(folder / f"0000{number}.tar") for number in (0, 1, 1)]
    loop = wds.WebDataset(tars, shardshuffle=False).compose(select(selection))
    assert sum(1 for _ in loop) == 60
    assert [one.getMessage().split()[0] for one in caplog.records[1:]] == tars[1:2]
    out = folder.parent / "e"
    printed = []
    progress = SimpleNamespace(say=printed.append, advance=lambda *_, **__: None)
    Export(selection=selection, scores=[scores], shards=[str(folder)], out=str(out)).run(progress)
    assert sum("changed since" in text for text in printed) == 1
    common = {"selection": selection, "shards": [str(folder)], "model": "demo"}
    Finetune(method="clip", out=str(folder.parent / "f"), batch_size=40, **common).run(progress)
    assert sum("changed since" in text for text in printed) == 2


def test_shards_changed_behind_a_table_that_was_finalized_from_another_folder(
    tmp_path, monkeypatch
):
    rendered(tmp_path / "c", pairs=40, shard_size=20)
    monkeypatch.chdir(tmp_path)
    Score(shards=["c"], out=str(tmp_path / "s"), model="demo", shift=0.1).run()
    monkeypatch.chdir(tmp_path / "c")
    Score(shards=[], out=str(tmp_path / "s"), finalize_only=True, shift=0.2).run()
    rewritten(tmp_path / "c" / "00001.tar")
    said = []
    as_scored([str(tmp_path / "s")], shards(tmp_path / "c"), said.append)
    assert len(said) == 1


def test_shards_without_a_pair_in_the_table_are_not_named(selected):
    folder, scores, selection = selected
    of_first = Policy(where="shard = '00000'")
    Select(scores=[scores], out=selection, policy=of_first, overwrite=True).run()
    rewritten(folder / "00001.tar")
    said = []
    as_scored([selection], shards(folder), said.append)
    assert not said


def test_embeddings_called_like_the_shards_of_images_are_not_these(selected):
    folder, scores, selection = selected
    rng = np.random.default_rng(0)
    (folder.parent / "vectors").mkdir()
    table = pq.read_table(scores, columns=["uid", "shard", "key", "text"])
    for name in ("00000", "00001"):
        mine = table.filter(pc.field("shard") == name).drop_columns("shard")
        for kind in ("image_embedding", "text_embedding"):
            mine = mine.append_column(kind, [rng.normal(size=(len(mine), 8)).tolist()])
        pq.write_table(mine, folder.parent / "vectors" / f"{name}.parquet")
    out = str(folder.parent / "v.parquet")
    Score(shards=[str(folder.parent / "vectors")], out=out).run()
    Select(scores=[out], out=selection, overwrite=True).run()
    said = []
    for path in (out, selection):
        as_scored([path], shards(folder), said.append)
    assert not said


def test_a_copy_elsewhere_has_not_changed_unless_its_size_has(selected):
    folder, scores, _ = selected
    copies = folder.parent / "elsewhere"
    shutil.copytree(folder, copies, copy_function=shutil.copy)  # with times of their own
    said = []
    as_scored([scores], shards(copies), said.append)
    assert not said
    (copies / "00000.tar").write_bytes((copies / "00000.tar").read_bytes() + bytes(512))
    as_scored([scores], shards(copies), said.append)
    assert len(said) == 1


def test_what_is_made_of_embeddings_is_about_the_shards_that_were_encoded(tmp_path, caplog):
    folder = rendered(tmp_path / "c", pairs=40, shard_size=20)
    old, new, from_vectors, duplicates, causes, encoded = (
        str(tmp_path / name) for name in ("o", "n", "v", "d.parquet", "c.parquet", "e")
    )
    scored = {"shards": [str(folder)], "model": "demo", "shift": 0.1}
    Score(out=old, options=ScoreOptions(embeddings=encoded), **scored).run()
    Score(shards=[encoded], out=from_vectors).run()
    Neighbours(embeddings=[encoded], out=duplicates).run()
    pq.write_table(pq.read_table(duplicates), link := str(tmp_path / "links.parquet"))
    common = {"embeddings": [encoded], "overwrite": True}
    for name, several in ((old, 0), (from_vectors, 0), (new, 1)):
        if several:
            rewritten(folder / "00001.tar")
            Score(out=new, **scored).run()
        Select(scores=[name], dedup=duplicates, out=f"{name}.parquet", overwrite=True).run()
        query("SELECT 1", [name], joins=[link]).close()
        Explain(scores=[name], out=causes, **common).run()
        said = [one.getMessage() for one in caplog.records if "not of what" in one.getMessage()]
        assert [text.split()[2] for text in said] == several * ["neighbours", "links", "clusters"]
        assert all("1 shard changed in between (first: 00001)" in text for text in said)
    said = []
    as_scored([from_vectors], shards(folder), said.append)
    assert len(said) == 1
    with contextlib.closing(ReviewTable.open([new], joins=[link])) as table:
        task = Task.of(resolve_embeddings([encoded]), None, table, None, None, None)
        assert WordSearch(task).changed == ["00001"]


def test_decisions_causes_and_fixes_of_other_versions_of_the_shards_are_named(selected, caplog):
    """Without uids in the json, the pairs of another corpus have those of the reviewed one."""
    folder, scores, selection = selected
    decisions, causes = (str(folder.parent / f"{name}.parquet") for name in ("d", "causes"))
    embedded = ScoreOptions(embeddings=str(folder.parent / "vectors"))
    again = {"shards": [str(folder)], "out": scores, "model": "demo", "overwrite": True}
    Score(options=embedded, shift=0.1, **again).run()
    (pair,) = pq.read_table(scores).slice(0, 1).to_pylist()
    decided = Decided(duckdb.connect(), UPath(decisions), scored=fingerprints([scores]))
    decided.decide([(pair["uid"], 0)], "drop")
    decided.save()
    Explain(scores=[scores], embeddings=[embedded.embeddings], out=causes).run()
    fixes = str(fixes_path(UPath(causes)))
    select_again = Select(scores=[scores], decisions=[decisions, fixes], exclude_causes=causes,
                          out=selection, overwrite=True)  # fmt: skip
    select_again.run()
    assert not [one for one in caplog.records if "not of what" in one.getMessage()]
    rewritten(folder / "00001.tar")
    Score(shift=0.1, **again).run()
    caplog.clear()
    select_again.run()
    Decided(duckdb.connect(), UPath(decisions), scored=fingerprints([scores])).close()
    said = [one.getMessage() for one in caplog.records if "not of what" in one.getMessage()]
    assert [text.split()[2] for text in said] == [causes, decisions, fixes, decisions]
    assert all("1 shard changed in between (first: 00001)" in text for text in said)


@pytest.mark.parametrize(
    "prints",
    ["[" * 100_000, "[1]", '{"00001": 1}', '{"00001": [1, 2]}', '{"00001": [Infinity, "", ""]}'],
)
def test_fingerprints_that_are_none_are_left_out(prints, selected):
    folder, _, selection = selected
    metadata = {"shard_fingerprints": prints, "image_key": ""}
    pq.write_table(pq.read_table(selection).replace_schema_metadata(metadata), selection)
    rewritten(folder / "00001.tar")
    as_scored([selection], shards(folder), pytest.fail)


@pytest.mark.parametrize("keys", ["[" * 100_000, "[", "[1]"], ids=["deep", "cut", "a number"])
def test_caption_keys_that_are_none_are_refused(keys, tmp_path, refused):
    """A selection may be anybody's."""
    table = pa.table({"uid": ["a"]}).replace_schema_metadata({"image_key": "", "caption_key": keys})
    pq.write_table(table, tmp_path / "s.parquet")
    refused(captions_as_scored, [str(tmp_path / "s.parquet")])
