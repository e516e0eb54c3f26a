"""The server as a process: who may ask, what it shows, and decisions that outlive any kill."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.report import Report
from ncclean_pipelines.select import Select

from ncclean.base.output_mark import was_made_by
from ncclean.selection.policy import Policy
from ncclean.storage.decisions import read_decisions
from tests.reviewing.served import served

pytestmark = pytest.mark.slow
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def review(scored, corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("review") / "decisions.parquet"
    with served(scored / "scores.parquet", "--shards", corpus, "--out", out) as running:
        yield running


def test_only_this_machine_and_this_page_may_ask(review):
    base, token = review.url.rstrip("/").rsplit("/", 1)
    host = base.removeprefix("http://")
    assert host.startswith("127.0.0.1:")
    assert review.ask("rows?count=1")[0] == 200
    assert review.ask("../" + "x" * len(token) + "/rows")[0] == 404
    assert b"open the whole address" in review.ask("../")[1]
    for headers, status in [
        ({"Host": "evil.example"}, 403),
        ({"Host": f"evil.example:{host.split(':')[1]}"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "localhost:9000"}, 200),  # of a tunnel
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": f"http://{host}"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ]:
        assert review.ask("rows?count=1", headers=headers)[0] == status, headers
    # A form of another page cannot send JSON without asking first.
    data = json.dumps({"decision": "drop", "pairs": [["x", 0]]}).encode()
    assert review.ask("decide", data, {"Content-Type": "text/plain"})[0] == 400
    kind = {"Content-Type": "application/json"}
    for pairs in ("[" * 200_000, '[["a", 1e400]]', '[["a", 99999]]', '[["\\ud800", 0]]'):
        wrong = f'{{"decision": "drop", "pairs": {pairs}}}'.encode()
        assert review.ask("decide", wrong, kind)[0] == 400
    for bound in ("inf", "-inf", "nan", "x"):
        status, data, *_ = review.ask(f"histogram?view=all&low={bound}")
        assert (status, b"Conversion" in data) == (400, False)
    assert review.get("rows", view="all")["decided"] == {}


def test_rows_pictures_and_counts(review, scored):
    answer = review.get("rows", view="suspects", count=20)
    table = pq.read_table(scored / "scores.parquet")
    noise = table.column("noise_probability").to_pylist()
    assert answer["pairs"] == sum(value is not None and value >= 0.5 for value in noise)
    shown = [card["scores"]["noise_probability"] for card in answer["cards"]]
    assert shown == sorted(shown, reverse=True)
    card = answer["cards"][0]
    status, picture = review.ask(f"picture?shard={card['shard']}&key={card['key']}")
    assert status == 200
    assert picture[:4] == b"RIFF"
    assert review.ask(f"picture?shard={card['shard']}&key=none")[0] == 404
    counts = review.get("views")
    assert counts["all"] == len(table)
    assert counts["failures"] == sum(s != "ok" for s in table.column("status").to_pylist())
    low = review.get("rows", view="all", where="similarity < 0.1", count=1)["pairs"]
    assert low == sum(s is not None and s < 0.1 for s in table.column("similarity").to_pylist())
    assert review.ask("rows?view=all&where=nothing%20=%203")[0] == 400
    assert review.ask("rows?view=all&where=1)%20OR%20(1=1")[0] == 400
    assert sum(review.get("histogram", view="all", score="similarity")["counts"]) == sum(
        s is not None for s in table.column("similarity").to_pylist()
    )


def test_decisions_undo_and_all_that_match(review):
    cards = review.get("rows", view="suspects", count=3)["cards"]
    pairs = [[card["uid"], card["number"]] for card in cards]
    review.post("decide", decision="keep", pairs=pairs[:1])
    review.post("decide", decision="drop", pairs=pairs)
    assert review.get("rows", view="suspects", count=3)["decided"] == {"drop": 3}
    assert review.post("undo")["decided"] == {"keep": 1}
    request = {"view": "suspects"}
    suspects = review.get("rows", view="suspects", count=0)["pairs"]
    answer = review.post("decide-all", decision="drop", request=request)
    assert answer["changed"] == suspects - 1
    assert answer["decided"] == {"drop": suspects - 1, "keep": 1}
    left = review.get("rows", view="suspects", undecided="1", anew=1, count=1)
    assert left["pairs"] == 0
    assert review.post("undo")["decided"] == {"keep": 1}
    assert review.post("undo")["decided"] == {}
    assert review.post("undo")["changed"] == 0


def test_no_decision_is_lost_by_twenty_kills(scored, tmp_path):
    out = tmp_path / "decisions.parquet"
    table = pq.read_table(scored / "scores.parquet", columns=["uid", "caption_number"])
    uids = iter(table.column("uid").to_pylist())
    acknowledged: list[str] = []
    draw = random.Random(3)
    for _ in range(20):
        with served(scored / "scores.parquet", "--out", out) as running:
            killer = threading.Timer(
                draw.uniform(0.0, 0.15), os.kill, (running.process.pid, signal.SIGKILL)
            )
            try:
                while True:
                    uid = next(uids)
                    running.post("decide", decision="drop", pairs=[[uid, 0]])
                    acknowledged.append(uid)
                    if killer.ident is None:  # a slow machine has not answered before
                        killer.start()
            except (OSError, http.client.HTTPException, StopIteration):
                pass  # killed before or within an answer
            killer.join()
    assert len(acknowledged) >= 20
    left = {decision.uid for decision in read_decisions(str(out))}
    assert set(acknowledged) <= left
    with served(scored / "scores.parquet", "--out", out, "--reviewer", "anna") as running:
        assert running.get("rows", count=0)["decided"]["drop"] == len(left)
        running.post("decide", decision="keep", pairs=[[acknowledged[0], 0]])
        assert running.end() == 0
    assert was_made_by(str(out), "review")
    written = pq.read_table(out).to_pylist()
    assert {row["uid"] for row in written} == left
    changed = [row for row in written if row["uid"] == acknowledged[0]]
    assert [(row["decision"], row["reviewer"]) for row in changed] == [("keep", "anna")]
    assert not list((tmp_path / ".ncclean").glob("*.entries"))


def test_overwrite_replaces_a_file_that_is_no_decisions(scored, tmp_path):
    out = tmp_path / "decisions.parquet"
    out.write_text("mine")
    with served(scored / "scores.parquet", "--out", out, "--overwrite") as running:
        running.post("decide", decision="drop", pairs=[["a", 0]])
        assert running.end(signal.SIGINT) == 0
    assert [decision.uid for decision in read_decisions(str(out))] == ["a"]


def test_a_torn_line_costs_only_itself(scored, tmp_path):
    out = tmp_path / "decisions.parquet"
    with served(scored / "scores.parquet", "--out", out) as running:
        running.post("decide", decision="drop", pairs=[["a", 0]])
        running.end(signal.SIGKILL)
    journal = tmp_path / ".ncclean" / "decisions.parquet.jsonl"
    with open(journal, "ab") as file:
        file.write(b'{"batch": 2, "decision": "drop", "pairs": [["b"')
    assert [decision.uid for decision in read_decisions(str(out))] == ["a"]
    with served(scored / "scores.parquet", "--out", out) as running:
        running.post("decide", decision="drop", pairs=[["c", 0]])
        running.end(signal.SIGKILL)
    assert [decision.uid for decision in read_decisions(str(out))] == ["a", "c"]


def test_select_reads_what_a_killed_review_left(scored, tmp_path):
    scores, out = str(scored / "scores.parquet"), tmp_path / "decisions.parquet"
    policy = Policy(method="noise-probability")
    plain = Select(scores=[scores], out=str(tmp_path / "plain.parquet"), policy=policy).run()
    kept = pq.read_table(tmp_path / "plain.parquet").column("uid").to_pylist()
    with served(scores, "--out", out) as running:
        suspects = running.get("rows", view="suspects", count=2)["cards"]
        rescued, corrected = (card["uid"] for card in suspects)
        running.post("decide", decision="keep", pairs=[[rescued, 0]])
        running.post(
            "decide", decision="correct", pairs=[[corrected, 0]], captions=["a new caption"]
        )
        running.post("decide", decision="drop", pairs=[[kept[0], 0]])
        running.end(signal.SIGKILL)
    selected = Select(
        scores=[scores], out=str(tmp_path / "s.parquet"), policy=policy, decisions=[str(out)]
    ).run()
    rows = {row["uid"]: row for row in pq.read_table(tmp_path / "s.parquet").to_pylist()}
    assert rows.keys() == {*kept[1:], rescued, corrected}
    assert rows[corrected]["caption"] == "a new caption"
    assert rows[rescued]["caption"] is None
    assert selected.summary.decided == {"correct": 1, "drop": 1, "keep": 1}
    assert selected.summary.kept == plain.summary.kept + 1
    assert selected.summary.dropped_by_reason["decision"] == 1
    page = tmp_path / "report.html"
    Report(scores=[scores], out=str(page), pairs=0, decisions=[str(out)]).run()
    assert "1 keep, 1 drop, 1 correct" in page.read_text()


def test_of_two_people_the_later_counts_and_the_conflict_is_named(scored, tmp_path):
    scores = str(scored / "scores.parquet")
    table = pq.read_table(scores, columns=["uid", "status"]).filter(
        pc.equal(pq.read_table(scores, columns=["status"]).column(0), "ok")
    )
    first, second = table.column("uid").to_pylist()[:2]
    for name, decision, uids in [("anna", "drop", [first, second]), ("bert", "keep", [first])]:
        with served(scores, "--out", tmp_path / f"{name}.parquet", "--reviewer", name) as running:
            running.post("decide", decision=decision, pairs=[[uid, 0] for uid in uids])
            assert running.end() == 0
    files = [str(tmp_path / "bert.parquet"), str(tmp_path / "anna.parquet")]
    summary = (
        Select(scores=[scores], out=str(tmp_path / "s.parquet"), decisions=files).run().summary
    )
    assert summary.decided == {"drop": 1, "keep": 1}
    assert summary.conflicts == 1
    assert summary.conflicting[0].uid == first
    assert summary.conflicting[0].decisions == (("drop", "anna"), ("keep", "bert"))


def test_a_second_review_of_the_same_file_is_refused(scored, tmp_path):
    arguments = (scored / "scores.parquet", "--out", tmp_path / "decisions.parquet")
    with (
        served(*arguments),
        pytest.raises(AssertionError, match=r"another run is writing.*go on at its page"),
        served(*arguments),
    ):
        pass


def test_the_closest_captions_are_proposed_and_never_taken_by_themselves(scored, tmp_path):
    out = tmp_path / "decisions.parquet"
    arguments = (scored / "scores.parquet", "--out", out, "--embeddings", scored / "embeddings")
    with served(*arguments) as running:
        card = running.get("rows", view="suspects", count=1)["cards"][0]
        body = {"place": card["place"]}
        answer = running.post("proposals", **body)
        assert running.get("rows", count=0)["decided"] == {}
        assert "do not have this pair" in running.post("proposals", place=1 << 41)["error"]
        assert running.end() == 0
    rows = pq.read_table(scored / "embeddings" / "metadata").to_pylist()
    image, text = (
        np.concatenate([np.load(f) for f in sorted((scored / "embeddings" / name).glob("*.npy"))])
        for name in ("img_emb", "text_emb")
    )
    at = next(number for number, row in enumerate(rows) if row["uid"] == card["uid"])
    cosines = text.astype(np.float32) @ image[at].astype(np.float32)
    best = {}
    for number in np.argsort(-cosines):
        caption = rows[number]["caption"]
        if caption.lower() != card["text"].lower():
            best.setdefault(caption.lower(), float(cosines[number]))
    assert [caption.lower() for caption, _ in answer["captions"]] == list(best)[:5]
    assert [s for _, s in answer["captions"]] == pytest.approx(list(best.values())[:5], abs=2e-3)
    alone = tmp_path / "alone.parquet"
    alone.write_bytes((scored / "scores.parquet").read_bytes())
    with served(alone, "--out", tmp_path / "other.parquet") as running:
        status, refusal = running.ask("proposals", json.dumps(body).encode(), JSON)
        assert (status, "--embeddings" in refusal["error"]) == (400, True)


def test_a_page_learns_that_another_one_decides(scored, tmp_path):
    with served(scored / "scores.parquet", "--out", tmp_path / "d.parquet") as running:

        def decides(page, uid):
            body = json.dumps({"decision": "drop", "pairs": [[uid, 0]]}).encode()
            return running.ask(f"decide?page={page}", body, JSON)[1]["others"]

        assert [decides("a", "1"), decides("a", "2"), decides("b", "3"), decides("b", "4")] == [
            False, False, True, False
        ]  # fmt: skip
        assert decides("a", "5")


def test_a_page_goes_on_in_its_order_whatever_another_one_opens(review):
    fields = {"view": "all", "undecided": "1"}
    before = [
        card["uid"] for card in review.get("rows", **fields, page="a", anew=1, count=9)["cards"]
    ]
    review.post("decide", decision="keep", pairs=[[before[0], 0]])
    review.get("rows", **fields, page="b", anew=1, count=1)
    after = review.get("rows", **fields, page="a", start=3, count=6)["cards"]
    review.post("undo")
    assert [card["uid"] for card in after] == before[3:]


ENDLESS = "(SELECT count(*) FROM range(1000000000000)) > 3"


def test_conditions_asked_at_once_have_their_own_rows_and_histograms(review):
    texts = [f"similarity < 0.{number}" for number in range(8)]
    counts = {text: review.get("rows", view="all", where=text, count=1)["pairs"] for text in texts}

    def ask(text):
        rows = review.get("rows", view="all", where=f"{text} AND true", count=1)["pairs"]
        fields = {"view": "all", "score": "similarity", "where": f"{text} AND true"}
        return rows, sum(review.get("histogram", **fields)["counts"])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, texts)) == [(counts[text], counts[text]) for text in texts]


def test_an_endless_condition_holds_neither_decisions_nor_the_end(scored, tmp_path):
    out = tmp_path / "decisions.parquet"
    with served(scored / "scores.parquet", "--out", out) as running:
        where = urllib.parse.urlencode({"view": "all", "where": ENDLESS, "count": 1})
        address = urllib.parse.urlsplit(running.url)
        connection = http.client.HTTPConnection(address.hostname, address.port)
        connection.request("GET", f"{address.path}rows?{where}")
        time.sleep(1)
        begin = time.monotonic()
        running.post("decide", decision="drop", pairs=[["a", 0]])
        assert time.monotonic() - begin < 3
        assert running.end() == 0
        assert time.monotonic() - begin < 10
    assert [decision.uid for decision in read_decisions(str(out))] == ["a"]
