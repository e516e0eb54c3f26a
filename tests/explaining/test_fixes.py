"""Shifted captions are given back: by decisions, and by one option of an export.

A rendered corpus of which every third hundred of one shard, or of a folder, lost its place.
"""

import contextlib
import csv
import dataclasses
import json
import shutil
from types import SimpleNamespace

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.explain import Explain
from ncclean_pipelines.export import Export
from ncclean_pipelines.select import Select
from upath import UPath

import ncclean
from ncclean.base.progress import SILENT
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from ncclean.data.synthetic import CorpusOptions, write_corpus
from ncclean.errors import InputError, ResumeError
from ncclean.explaining.candidates import Candidate
from ncclean.explaining.cause_table import write_causes
from ncclean.explaining.fixes import fixes_of, propose, read_fixes
from ncclean.explaining.kinds import IMAGE, PAIR, Kind
from ncclean.explaining.outcomes import outcomes_of
from ncclean.explaining.pairs import Required, Values
from ncclean.explaining.shifts import Shift
from ncclean.selection.policy import Policy
from ncclean.storage.decisions import write_decisions
from tests.explaining.test_shifts import vectors

SHIFTED, BY = slice(300, 600), 2
MODEL = {"model": "demo", "precision": "fp32", "shift": 0.2}
POLICY = Policy(method="noise-probability")


def read(source):
    return [one for shard in resolve_pairs([str(source)]) for one in read_samples(shard)]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """Pictures in order, with the captions that are right and those that they have."""
    folder = tmp_path_factory.mktemp("rendered")
    options = CorpusOptions(pairs=1200, shard_size=300, noise={"ncr": 0.05}, duplicates=0, seed=4)
    write_corpus(folder, options, 1)
    samples = read(folder)
    right = [sample.caption for sample in samples]
    given = list(right)
    given[SHIFTED] = np.roll(np.array(right[SHIFTED], object), BY).tolist()
    return samples, right, given


def tars(folder, samples, captions):
    """Shards of 300 that have the captions; the second was shifted."""
    from tests.hostile import tar_bytes

    folder.mkdir()
    for number in range(0, len(samples), 300):
        members = []
        for sample, caption in zip(samples[number:][:300], captions[number:][:300], strict=True):
            members.append((f"{sample.key}.jpg", sample.image))
            members.append((f"{sample.key}.txt", caption.encode()))
        (folder / f"{number // 300:05d}.tar").write_bytes(tar_bytes(members))
    return folder


def pictures(folder, samples, captions):
    """A folder with a table; pairs of one host were shifted."""
    folder.mkdir()
    with (folder / "metadata.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file_name", "text", "url"])
        for place, (sample, caption) in enumerate(zip(samples, captions, strict=True)):
            name = f"{place:05d}.jpg"
            (folder / name).write_bytes(sample.image)
            table.writerow([name, caption, f"https://host{place // 300}.example/{name}"])
    return folder


@pytest.fixture(scope="module", params=[tars, pytest.param(pictures, marks=pytest.mark.slow)])
def explained(request, rendered, tmp_path_factory):
    """The corpus, its scores, its causes, and a selection that drops what looks wrong."""
    samples, _, given = rendered
    folder = tmp_path_factory.mktemp("fixes")
    source = request.param(folder / "source", samples, given)
    scores, causes = str(folder / "scores.parquet"), str(folder / "causes.parquet")
    embeddings = str(folder / "embeddings")
    ncclean.score(str(source), scores, embeddings=embeddings, **MODEL)
    found = Explain(scores=[scores], out=causes).run()  # the run tells where its embeddings are
    assert "shifted by +2" in found.summary.causes[0].proposal
    assert "--fix shift" in "\n".join(map(str, found.shown))
    selection = str(folder / "selection.parquet")
    Select(scores=[scores], policy=POLICY, out=selection).run()
    return folder, source, found.summary, selection


