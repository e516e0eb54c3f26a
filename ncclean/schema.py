"""The only Arrow schemas: every column, its type, its meaning and the module that computes it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

SCHEMA_VERSION = "1"


@dataclass(frozen=True)
class Column:
    name: str
    type: pa.DataType
    meaning: str
    producer: str  # module below `ncclean`

    def field(self) -> pa.Field:
        return pa.field(self.name, self.type)


_BOOL, _FLOAT, _INT, _STRING = pa.bool_(), pa.float32(), pa.int32(), pa.string()

SCORE_COLUMNS = (
    Column("uid", _STRING, "uid of the json, else a hash of shard name and key", "data.tar"),
    Column("shard", _STRING, "name of the shard: its file name without suffix", "data.tar"),
    Column("key", _STRING, "key of the sample in the shard", "data.tar"),
    Column("row", _INT, "position of the sample in the shard, from 0", "data.tar"),
    Column("text", _STRING, "caption (null with --no-text)", "data.tar"),
    Column("url", _STRING, "url of the json", "data.tar"),
    Column("width", _INT, "width of the original image in pixels", "data.decode"),
    Column("height", _INT, "height of the original image in pixels", "data.decode"),
    Column("status", _STRING, "ok, or why the sample has no scores", "data.samples"),
    Column("error", _STRING, "details where status is not ok", "data.samples"),
    Column("similarity", _FLOAT, "cosine of image and caption", "models.estimator"),
    Column("osa_weight", _FLOAT, "OSA cleanliness weight, 0 for noisy pairs", "scoring.osa"),
    Column("osa_noisy", _BOOL, "true where osa_weight is 0", "scoring.osa"),
    Column("ncu_confidence", _FLOAT, "softmax confidence in the own partner", "scoring.ncu"),
    Column("ncu_split", _STRING, "forget or retain", "scoring.ncu"),
    Column("disncl_clean", _BOOL, "image and caption are mutual best matches", "scoring.disncl"),
    Column("neg_clip_loss", _FLOAT, "in-batch-normalised CLIP score", "scoring.clip_loss"),
    Column("i2t_rank", _INT, "rank of the own caption in the block, 0 best", "scoring.blocks"),
    Column("t2i_rank", _INT, "rank of the own image in the block, 0 best", "scoring.blocks"),
    Column("noise_probability", _FLOAT, "probability of being mismatched", "scoring.null"),
    Column("null_p_value", _FLOAT, "share of mismatches at or above this cosine", "scoring.null"),
    Column("clean_posterior", _FLOAT, "posterior of the low-loss component", "scoring.mixture"),
    Column("block", _INT, "block of the shard, from 0", "scoring.blocks"),
    Column("is_noisy", _BOOL, "ground truth, where the input's json says so", "data.tar"),
    Column("noise_kind", _STRING, "kind of the noise, where the json says so", "data.tar"),
)
# Written by the parts phase as nulls and filled by finalize.
CALIBRATED_COLUMNS = (
    "osa_weight",
    "osa_noisy",
    "noise_probability",
    "null_p_value",
    "clean_posterior",
)
DICTIONARY_COLUMNS = ("shard", "status", "ncu_split", "noise_kind")

SCORES = pa.schema([column.field() for column in SCORE_COLUMNS])

# clip-retrieval's metadata beside the embeddings: which pair each row of the matrices belongs to.
EMBEDDING_METADATA = pa.schema(
    [("uid", _STRING), ("shard", _STRING), ("key", _STRING), ("row", _INT), ("caption", _STRING)]
)

NEIGHBOUR_COLUMNS = (
    Column("uid", _STRING, "uid of the pair, as in the score table", "storage.embeddings"),
    Column("shard", _STRING, "name of the shard", "storage.embeddings"),
    Column("key", _STRING, "key of the sample in the shard", "storage.embeddings"),
    Column(
        "image_group",
        _STRING,
        "uid of the first pair of the group of near-duplicate images; null if alone",
        "scoring.neighbours.groups",
    ),
    Column(
        "text_group",
        _STRING,
        "uid of the first pair of the group of near-duplicate captions; null if alone",
        "scoring.neighbours.groups",
    ),
    Column(
        "pair_group",
        _STRING,
        "uid of the first pair that shares both groups; null if alone",
        "scoring.neighbours.groups",
    ),
    Column(
        "image_group_similarity",
        _FLOAT,
        "cosine with the first image of the group, whitened; null if alone",
        "scoring.neighbours.groups",
    ),
    Column(
        "text_group_similarity",
        _FLOAT,
        "cosine with the first caption of the group, whitened; null if alone",
        "scoring.neighbours.groups",
    ),
    Column(
        "better_captions",
        _INT,
        "other pairs whose caption fits the image better",
        "scoring.neighbours.rivals",
    ),
    Column(
        "better_images",
        _INT,
        "other pairs whose image fits the caption better",
        "scoring.neighbours.rivals",
    ),
    Column(
        "mutual_nearest",
        _BOOL,
        "no other caption and no other image fits better",
        "scoring.neighbours.rivals",
    ),
    Column(
        "lemon_score",
        _FLOAT,
        "LEMoN: disagreement with the neighbours, higher is noisier",
        "scoring.neighbours.lemon",
    ),
)
NEIGHBOURS = pa.schema([column.field() for column in NEIGHBOUR_COLUMNS])

OUTCOME_COLUMNS = (
    Column("query", _STRING, "what was looked up: image or caption", "evaluation.outcomes"),
    Column("image", _STRING, "shard and key of the image, or of the caption's", "data.tar"),
    Column("number", _INT, "number of the caption of its image, from 0", "evaluation.outcomes"),
    Column("label", _INT, "true class of the image; null in retrieval", "evaluation.outcomes"),
    Column(
        "depth",
        _INT,
        "place of the first right answer among the nearest, from 0; 5 (classes) or 10 (retrieval) "
        "where it is further down",
        "evaluation.ranking",
    ),
)

OUTCOMES = pa.schema([column.field() for column in OUTCOME_COLUMNS])
