"""Every command that reads tables asks a store at most three times a file, and reads the same."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.audit import Audit
from ncclean_pipelines.explain import Explain
from ncclean_pipelines.export import Export
from ncclean_pipelines.query import Query
from ncclean_pipelines.report import Report
from ncclean_pipelines.select import Select

from ncclean.selection.policy import Policy
from ncclean.training.batches import open_selection
from ncclean.training.objectives.options import ObjectiveOptions
from tests import object_store
from tests.reviewing.served import served

FILES = 8
POLICY = Policy(score="similarity", keep_fraction=0.5, where="noise_probability < 0.99")


def write(scored, folder, files):
    """The table of the corpus in several files, which no other test has."""
    table = pq.read_table(scored / "scores.parquet")
    facts = {**table.schema.metadata, b"folder": str(folder).encode()}
    table = table.replace_schema_metadata(facts)
    folder.mkdir()
    for number in range(files):
        begin, end = (n * len(table) // files for n in (number, number + 1))
        pq.write_table(table.slice(begin, end - begin), folder / f"{number:05d}.parquet")
    return folder


def query(scores, tmp_path, corpus):
    sql = "SELECT status, count(*), sum(similarity), min(uid) FROM scores GROUP BY 1 ORDER BY 1"
    return Query(sql=sql, scores=[scores]).run().summary.fetchall()


def select(scores, tmp_path, corpus):
    out = tmp_path / "selection.parquet"
    Select(scores=[scores], out=str(out), policy=POLICY, overwrite=True).run()
    return pq.read_table(out)


def report(scores, tmp_path, corpus):
    out = tmp_path / "report.html"
    written = Report(
        scores=[scores], out=str(out), shards=[str(corpus)], pairs=4, overwrite=True
    ).run()
    return dict(written.values) | {"seconds": 0, "bytes": 0}  # the page names the table


def explain(scores, tmp_path, corpus):
    out = tmp_path / "causes.parquet"
    Explain(scores=[scores], out=str(out), overwrite=True).run()
    return pq.read_table(out)


def audit(scores, tmp_path, corpus):
    out = tmp_path / "audit"
    Audit(scores=[scores], out=str(out), pairs=20, overwrite=True).run()
    return pq.read_table(out / "sample.parquet")


def export(scores, tmp_path, corpus):
    selection = tmp_path / "of-export.parquet"
    scored = tmp_path / "scores"
    Select(scores=[str(scored)], out=str(selection), policy=POLICY, overwrite=True).run()
    out = tmp_path / "clean"
    Export(
        selection=str(selection), shards=[str(corpus)], scores=[scores], columns=["similarity"],
        out=str(out), overwrite=True,
    ).run()  # fmt: skip
    return [file.read_bytes() for file in sorted(out.glob("*.tar"))]


READERS = [query, select, report, explain, audit, export]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_at_most_three_requests_a_file(reader, scored, corpus, tmp_path):
    folder = write(scored, tmp_path / "scores", FILES)
    expected = reader(str(folder), tmp_path, corpus)
    with object_store.s3() as store:
        object_store.upload(folder, "s3://corpus/scores")
        store.requests.clear()
        found = reader("s3://corpus/scores", tmp_path, corpus)
        assert_asked_little(store)
    assert found == expected or found.equals(expected)


def assert_asked_little(store):
    assert len(store.requests) <= 3 * FILES
    of_files = [path for _, path in store.requests if path.endswith(".parquet")]
    assert len(of_files) == FILES


@pytest.mark.slow
def test_a_review_asks_as_little(scored, tmp_path):
    folder = write(scored, tmp_path / "scores", FILES)
    options = ("--out", tmp_path / "decisions.parquet", "--where", "row < 150")
    with object_store.s3() as store:
        object_store.upload(folder, "s3://corpus/scores")
        store.requests.clear()
        with served("s3://corpus/scores", *options) as page:
            found = page.get("rows", view="all", count=60, where="similarity > 0.2")
        assert_asked_little(store)
    rows = pq.read_table(folder).to_pylist()
    shown = [row for row in rows if row["row"] < 150 and (row["similarity"] or 0) > 0.2]
    assert found["pairs"] == len(shown)
    assert len(found["cards"]) == 60


def test_a_table_of_one_file(scored, corpus, tmp_path):
    folder = write(scored, tmp_path / "scores", 1)
    with object_store.s3() as store:
        for reader in (select, report, explain, audit):
            url = f"s3://corpus/{reader.__name__}"
            object_store.upload(folder, url)
            store.requests.clear()
            reader(f"{url}/00000.parquet", tmp_path, corpus)
            assert len(store.requests) <= 3


def test_training_reads_a_selection_of_a_store_once(scored, tmp_path):
    expected = select(str(write(scored, tmp_path / "scores", 1)), tmp_path, None)
    with object_store.s3() as store:
        object_store.filesystem().put_file(str(tmp_path / "selection.parquet"), "corpus/s.parquet")
        store.requests.clear()
        reader = open_selection("s3://corpus/s.parquet", "clip", ObjectiveOptions())
        counts = reader.counts()
        keys = {shard: len(reader.samples(shard)) for shard in counts}
        assert counts == keys
        assert sum(counts.values()) == len(expected)
        assert len(store.requests) <= 3
