"""Pairs with several captions each, written in two layouts, and their scores."""

import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
from ncclean_pipelines.score import Score

from ncclean.base.config import ScoreOptions

KEYS = ("caption", "recaption")


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