def test_decisions_mend_the_shifted_pairs(explained, rendered):
    folder, _, found, _ = explained
    _, right, _ = rendered
    scores, out = str(folder / "scores.parquet"), str(folder / "decided.parquet")
    assert found.fixed >= 0.95 * 300
    Select(scores=[scores], decisions=[found.fixes], out=out).run()
    rows = duckdb.sql(
        f"SELECT place, caption FROM '{out}' JOIN (SELECT *, row_number() OVER () - 1 AS place "
        f"FROM '{scores}') USING (uid, shard) WHERE caption IS NOT NULL"
    ).fetchall()
    assert len(rows) >= 0.95 * 300 - BY
    assert all(caption == right[place] for place, caption in rows)


@pytest.fixture(scope="module")
def mended(explained):
    """An export with the option, and how it was asked for."""
    folder, source, found, selection = explained
    layout = "auto" if source.joinpath("metadata.csv").exists() else "webdataset"
    options = {"shards": [str(source)], "layout": layout}
    export = Export(
        selection=selection, out=str(folder / "mended"), fix="shift", causes=found.out, **options
    )
    return export.run(), export, options


def test_an_export_shifts_captions_back(explained, mended, rendered):
    """The option does what the decisions do by way of `select`; and the images are their own."""
    folder, _, found, _ = explained
    samples, right, given = rendered
    done, _, options = mended
    assert done.summary.shifted >= 0.95 * 300 - BY
    assert f"{done.summary.shifted} captions shifted back" in "\n".join(map(str, done.shown))
    place_of = {sample.image: place for place, sample in enumerate(samples)}
    count = 0
    for sample in read(folder / "mended"):
        place = place_of[sample.image]
        original = sample.metadata.get("original_caption")
        if original:
            count += 1
            assert (sample.caption, original) == (right[place], given[place])
        elif 300 <= place < 600:
            assert sample.caption == given[place]
    assert count == done.summary.shifted
    decided = str(folder / "decided.parquet")
    Select(
        scores=[str(folder / "scores.parquet")], decisions=[found.fixes],
        policy=POLICY, out=decided,
    ).run()  # fmt: skip
    Export(selection=decided, out=str(folder / "by-decisions"), **options).run()
    by_decisions = [(one.image, one.caption) for one in read(folder / "by-decisions")]
    assert by_decisions == [(one.image, one.caption) for one in read(folder / "mended")]


@pytest.mark.parametrize("explained", [tars], indirect=True)
def test_causes_without_shifts_are_refused(explained, tmp_path):
    folder, source, _, selection = explained
    causes = str(tmp_path / "causes.parquet")
    alone = shutil.copy(folder / "scores.parquet", tmp_path)  # from the embeddings of its run
    Explain(scores=[alone], out=causes).run()
    export = Export(selection=selection, shards=[str(source)], out=str(folder / "none"))
    with pytest.raises(InputError, match="no shifted captions to mend"):
        dataclasses.replace(export, fix="shift", causes=causes).run()
    with pytest.raises(InputError, match="need one another"):
        dataclasses.replace(export, fix="shift")
    with pytest.raises(InputError, match="need one another"):
        dataclasses.replace(export, causes=causes)


@pytest.mark.parametrize("explained", [tars], indirect=True)
def test_decisions_without_their_place_are_refused(explained, tmp_path):
    """The file was written again by a program of one's own."""
    _, source, found, selection = explained
    causes, fixes = str(tmp_path / "causes.parquet"), tmp_path / "causes.fixes.parquet"
    shutil.copy(found.out, causes)
    table = pq.read_table(found.fixes)
    export = Export(
        selection=selection, shards=[str(source)], out=str(tmp_path / "out"), fix="shift",
        causes=causes,
    )  # fmt: skip
    pq.write_table(table.drop_columns(["shard", "key"]), fixes)
    with pytest.raises(InputError, match="has no decisions of `ncclean explain`"):
        export.run()
    rows = table.to_pylist()
    rows[0]["shard"] = None
    pq.write_table(pa.Table.from_pylist(rows, table.schema), fixes)
    with pytest.raises(InputError, match="a shard or key is missing"):
        export.run()


