"""What commands print and write, as `outputs.yaml` has it: nothing changes without being read.

    WRITE_OUTPUTS=1 python -m pytest tests/cli/test_outputs.py

writes it anew; the difference is part of a review. A command stands for its options together, on
corpora with what real ones have: noise, broken samples, repeats, several captions of an image,
missing values. Numbers may differ by what processors do; pages, drawings and weights, where that
shows in every line, are left out.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from tests import digests
from tests.command_line import run

OUTPUTS = Path(__file__).with_name("outputs.yaml")
IS_WRITING = bool(os.environ.get("WRITE_OUTPUTS"))
Outcome = dict[str, Any]
_SUMS = re.compile(r"\bn \d+(, \d+ not finite)?: ")
_FILL = re.compile(r"([ ─])\1+")  # between columns that are as wide as their numbers
_NUMBER = re.compile(r"-?\d+(?:\.(\d+))?(?:e[+-]?\d+)?")

SCORED = """
synth -o web --pairs 320 --shard-size 80 --noise .25 --hard .05 --junk .05 --broken .03 \
  --duplicates .06 --held-out 24 --workers 1
score web -o scores.parquet --model demo --embeddings emb --signals language,text,image --words \
  --text --block-size 128 --decode-threads 1
neighbours emb -o near.parquet --image-threshold .9 --workers 1
select scores.parquet --method noise-probability -o clean.parquet
select scores.parquet --method ncu --with-forget --weights osa_weight -o ncu.parquet
"""
WALKS = {
    "select": """
select scores.parquet --method osa -o osa.parquet
select scores.parquet --method disncl --where "width > 120 OR is_noisy" -o disncl.parquet
select scores.parquet --score "similarity - blur / 1000" --keep-fraction .4 -o best.parquet
select scores.parquet --score "rank(i2t_rank)" --lowest --threshold .5 -o ranks.parquet
select scores.parquet --balance-by noise_kind --cap 9 -o balanced.parquet
select scores.parquet --balance-by image_path --join near.parquet --score similarity --cap 5 \
  -o grouped.parquet
select scores.parquet --sample soft-cap --score similarity --size 400 --join near.parquet \
  -o drawn.parquet
select scores.parquet --dedup near.parquet --dedup-by image --weights clean_posterior -o dd.parquet
select scores.parquet --decisions decisions.jsonl --method noise-probability -o decided.parquet
query "SELECT noise_kind, status, count(*) AS n, avg(similarity) FROM scores GROUP BY ALL
  ORDER BY ALL" scores.parquet
query "SELECT * FROM scores WHERE near.image_group IS NOT NULL ORDER BY uid LIMIT 20" \
  scores.parquet --join near=near.parquet --csv
""",
    "neighbours": """
neighbours emb -o whitened.parquet --whiten --linkage components --k 5 --workers 1
neighbours emb -o plain.parquet --no-whiten --index ivf --recall .8 --reference emb --workers 1
""",
    "explain": """
inject-noise web -o mixed --kind ncr --rate .3 --kind hard --rate .1 --kind decl --rate .1 \
  --seed 3 --workers 1
inject-noise captions.csv -o moved --caption-key caption --kind ncr_image --rate .4 \
  --write-noise-file noise.npy --workers 1
inject-noise web -o junk --kind junk --rate .1 --kind per_batch --rate .3 --batch-size 16 \
  --workers 1
synth -o plain --pairs 400 --shard-size 80 --noise .05 --held-out 0 --seed 7 --workers 1
inject-noise plain/00004.tar -o shifted --noise-file shift.npy --workers 1
score plain/0000{0..3}.tar shifted/00004.tar -o five.parquet --model demo --embeddings emb5 --text \
  --decode-threads 1
explain five.parquet -o causes.parquet --min-pairs 20 --examples 3 --clusters 6
query "SELECT * FROM scores" causes.parquet --csv
explain scores.parquet -o bare.parquet --by noise_kind --min-pairs 12 --min-excess .02
select five.parquet --exclude-causes causes.parquet -o without.parquet
select five.parquet -o whole.parquet
export whole.parquet --shards plain/0000{0..3}.tar --shards shifted --fix shift \
  --causes causes.parquet -o mended --workers 1
report five.parquet -o causes.html --causes causes.parquet --shards plain/0000{0..3}.tar \
  --shards shifted --pairs 4
