"""The only Arrow schemas: every column, its type, its meaning and its module.

A score column also states which direction is clean, its range, and where it is shown; `select`,
`report` and `evaluate noise` read these facts from here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

SCHEMA_VERSION = "1"


@dataclass(frozen=True, kw_only=True)
class ScoreFacts:
    """The facts needed to sort by a score, cut it and show it.

    `range` holds every value that a threshold can have, both ends included; None has no bounds.
    `noise_threshold` is the operating point: a pair at or beyond it, on the noisy side, is flagged;
    `exclusive` excludes the threshold itself. Without one, `evaluate noise` flags as many pairs as
    it estimates to be noisy. `follows_cosine` marks a score that never increases or never decreases
    in the cosine (`noise_probability` only if it is calibrated on it). `report_place` orders the
    scores with a threshold curve in the report, `evaluation_place` those of `evaluate noise`; 0
    omits the score.
    """

    label: str
    higher_is_cleaner: bool
    range: tuple[float, float] | None = None
    noise_threshold: float | None = None
    exclusive: bool = False
    follows_cosine: bool = False
    report_place: int = 0
    evaluation_place: int = 0

    @property
    def is_share(self) -> bool:
        """Whether all values of the score lie in [0, 1]."""
        return self.range == (0, 1)


@dataclass(frozen=True)
class Column:
    name: str
    type: pa.DataType
    meaning: str
    producer: str  # module below `ncclean`
    score: ScoreFacts | None = None

    def field(self) -> pa.Field:
        return pa.field(self.name, self.type)

    @property
    def sql_type(self) -> str:
        """DuckDB's type of the column."""
        return SQL_TYPES[str(self.type)]


SQL_TYPES = {
    "string": "VARCHAR",
    "float": "FLOAT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "bool": "BOOLEAN",
    "list<item: float>": "FLOAT[]",
    "list<item: int32>": "INTEGER[]",
}
_BOOL, _FLOAT, _STRING = pa.bool_(), pa.float32(), pa.string()
_INT, _LONG = pa.int32(), pa.int64()
_FLOATS, _INTS = pa.list_(_FLOAT), pa.list_(_INT)

