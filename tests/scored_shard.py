"""One shard of images through the encoder and all that follows it, without a run around it."""

from ncclean.execution.column_sources import ColumnSources
from ncclean.execution.finish_shard import ShardScoring
from ncclean.execution.image_encoder import ImageEncoder


def score_shard(shards, estimator, options):
    """The `ShardResult` of the only one of the shards."""
    columns = ColumnSources(options)
    encoder = ImageEncoder(estimator, options, columns)
    scoring = ShardScoring(
        options=options,
        columns=columns,
        encoder=encoder.facts,
        scale=estimator.scale,
        device=encoder.device,
    )
    ((_, completion),) = encoder.encode(shards, lambda samples: None)
    return scoring.finish(completion())