""",
    "audit": """
audit scores.parquet --shards web --pairs 60 -o audit --seed 2
audit scores.parquet --answers answers.csv --width .1
audit scores.parquet --answers answers.csv --judge-column "similarity<0.3" --partly mismatch \
  --cannot-tell mismatch --selection clean.parquet --json
select scores.parquet --method osa --audit answers.csv -o audited.parquet
score web -o again.parquet --model demo --text --decode-threads 1
audit again.parquet --answers answers.csv --sample audit/sample.parquet --apply
score web -o again.parquet --finalize-only --shift shuffled --osa-function cosine \
  --calibrate-on similarity
""",
    "export": """
export clean.parquet --shards web -o tars --samples-per-shard 50 --scores scores.parquet \
  --columns similarity,noise_kind --workers 1
export clean.parquet --shards web -o folder --layout folder --workers 1
export clean.parquet --shards web -o csv --layout csv --scores scores.parquet --workers 1
export clean.parquet --shards web -o table.parquet --layout parquet --workers 1
export clean.parquet -o uids.npy
select scores.parquet --decisions decisions.jsonl --weights clean_posterior -o weighted.parquet
export weighted.parquet --shards web -o repeated --repeat --workers 1
score folder -o folder.parquet --model demo --decode-threads 1
clean web -o cleaned --model demo --threshold .3
report scores.parquet --shards web -o report.html --pairs 5 --audit answers.csv --figures figures
""",
    "tables": """
score captions.csv -o captions.parquet --model demo --caption-key caption --caption-key alt --text \
  --calibrate-by "lang" --decode-threads 1
select captions.parquet --best-caption -o captions_best.parquet
export captions_best.parquet --shards captions.csv --caption-key caption --caption-key alt \
  -o captions_csv --layout csv --workers 1
score emb -o vectors.parquet --pool 64 --canonical --scale 50 --forget-percent 20
evaluate noise vectors.parquet --score "cos=similarity" --threshold similarity=.2 \
  --rule "i2t_rank > 3"
evaluate noise emb --inject .2 --scale 50
score web/0000{0..1}.tar -o first.parquet --model demo --decode-threads 1
score web/0000{2..3}.tar -o second.parquet --model demo --decode-threads 1
merge first.parquet second.parquet -o merged.parquet --shift -.2
""",
    "evaluate": """
evaluate noise scores.parquet -o noise.json --table noise.csv
evaluate zeroshot --model demo --data web/heldout -o good
evaluate zeroshot --model demo-noisy --data web/heldout -o noisy
evaluate retrieval --model demo --data web/heldout -o good_retrieval
evaluate retrieval --model demo-noisy --data web/heldout -o noisy_retrieval
evaluate retrieval --model demo --data web/heldout --captions-per-image 2
evaluate linear-probe --model demo-noisy --data web/heldout -o probe
evaluate linear-probe --model demo-noisy --data web/heldout --solver adamw --epochs 3
evaluate compare good_retrieval noisy_retrieval --draws 200
evaluate compare good noisy --draws 200 -o compared.json
evaluate similarity --model demo-noisy --against demo --data web/heldout/retrieval -o similarity
""",
    "train": "\n".join(
        f"finetune --method {method} --model demo-noisy --shards web --selection ncu.parquet"
        f" --batch-size 16 --learning-rate 1e-3 --steps 3 --decode-threads 1 -o runs/{method}"
        f" {options}"
        for method, options in {
            "clip": "--ema .9 --parts 2 --augment",
            "osa": "--normalize-weights",
            "ncu": "--prompt-epochs 1",
            "bayes": "",
            "disncl": "",
            "gradient_ascent": "--forget-by model",
            "softclip": "--batch-noise .3",
            "cyclip": "",
            "rince": "",
            "decl": "",
            "siglip": "",
        }.items()
    )
    + "\nadapt scores.parquet --shards web --model demo-noisy -o adapted --steps 2 --batch-size 32",
}


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcome]]:
    """The outcomes of the commands that all walks begin with, in whose folder they run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("outputs"))
        outcomes = outcomes_of(SCORED)
        make_inputs()
        yield outcomes


def outcomes_of(walk: str) -> dict[str, Outcome]:
    commands = [shlex.split(line) for line in re.split(r"\n(?=[a-z])", walk.strip())]
    return {shlex.join(words): outcome(words) for words in commands}