SCORE_COLUMNS = (
    Column("uid", _STRING, "uid of the json, else a hash", "data.tar"),
    Column("shard", _STRING, "file name of the shard, without suffix", "data.tar"),
    Column("key", _STRING, "key of the sample", "data.tar"),
    Column("row", _INT, "position in the shard, from 0; of embeddings, in the file", "data.tar"),
    Column("caption_number", pa.int16(), "number of the caption, from 0", "data.samples"),
    Column("caption_key", _STRING, "--caption-key of the caption", "data.samples"),
    Column("text", _STRING, "caption (null with --no-text)", "data.tar"),
    Column("caption_tokens", _INT, "tokens of the uncut caption",
           "models.tokens"),
    Column("url", _STRING, "url of the json", "data.tar"),
    Column("width", _INT, "width of the original in pixels", "data.decode"),
    Column("height", _INT, "height of the original in pixels", "data.decode"),
    Column("image_path", _STRING, "file of the image, as the source names it; else null",
           "data.samples"),
    Column("image_offset", _LONG, "first byte of the image in its tar; null in other layouts and "
           "in packed tars", "data.tar"),
    Column("image_size", _LONG, "bytes of the image in its tar, or of its file", "data.samples"),
    Column("sample_offset", _LONG, "first byte of the sample's members in the tar, headers "
           "included; null where others lie between them", "data.tar"),
    Column("sample_size", _LONG, "bytes of all its members, headers and padding included",
           "data.tar"),
    Column("status", _STRING, "ok, or why there are no scores", "data.samples"),
    Column("error", _STRING, "details where status is not ok", "data.samples"),
    Column("similarity", _FLOAT, "cosine of image and caption", "models.estimator",
           ScoreFacts(label="Cosine similarity", higher_is_cleaner=True, range=(-1, 1),
                      follows_cosine=True, report_place=2, evaluation_place=1)),
    # OSA's boundary is weight 0.
    Column("osa_weight", _FLOAT, "OSA cleanliness weight, 0 for noisy pairs", "scoring.osa",
           ScoreFacts(label="OSA weight", higher_is_cleaner=True, noise_threshold=0.0,
                      follows_cosine=True, report_place=5, evaluation_place=2)),
    Column("osa_noisy", _BOOL, "true where osa_weight is 0", "scoring.osa"),
    Column("ncu_confidence", _FLOAT, "softmax confidence in the pair", "scoring.ncu",
           ScoreFacts(label="NCU confidence", higher_is_cleaner=True, range=(0, 1),
                      report_place=4, evaluation_place=3)),
    Column("ncu_split", _STRING, "forget or retain", "scoring.ncu"),
    Column("disncl_clean", _BOOL, "mutual best matches in the block", "scoring.disncl"),
    Column("neg_clip_loss", _FLOAT, "in-batch-normalised CLIP score", "scoring.clip_loss",
           ScoreFacts(label="Negative CLIP loss", higher_is_cleaner=True, report_place=3,
                      evaluation_place=4)),
    # A threshold of 1 flags every pair that is not the best match of its block.
    Column("i2t_rank", _INT, "rank of the own caption in the block, 0 best", "scoring.blocks",
           ScoreFacts(label="Rank of the own caption", higher_is_cleaner=False,
                      noise_threshold=1.0, evaluation_place=8)),
    Column("t2i_rank", _INT, "rank of the own image in the block, 0 best", "scoring.blocks",
           ScoreFacts(label="Rank of the own image", higher_is_cleaner=False,
                      noise_threshold=1.0, evaluation_place=9)),
    Column("noise_probability", _FLOAT, "probability of being mismatched", "scoring.null",
           ScoreFacts(label="Noise probability", higher_is_cleaner=False, range=(0, 1),
                      noise_threshold=0.5, follows_cosine=True, report_place=1,
                      evaluation_place=5)),
    Column("null_p_value", _FLOAT, "share of mismatches with at least this score", "scoring.null",
           ScoreFacts(label="Null p-value", higher_is_cleaner=False, range=(0, 1),
                      noise_threshold=0.05, evaluation_place=6)),
    Column("clean_posterior", _FLOAT, "posterior of the low-loss component", "scoring.mixture",
           ScoreFacts(label="Clean posterior", higher_is_cleaner=True, range=(0, 1),
                      noise_threshold=0.5, exclusive=True, report_place=6, evaluation_place=7)),
    Column("block", _INT, "block of the shard, from 0", "scoring.blocks"),
    Column("calibration_group", _STRING, "value of --calibrate-by", "storage.grouping"),
    Column("is_noisy", _BOOL, "ground truth, if known", "data.tar"),
    Column("noise_kind", _STRING, "kind of the noise, if known", "data.tar"),
)  # fmt: skip
# Written by the parts phase as nulls and filled by finalize.
CALIBRATED_COLUMNS = (
    "osa_weight",
    "osa_noisy",
    "noise_probability",
    "null_p_value",
    "clean_posterior",
)
DICTIONARY_COLUMNS = (
    "shard",
    "caption_key",
    "status",
    "ncu_split",
    "calibration_group",
    "noise_kind",
)
# `ncclean.data.samples.Place`. Values grow from row to row: the increments are stored.
PLACE_COLUMNS = ("image_path", "image_offset", "image_size", "sample_offset", "sample_size")
DELTA_COLUMNS = {
    name: "DELTA_BYTE_ARRAY" if name == "image_path" else "DELTA_BINARY_PACKED"
    for name in PLACE_COLUMNS
}

SCORES = pa.schema([column.field() for column in SCORE_COLUMNS])


def with_further(fields: Iterable[pa.Field]) -> pa.Schema:
    """The schema of a score table with further columns."""
    return pa.schema([*SCORES, *fields])


def run_schema(kinds: pa.Schema) -> pa.Schema:
    """The schema of a score table that was read: ncclean's columns and the table's further ones."""
    return with_further(field for field in kinds if field.name not in SCORES.names)