@pytest.mark.parametrize("explained", [tars], indirect=True)
def test_other_captions_in_the_selection_are_not_overruled(explained, tmp_path):
    folder, source, found, _ = explained
    table = pq.read_table(found.fixes)
    table = table.set_column(3, "caption", [["another"] * len(table)])
    pq.write_table(table.select(table.column_names[:6]), tmp_path / "decisions.parquet")
    chosen = str(tmp_path / "chosen.parquet")
    Select(
        scores=[str(folder / "scores.parquet")], out=chosen,
        decisions=[str(tmp_path / "decisions.parquet")],
    ).run()  # fmt: skip
    export = Export(
        selection=chosen, shards=[str(source)], out=str(tmp_path / "out"), fix="shift",
        causes=found.out,
    )  # fmt: skip
    with pytest.raises(InputError, match="already has other captions for"):
        export.run()


def test_an_export_with_the_option_is_not_resumed_without(mended):
    _, export, _ = mended
    with pytest.raises(ResumeError, match="decisions of --fix"):
        dataclasses.replace(export, fix=None, causes=None).run()


@pytest.mark.parametrize("explained", [tars], indirect=True)
def test_uids_and_an_estimate_take_the_option_too(mended, tmp_path):
    exported, export, _ = mended
    plan = dataclasses.replace(export, out=str(tmp_path / "out"), dry_run=True).run()
    assert plan.summary.samples == exported.summary.samples
    fixed = {"selection": export.selection, "fix": "shift", "causes": export.causes}
    uids = Export(out=str(tmp_path / "uids.npy"), **fixed).run()
    assert uids.summary.samples == exported.summary.samples
    assert uids.summary.mended_lost == exported.summary.shifted
    json.dumps(dataclasses.asdict(uids.summary))


def test_a_pair_of_two_shifted_runs_has_the_caption_of_the_first(tmp_path):
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE pairs AS SELECT range AS place, 's' AS shard, range::VARCHAR AS key, "
        "'u' || range AS uid, 0::SMALLINT AS caption_number, 'caption ' || range AS text "
        "FROM range(9)"
    )
    shifts = [
        Shift(by, np.array(places), np.array(sources), 0.0, 2.0, 2)
        for by, places, sources in ((1, [2, 3], [3, -1]), (2, [3, 4], [5, 6]))
    ]
    fixes = fixes_of(connection, shifts)
    rows = {row["key"]: row for row in fixes.to_pylist()}
    assert {key: row["caption"] for key, row in rows.items()} == {
        "2": "caption 3", "3": None, "4": "caption 6",
    }  # fmt: skip
    assert [rows[key]["decision"] for key in "234"] == ["correct", "drop", "correct"]
    causes, beside = tmp_path / "causes.parquet", tmp_path / "causes.fixes.parquet"
    write_causes(UPath(causes), [], {"fixes": beside.name})
    write_decisions(UPath(beside), fixes, "explain")
    assert read_fixes(str(causes)) == (str(beside), 2)  # captions that are shifted back


VALUES = Values(outcomes_of(["noise_probability"]))