def outcome(words: list[str]) -> Outcome:
    """What the command prints, and the digests of what is new in the current folder."""
    before = digests.times()
    finished = run(*words)
    written = sorted(name for name, time in digests.times().items() if before.get(name) != time)
    lines = {name: digests.digest(Path(name)) for name in written}
    assert finished.returncode == 0, finished.stderr
    printed = "\n".join(line.rstrip() for line in finished.stdout.splitlines())
    return {"prints": digests.text(printed).splitlines(), "writes": lines}


def make_inputs() -> None:
    """Decisions, answers with errors, and a table with two captions an image, some of them none."""
    rows = pq.read_table("scores.parquet").to_pylist()
    pairs = [row for row in rows if row["status"] == "ok"]
    time = "2026-01-01T00:00:00+00:00"
    with Path("decisions.jsonl").open("w") as file:
        for number, row in enumerate(pairs[::9]):
            decision = ("keep", "drop", "correct")[number % 3]
            caption = f"mended {number}" if decision == "correct" else None
            line = {"uid": row["uid"], "decision": decision, "caption": caption, "time": time}
            file.write(json.dumps(line) + "\n")
    with Path("answers.csv").open("w") as file:
        file.write("uid,answer\n")
        for number, row in enumerate(pairs[::3]):
            answer = "mismatch" if row["is_noisy"] else "match"
            file.write(f"{row['uid']},{ {7: 'partly', 11: 'cannot tell'}.get(number, answer) }\n")
    np.save("shift.npy", np.roll(np.arange(80), 1))  # for the last shard
    Path("images").mkdir()
    with Path("captions.csv").open("w") as table, tarfile.open("web/00000.tar") as tar:
        table.write("image,caption,alt,lang\n")
        images = [name for name in tar.getnames() if name.endswith((".png", ".jpg", ".webp"))]
        for number, name in enumerate(images):
            member = tar.extractfile(name)
            assert member is not None
            Path("images", name).write_bytes(member.read())
            for other in range(1 + number % 2):
                text = rows[(number + 7 * other) % 80]["text"]
                alt = "" if number % 5 == 0 else rows[(3 * number) % 80]["text"]
                table.write(
                    f'images/{name},"{text}","{alt or ""}",{("en", "de", "")[number % 3]}\n'
                )


@pytest.mark.parametrize("walk", ["scored", *WALKS])
def test_outputs_are_those_of_the_snapshot(walk, scored):
    said = outcomes_of(WALKS[walk]) if walk in WALKS else scored
    snapshot = yaml.load(OUTPUTS.read_text("utf-8"), yaml.CSafeLoader) if OUTPUTS.exists() else {}
    if IS_WRITING:
        text = yaml.dump({**snapshot, walk: said}, sort_keys=False, allow_unicode=True, width=10**6)
        OUTPUTS.write_text(text, "utf-8")
        return
    assert list(said) == list(snapshot[walk])
    for command, expected in snapshot[walk].items():
        assert differences(flat(expected), flat(said[command])) == [], command


def flat(outcome: Outcome) -> list[str]:
    files = outcome["writes"].items()
    return outcome["prints"] + [f"{name}: {line}" for name, lines in files for line in lines]


def differences(expected: list[str], said: list[str]) -> list[str]:
    """The lines that differ: in words, or in a number by more than the last digit printed."""
    lines = [
        f"- {one}\n+ {other}"
        for one, other in zip(expected, said, strict=False)
        if not alike(one, other)
    ]
    return lines + [f"{len(expected)} lines, now {len(said)}"] * (len(expected) != len(said))


def alike(*lines: str) -> bool:
    one, other = (_FILL.sub(r"\1", line) for line in lines)
    if one == other:
        return True
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = list(zip(_NUMBER.finditer(one), _NUMBER.finditer(other), strict=True))
    # Of digests, the sum of sizes says how far sums may differ; else, the last digit.
    size = max(abs(float(a[0])) for a, _ in pairs)
    return all(
        math.isclose(
            float(a[0]),
            float(b[0]),
            rel_tol=1e-3,
            abs_tol=3e-4 * size if _SUMS.search(one) else 1.1 * 10.0 ** -len(a[1]) if a[1] else 0,
        )
        for a, b in pairs
    )