def as_scores(table: pa.Table) -> pa.Table:
    """Cast a score table that was read to its schema; missing columns are null."""
    for field in SCORES:
        if field.name not in table.column_names:  # of an older version
            nulls = pa.nulls(len(table), field.type)
            table = table.append_column(
                field, nulls.fill_null(0) if field.name == "caption_number" else nulls
            )
    kinds = run_schema(table.schema)
    return table.select(kinds.names).cast(kinds)


# clip-retrieval's metadata beside the embeddings: which pair each row of the matrices belongs to,
# and the facts of its json. The caption has clip-retrieval's name for it.
EMBEDDING_METADATA_COLUMNS = {
    "uid": "uid", "shard": "shard", "key": "key", "row": "row", "caption_number": "caption_number",
    "caption_key": "caption_key", "text": "caption", "url": "url",
    "width": "width", "height": "height", "is_noisy": "is_noisy", "noise_kind": "noise_kind",
}  # fmt: skip
EMBEDDING_METADATA = pa.schema(
    [(name, SCORES.field(column).type) for column, name in EMBEDDING_METADATA_COLUMNS.items()]
)

# Columns of `--canonical`.
CANONICAL = Column(
    "canonical_similarity", _FLOAT, "cosine in the directions that images and captions share",
    "scoring.canonical",
    ScoreFacts(label="Canonical similarity", higher_is_cleaner=True, evaluation_place=13),
)  # fmt: skip

# Columns of `--words`.
WORD_COLUMNS = (
    Column("word_margin", _FLOAT, "cosine less that of the best caption with one other word",
           "scoring.near_miss",
           ScoreFacts(label="Word margin", higher_is_cleaner=True, evaluation_place=10)),
    Column("suspect_word", _STRING, "word of the caption where another fits better",
           "execution.word_checks"),
    Column("better_word", _STRING, "the word that fits better", "execution.word_checks"),
    Column("near_miss_score", _FLOAT, "word margin plus cosine less what the caption leads to "
           "expect", "scoring.near_miss",
           ScoreFacts(label="Near-miss score", higher_is_cleaner=True, evaluation_place=11)),
    Column("near_miss_probability", _FLOAT,
           "probability that a word is wrong; where wrong words are easy to see, up to 1.5 times "
           "too high on average",
           "scoring.near_miss",
           ScoreFacts(label="Near-miss probability", higher_is_cleaner=False, range=(0, 1),
                      noise_threshold=0.5, evaluation_place=12)),
)  # fmt: skip
WORD_TYPES = {column.name: column.type for column in WORD_COLUMNS}

# Columns of `--caption-parts`.
PART_COLUMNS = (
    Column("part_count", _INT, "parts of the caption: sentences, or windows of long ones",
           "data.caption_parts"),
    Column("worst_part", _STRING, "the part that fits the image least", "execution.part_columns"),
    Column("worst_part_number", _INT, "which part that is, from 0", "execution.part_columns"),
    Column("worst_part_similarity", _FLOAT, "cosine of image and that part",
           "execution.part_columns",
           ScoreFacts(label="Cosine of the worst part", higher_is_cleaner=True, range=(-1, 1),
                      evaluation_place=14)),
    Column("mean_part_similarity", _FLOAT, "mean cosine of image and parts",
           "execution.part_columns",
           ScoreFacts(label="Mean cosine of the parts", higher_is_cleaner=True, range=(-1, 1),
                      evaluation_place=15)),
    Column("part_noise_probability", _FLOAT,
           "probability that at least one part does not belong to the image; "
           "with a weak estimator up to 1.5 times too high on average",
           "scoring.caption_parts",
           ScoreFacts(label="Part noise probability", higher_is_cleaner=False, range=(0, 1),
                      noise_threshold=0.5, evaluation_place=16)),
    Column("part_starts", _INTS, "characters at which the parts begin, from 0",
           "data.caption_parts"),
    Column("part_similarities", _FLOATS, "cosine of image and each part",
           "execution.part_columns"),
    Column("part_log_odds", _FLOATS, "log-odds of each part to be foreign rather than its own",
           "scoring.caption_parts"),
    Column("part_noise_probabilities", _FLOATS, "probability of each part to be foreign",
           "scoring.caption_parts"),
)  # fmt: skip
PART_TYPES = {column.name: column.type for column in PART_COLUMNS}
# Absent without the option.
OPTIONAL_COLUMNS = (CANONICAL, *WORD_COLUMNS, *PART_COLUMNS)

