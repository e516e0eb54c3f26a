"""Options that several commands have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from ncclean.base.config import CalibrateOn, WeightFunction
from ncclean.base.file_names import FIGURE_ENDINGS
from ncclean.base.options import Option, Reads

Model = Annotated[
    str,
    Option(
        "open_clip name, `hf-hub:NAME`, `local-dir:FOLDER`, checkpoint file, `demo` or "
        "`demo-noisy`.",
        reads=Reads.MODEL,
        source="images",
    ),
]
Pretrained = Annotated[
    str | None,
    Option(
        "Pretrained tag of an open_clip name, or weights file for the architecture of --model "
        "(default for `ViT-B-32`: `laion2b_s34b_b79k`).",
        reads=Reads.NAME_OR_FILE,
        shows_default=False,
    ),
]
Preprocess = Annotated[
    str | None,
    Option(
        "Preprocess images as these released weights, `TAG` or `ARCHITECTURE/TAG` (default: as "
        "the model's own).",
        metavar="TAG",
    ),
]
Precision = Annotated[
    str, Option("`fp32`, `tf32`, `bf16`, `fp16`, or `auto`: `bf16` where it is native.")
]
Device = Annotated[str, Option("`auto`, `cpu`, `cuda`, `cuda:1` or `mps`.", is_idle=True)]

Engine = Annotated[
    Literal["auto", "local", "ray"],
    Option(
        "`local` or `ray`; `auto` is `ray` with --ray-address, or to score on several GPUs.",
        is_idle=True,
    ),
]
Shards = Annotated[
    Sequence[str],
    Option(
        "Shards, folders, globs, brace ranges `{0000..0099}.tar`, `@list.txt` or URLs.",
        argument=True,
        metavar="SHARDS",
        reads=Reads.SHARDS,
    ),
]
OutputLayout = Annotated[
    Literal["auto", "webdataset", "folder", "csv", "parquet"],
    Option(
        "`webdataset` (tars), `folder` or `csv` (images and a table), "
        "`parquet`, or `auto`: as the input."
    ),
]
Scores = Annotated[
    Sequence[str],
    Option(
        "Score files, folders, globs or URLs.", argument=True, metavar="SCORES", reads=Reads.TABLE
    ),
]
ScoredShards = Annotated[
    Sequence[str],
    Option("The scored shards: folder, `'quoted glob'`, `@list.txt` or URL.", reads=Reads.SHARDS),
]
PageTitle = Annotated[str | None, Option("Title of the page (default: the name of the table).")]
ScoresOut = Annotated[
    str,
    Option(
        "`*.parquet` for one file, any other name for a folder of parts.", inside="scores.parquet"
    ),
]
Shift = Annotated[
    str | float,
    Option(
        "OSA's boundary: the cosine of `noise`, of `shuffled` pairs, or a number; "
        "`auto` is `noise` if there is a model."
    ),
]
OsaFunction = Annotated[
    WeightFunction, Option("Shape of OSA's weight: `high_degree`, `linear` or `cosine`.")
]
CalibrateOnOption = Annotated[
    CalibrateOn,
    Option(
        "Calibrate noise_probability on `similarity`, `neg_clip_loss`, or "
        "`auto`: the one with fewer expected errors."
    ),
]
Join = Annotated[
    Sequence[str],
    Option(
        "Table with more columns, `FILE` or `NAME=FILE`, joined by uid, or by shard and key.",
        reads=Reads.JOINED,
    ),
]
Decisions = Annotated[
    Sequence[str],
    Option("Decisions of `ncclean review`, which override all rules.", reads=Reads.PATH),
]
Donors = Annotated[
    Sequence[str], Option("Corpus whose captions become wrong ones.", reads=Reads.SOURCE)
]
CaptionKey = Annotated[
    str | None,
    Option(
        "Extension, json field or column of the caption (default: `.txt`, `caption` and the like)."
    ),
]
Scale = Annotated[
    str | float | None,
    Option(
        "For embeddings: logit scale, or the model that has it (default: 100).", source="embeddings"
    ),
]
EmbeddingKeys = Annotated[
    str | None,
    Option(
        "Names of the image and caption vectors in `.npz` or Parquet files (default: "
        "`l14_img,l14_txt` and the like).",
        metavar="IMG,TEXT",
        source="embeddings",
    ),
]
Processes = Annotated[int | None, Option("Processes (default: one per core).", low=1, is_idle=True)]
PricePerHour = Annotated[
    float | None,
    Option(
        "With --dry-run: price of a worker's hour, to estimate the cost.", low=0, in_recipes=False
    ),
]
MemoryLimit = Annotated[
    str | None, Option("Memory that DuckDB may use, such as `4GB`.", is_idle=True)
]
Overwrite = Annotated[
    bool, Option("Replace existing output instead of resuming or refusing.", in_recipes=False)
]


def sources_option(metavar: str, typed_default: Sequence[str] | None = None) -> Option:
    """Return the option for a command's sources: images or embeddings in any layout."""
    return Option(
        "Images or embeddings: shards, tables, folders, globs, brace ranges "
        "`{0000..0099}.tar`, `@list.txt` or URLs.",
        argument=True,
        metavar=metavar,
        reads=Reads.SOURCE,
        typed_default=typed_default,
    )


def json_option(inside: str) -> Option:
    """Return the option for a JSON file of the result.

    `inside` is its place in a stage's folder.
    """
    return Option("JSON file of the result.", inside=inside, endings=(".json",))


def plot_option(inside: str | None = None) -> Option:
    """Return the option for the file of a figure; `inside` is its place in a stage's folder."""
    return Option(
        "Draw the figure to this `.png`, `.svg` or `.pdf`.",
        metavar="PATH",
        endings=FIGURE_ENDINGS,
        inside=inside,
        extra="plots",
    )
