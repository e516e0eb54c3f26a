"""Open the engine that a run requests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ncclean.base.config import ClusterOptions, ScoreOptions
from ncclean.execution.column_sources import ColumnSources
from ncclean.execution.encoder import EncoderRequest
from ncclean.execution.engine import Engine
from ncclean.execution.local_engine import LocalEngine


@contextlib.contextmanager
def open_engine(
    request: EncoderRequest,
    options: ScoreOptions,
    columns: ColumnSources,
    cluster: ClusterOptions | None,
) -> Iterator[Engine]:
    """Yield an engine that scores here or on a Ray cluster; stop its workers at the end.

    Raises `ModelError` if the model cannot be loaded, `InputError` if there is no cluster at the
    address or a column cannot be computed.
    """
    engine: Engine
    if cluster is None:
        engine = LocalEngine(request.open(options, columns), options, columns)
    else:
        from ncclean.execution.ray_engine import RayEngine  # importing Ray takes a second

        engine = RayEngine(request, options, columns, cluster)
    with contextlib.closing(engine):
        yield engine