NEIGHBOUR_COLUMNS = (
    Column("uid", _STRING, "uid of the pair, as in the score table", "neighbour_search.table"),
    Column("shard", _STRING, "name of the shard", "neighbour_search.table"),
    Column("key", _STRING, "key of the sample in the shard", "neighbour_search.table"),
    Column(
        "caption_number",
        pa.int16(),
        "which of the sample's captions, from 0",
        "neighbour_search.table",
    ),
    Column(
        "image_group",
        _STRING,
        "uid of the first pair of the group of near-duplicate images; null without another image",
        "neighbour_search.near_duplicates",
    ),
    Column(
        "text_group",
        _STRING,
        "uid of the first pair of the group of near-duplicate captions; null if alone",
        "neighbour_search.near_duplicates",
    ),
    Column(
        "pair_group",
        _STRING,
        "uid of the first pair that shares both groups; null if alone",
        "neighbour_search.near_duplicates",
    ),
    Column(
        "image_group_similarity",
        _FLOAT,
        "cosine with the first image of the group, whitened; null if alone",
        "neighbour_search.near_duplicates",
    ),
    Column(
        "text_group_similarity",
        _FLOAT,
        "cosine with the first caption of the group, whitened; null if alone",
        "neighbour_search.near_duplicates",
    ),
    Column(
        "better_captions",
        _INT,
        "other pairs whose caption fits the image better",
        "neighbour_search.better_matches",
        ScoreFacts(label="Captions that fit better", higher_is_cleaner=False),
    ),
    Column(
        "better_images",
        _INT,
        "other pairs whose image fits the caption better",
        "neighbour_search.better_matches",
        ScoreFacts(label="Images that fit better", higher_is_cleaner=False),
    ),
    Column(
        "mutual_nearest",
        _BOOL,
        "no other caption and no other image fits better",
        "neighbour_search.better_matches",
    ),
    Column(
        "lemon_score",
        _FLOAT,
        "LEMoN: disagreement with the neighbours, higher is noisier",
        "neighbour_search.lemon",
        ScoreFacts(label="LEMoN score", higher_is_cleaner=False),
    ),
    Column(
        "cluster", _INT, "k-means cluster of the image, from 0", "neighbour_search.inverted_lists"
    ),
    Column(
        "reference_similarity",
        _FLOAT,
        "largest cosine with an image of --reference; null without",
        "neighbour_search.reference",
        ScoreFacts(label="Similarity to the reference", higher_is_cleaner=True, range=(-1, 1)),
    ),
    Column(
        "nearest_reference",
        _STRING,
        "uid of that image, or its row in a matrix; null without",
        "neighbour_search.reference",
    ),
    Column(
        "contaminated",
        _BOOL,
        "the image is one of the reference; null without",
        "neighbour_search.reference",
    ),
)
NEIGHBOURS = pa.schema([column.field() for column in NEIGHBOUR_COLUMNS])

SCORE_FACTS = {
    column.name: column.score
    for column in (*SCORE_COLUMNS, *OPTIONAL_COLUMNS, *NEIGHBOUR_COLUMNS)
    if column.score is not None
}


def facts_of(score: str) -> ScoreFacts | None:
    """Return direction, bounds and similar facts of a score column; None for an unknown column.

    >>> facts_of("dfn.noise_probability").higher_is_cleaner
    False
    """
    column = re.fullmatch(r'(?:(?:\w+|"[^"]+")\.)?"?(\w+)"?', score.strip())
    return SCORE_FACTS.get(column[1].lower()) if column is not None else None


