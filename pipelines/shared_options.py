"""Options that several commands have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from ncclean.config import CalibrateOn, WeightFunction
from ncclean.options import Option, Reads

Model = Annotated[
    str,
    Option(
        "open_clip name, `hf-hub:`, `local-dir:`, checkpoint file, `demo`, `demo-noisy`.",
        reads=Reads.MODEL,
    ),
]
Pretrained = Annotated[
    str | None,
    Option("Pretrained tag or checkpoint file of an open_clip name.", reads=Reads.WEIGHTS),
]
Precision = Annotated[str, Option("`auto`, `fp32`, `bf16` or `fp16`.")]
Device = Annotated[str, Option("`auto`, `cpu`, `cuda`, `cuda:1`, `mps`.", is_idle=True)]
Engine = Literal["auto", "local", "ray"]
Shards = Annotated[
    Sequence[str],
    Option(
        "Shards, folders, globs, brace ranges `{0000..0099}.tar`, `@list.txt` or URLs.",
        argument=True,
        metavar="SHARDS",
        reads=Reads.SHARDS,
    ),
]
ImageRoot = Annotated[
    str | None,
    Option("Folder that the images of a table lie below (default: the table's)."),
]
Scores = Annotated[
    Sequence[str],
    Option(
        "Score files, folders, globs or URLs.", argument=True, metavar="PATH", reads=Reads.TABLE
    ),
]
PictureShards = Annotated[
    Sequence[str],
    Option(
        "The scored shards, for pictures: a folder, `'quoted glob'`, brace range, `@list.txt` or "
        "URL; may be given several times.",
        reads=Reads.SHARDS,
    ),
]
PageTitle = Annotated[str | None, Option("Title of the page (default: name of the table).")]
ScoresOut = Annotated[
    str,
    Option(
        "`*.parquet` for one file, else a folder of parts.", flags=("-o",), inside="scores.parquet"
    ),
]
Shift = Annotated[
    str | float,
    Option(
        "Boundary of OSA: the cosine on `noise`, of `shuffled` pairs, or a number; `auto` is noise "
        "if a model is there."
    ),
]
OsaFunction = Annotated[
    WeightFunction,
    Option(
        "OSA's weight of x, the cosine above the boundary: `high_degree` (x^2 (1 - x)), "
        "`linear` or `cosine`."
    ),
]
CalibrateOnOption = Annotated[
    CalibrateOn,
    Option(
        "Score that `noise_probability` is calibrated on; `auto` takes the one that is expected to "
        "be wrong on fewer pairs."
    ),
]
Join = Annotated[
    Sequence[str],
    Option(
        "Table with more columns, `FILE` or `NAME=FILE`, joined by uid, or by shard and key; "
        "repeatable.",
        reads=Reads.JOINED,
    ),
]
CaptionKey = Annotated[
    str | None,
    Option("Extension or json field of the caption (default: `.txt`, `.caption`, json)."),
]
EmbeddingKeys = Annotated[
    str | None,
    Option(
        "Names of image and caption vectors in `.npz` or Parquet files, commas between (default: "
        "`l14_img,l14_txt` and the like).",
        metavar="IMG,TEXT",
    ),
]
Processes = Annotated[int | None, Option("Processes (default: one per core).", low=1, is_idle=True)]
MemoryLimit = Annotated[
    str | None, Option("Memory that DuckDB may take, such as `4GB`.", is_idle=True)
]
Overwrite = Annotated[bool, Option("Start again instead of resuming.", in_recipes=False)]


def plot_option(inside: str | None = None) -> Option:
    """Where a figure is drawn; `inside` is its place in a stage's folder."""
    return Option(
        "Draw the figure to this `.png`, `.svg` or `.pdf`.",
        metavar="PATH",
        endings=(".png", ".svg", ".pdf"),
        inside=inside,
        extra="plots",
    )
