"""What a cause says of the pairs outside."""

import pytest

from ncclean.explaining.described import share_outside


def test_the_interval_of_the_share_outside_is_wilsons():
    share = share_outside(0.25, 16)
    assert (share.low, share.high) == pytest.approx((0.1018, 0.4950), abs=2e-4)


@pytest.mark.parametrize(("rate", "low", "high"), [(0.0, 0.0, 0.2775), (1.0, 0.7225, 1.0)])
def test_ten_pairs_of_which_none_or_all_are_wrong_leave_room(rate, low, high):
    share = share_outside(rate, 10)
    assert (share.low, share.value, share.high) == pytest.approx((low, rate, high), abs=2e-4)