# Both in the order of their places.
REPORT_SCORES = {
    name: facts
    for name, facts in sorted(SCORE_FACTS.items(), key=lambda score: score[1].report_place)
    if facts.report_place
}
EVALUATED_SCORES = {
    name: facts
    for name, facts in sorted(SCORE_FACTS.items(), key=lambda score: score[1].evaluation_place)
    if facts.evaluation_place
}

OUTCOME_COLUMNS = (
    Column("query", _STRING, "image or caption", "evaluation.results"),
    Column("image", _STRING, "shard and key of the image", "data.tar"),
    Column("number", _INT, "number of the caption, from 0", "evaluation.results"),
    Column("label", _INT, "true class of the image", "evaluation.results"),
    Column(
        "depth",
        _INT,
        "place of the first right answer, from 0; at most 5 (classes) or 10 (retrieval)",
        "evaluation.ranking",
    ),
)

OUTCOMES = pa.schema([column.field() for column in OUTCOME_COLUMNS])

# People's decisions about pairs: `ncclean review` writes them, `select --decisions` reads them.
DECISION_COLUMNS = (
    Column("uid", _STRING, "uid of the pair, as in the score table", "storage.decisions"),
    Column(
        "caption_number", pa.int16(), "which of the sample's captions, from 0", "storage.decisions"
    ),
    Column("decision", _STRING, "keep, drop, correct, or note alone", "storage.decisions"),
    Column("caption", _STRING, "the corrected caption; null unless corrected", "storage.decisions"),
    Column("reviewer", _STRING, "who decided", "storage.decisions"),
    Column("time", pa.timestamp("us", "UTC"), "when it was decided", "storage.decisions"),
    Column("note", _STRING, "what the reviewer noted; null for nothing", "storage.decisions"),
)
DECISIONS = pa.schema([column.field() for column in DECISION_COLUMNS])

# Groups of pairs that are wrong more often than others, written by `ncclean explain`.
_EXAMPLE = pa.struct(
    [
        ("uid", _STRING),
        ("shard", _STRING),
        ("key", _STRING),
        ("row", _INT),
        ("caption_number", _INT),
        ("caption", _STRING),
        ("probability", _FLOAT),
    ]
)
_DOUBLE = pa.float64()
CAUSE_COLUMNS = (
    Column("number", _INT, "number of the cause, from 1", "explaining.explain_scores"),
    Column("folded_into", _INT, "the cause that explains this group", "explaining.folding"),
    Column(
        "is_cause", pa.bool_(), "false if the estimator may only be worse", "explaining.verdicts"
    ),
    Column("kind", _STRING, "kind of group, such as word or host", "explaining.kinds"),
    Column("value", _STRING, "which group of the kind", "explaining.kinds"),
    Column("label", _STRING, "the value as people read it", "explaining.kinds"),
    Column("outcome", _STRING, "mismatch, near miss or wrong sentence", "explaining.outcomes"),
    Column("pairs", pa.int64(), "pairs of the group", "explaining.aggregates"),
    Column("rate", _DOUBLE, "share of them that is wrong", "explaining.group_rate"),
    Column("rate_low", _DOUBLE, "95 %, lower end", "explaining.group_rate"),
    Column("rate_high", _DOUBLE, "95 %, upper end", "explaining.group_rate"),
    Column("outside", _DOUBLE, "share of the pairs in no cause", "explaining.group_rate"),
    Column("outside_low", _DOUBLE, "95 %, lower end", "explaining.group_rate"),
    Column("outside_high", _DOUBLE, "95 %, upper end", "explaining.group_rate"),
    Column("excess", _DOUBLE, "wrong pairs beyond the rate outside", "explaining.group_rate"),
    Column("q_value", _DOUBLE, "false discovery rate", "explaining.discoveries"),
    Column("condition", _STRING, "SQL that selects the group", "explaining.kinds"),
    Column("join", _STRING, "table that the SQL needs joined", "explaining.clusters"),
    Column("proposal", _STRING, "how to mend it, if known", "explaining.shifts"),
    Column(
        "examples", pa.list_(_EXAMPLE), "pairs that are probably wrong", "explaining.explain_scores"
    ),
)
CAUSES = pa.schema([column.field() for column in CAUSE_COLUMNS])
