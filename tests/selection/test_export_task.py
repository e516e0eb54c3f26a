"""Keys of exported samples are their own, however often an input repeats one."""

from ncclean.selection.export_task import free_key


def test_a_key_is_free_or_numbered():
    taken = {}
    keys = [free_key(key, taken) for key in ("7", "7_2", "7", "7", "8", "7_2")]
    assert keys == ["7", "7_2", "7_3", "7_4", "8", "7_2_2"]


def test_one_key_everywhere_takes_no_quadratic_time():
    taken = {}
    assert len({free_key("0", taken) for _ in range(200_000)}) == 200_000
