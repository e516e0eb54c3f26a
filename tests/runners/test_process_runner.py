"""How long several processes take together."""

import pytest

from ncclean.runners.process_runner import clock_share


@pytest.mark.parametrize(
    ("tasks", "workers", "share"), [(8, 64, 1 / 8), (8, 4, 1 / 4), (5, 4, 2 / 5), (1, 1, 1)]
)
def test_workers_do_not_share_a_task(tasks, workers, share):
    assert clock_share(tasks, workers) == pytest.approx(share)