@pytest.mark.parametrize(("kind", "is_by", "is_shifted"), [
    ("shard", False, True), ("image size", False, False), ("source", True, True),
])  # fmt: skip
def test_shifts_are_of_groups_whose_pairs_were_written_in_order(kind, is_by, is_shifted):
    image, text, right = vectors(200)
    moved = np.roll(text, 2, axis=0)
    corpus = SimpleNamespace(vectors=lambda *_: {4: (np.arange(200), image, moved)})
    connection = duckdb.connect()
    with contextlib.closing(connection):
        connection.execute(
            f"CREATE TABLE pairs AS SELECT range AS place, 's' AS shard, range::VARCHAR AS key, "
            f"0 AS caption_number, {right} AS similarity, 0.0 AS v0 FROM range(400)"
        )
        connection.execute(
            "CREATE TABLE members AS SELECT range AS place, 4 AS member FROM range(200)"
        )
        of_kind = Kind(kind, IMAGE if kind == "image size" else PAIR, "x", (), str, is_by=is_by)
        candidate = Candidate(of_kind, "a", 0, Required((0,), (1.0,)), (0.0,), 9.0, 0.001)
        # The estimator may only be worse in a group, but images fit other captions well there.
        for causes, unsure in (([0], []), ([], [0])):
            lists = connection, [candidate], [4], causes, unsure, VALUES
            found = propose(*lists, corpus, SILENT)
            assert set(found.shifts) == ({0} if is_shifted else set())
            assert ("shifted by +2" in found.texts.get(0, "")) == is_shifted
            assert not propose(*lists, None, SILENT).texts


def test_captions_shifted_in_the_order_of_a_file_manager_are_given_back():
    image, text, right = vectors(200)
    keys = [f"scan {number}" for number in range(1, 201)]
    order = np.argsort(keys)  # in which a folder is read: 1, 10, 100, 101, ...
    moved = np.roll(text, 1, axis=0)
    corpus = SimpleNamespace(vectors=lambda *_: {4: (np.arange(200), image[order], moved[order])})
    connection = duckdb.connect()
    with contextlib.closing(connection):
        named = pa.table({"place": np.arange(200), "key": np.array(keys)[order]})
        connection.register("named", named)
        connection.execute(
            f"CREATE TABLE pairs AS SELECT place, 's' AS shard, key, 0 AS caption_number, "
            f"{right} AS similarity, 0.0 AS v0 FROM named"
        )
        connection.execute("CREATE TABLE members AS SELECT place, 4 AS member FROM named")
        candidate = Candidate(
            Kind("shard", PAIR, "x", (), str), "a", 0, Required((0,), (1.0,)), (0.0,), 9.0, 0.001
        )
        found = propose(connection, [candidate], [4], [0], [], VALUES, corpus, SILENT)
        shift = found.shifts[0]
        number_of = dict(enumerate(order))
        pairs = zip(shift.places, shift.sources, strict=True)
        assert [number_of[b] - number_of[a] for a, b in pairs if b >= 0] == [1] * 199
        assert "numbers in file names" in found.texts[0]


@pytest.mark.parametrize(
    ("alike", "of_all", "is_proposed"),
    [(40, 150, True), (20, 150, False), (10, 12, True), (9, 12, False)],
)
def test_an_exchange_of_words_is_proposed_where_many_have_it(alike, of_all, is_proposed):
    """Ten of a cause's captions with a wrong word, and a fifth of them, at least."""
    values = Values(outcomes_of(["noise_probability", "near_miss_probability"]))
    with contextlib.closing(duckdb.connect()) as connection:
        connection.execute(
            "CREATE TABLE pairs AS SELECT range AS place, 0.9 AS v0, 0.9 AS v1, 'blue' AS "
            f"better_word, if(range < {alike}, 'red', 'w' || range) AS suspect_word FROM range(400)"
        )
        connection.execute(
            f"CREATE TABLE members AS SELECT range AS place, 4 AS member FROM range({of_all})"
        )
        kind = Kind("word", PAIR, "x", (), str)
        candidate = Candidate(kind, "a", 1, Required((0,), (1.0,)), (0.0,), 9.0, 0.001)
        texts = propose(connection, [candidate], [4], [0], [], values, None, SILENT).texts
        assert not propose(connection, [candidate], [4], [], [0], values, None, SILENT).texts
    assert set(texts) == ({0} if is_proposed else set())
    if is_proposed:
        assert f"red stands for blue in {alike} of {of_all} " in texts[0]
