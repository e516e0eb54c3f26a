"""Open the runner of a command's tasks: this process, several, or a Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ncclean.base.config import TaskOptions
from ncclean.runners.process_runner import Processes
from ncclean.runners.runner import Runner


@contextlib.contextmanager
def open_runner(options: TaskOptions, processes: int) -> Iterator[Runner]:
    """Return the requested runner; locally with this number of `processes`.

    Raises `InputError` if there is no cluster at the address.
    """
    if options.engine == "ray" or (options.engine == "auto" and options.ray_address is not None):
        from ncclean.runners.ray_runner import RayTasks  # importing Ray takes a second

        with RayTasks(options.ray_address, options.workers) as tasks:
            yield tasks
        return
    with Processes(processes) as local:
        yield local
