"""Progress: lines for logs, calls of a function, and the pace of both."""

import io
import re

import pytest
from ncclean_pipelines.progress import Both, Calls, Lines, OfStage, Report

from ncclean.base.formats import clock_time
from ncclean.base.progress import Pace, count_line


class Clock:
    """A clock that tests set."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def lines_of(stream):
    return stream.getvalue().splitlines()


def test_lines_tell_every_ten_seconds_how_far_it_is(clock):
    stream = io.StringIO()
    lines = Lines(stream, clock)
    lines.say("loading demo")
    for second in range(41):
        clock.now = 100.0 + second
        lines.advance(second * 50, 4000, "samples", shards=f"{second // 10}/8")
    assert lines_of(stream) == [
        "loading demo",
        "500 of 4,000 samples, 50 samples/s, ETA 1:10, shards 1/8",
        "1,000 of 4,000 samples, 50 samples/s, ETA 1:00, shards 2/8",
        "1,500 of 4,000 samples, 50 samples/s, ETA 0:50, shards 3/8",
        "2,000 of 4,000 samples, 50 samples/s, ETA 0:40, shards 4/8",
    ]


def test_lines_without_a_total_have_no_time_left(clock):
    stream = io.StringIO()
    lines = Lines(stream, clock)
    lines.advance(0, 0, "rows")
    clock.now += 10
    lines.advance(5, 0, "rows")
    assert lines_of(stream) == ["5 rows, 2.0 s each"]


def test_lines_may_begin_with_the_time(clock):
    stream = io.StringIO()
    Lines(stream, clock, with_time=True).say("finalizing")
    (line,) = lines_of(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d finalizing", line)


def test_pace_counts_from_where_a_run_goes_on(clock):
    pace = Pace(clock)
    assert pace.facts(900, 1000, "samples") == {}  # all of it was resumed
    clock.now += 10
    assert pace.facts(920, 1000, "samples") == {"speed": "2 samples/s", "ETA": "0:40"}
    clock.now += 10
    assert pace.facts(1000, 1000, "samples") == {"speed": "5 samples/s"}


def test_pace_without_time_or_work_is_silent(clock):
    pace = Pace(clock)
    pace.facts(0, 10, "steps")
    assert pace.facts(5, 10, "steps") == {}  # no time has passed
    clock.now += 3
    assert Pace(clock).facts(0, 10, "steps") == {}


def test_pace_begins_anew_with_what_is_counted(clock):
    pace = Pace(clock)
    pace.facts(0, 100, "samples")
    clock.now += 10
    assert pace.facts(100, 100, "samples")["speed"] == "10 samples/s"
    assert pace.facts(0, 50, "steps") == {}
    clock.now += 10
    assert pace.facts(5, 50, "steps") == {"speed": "2.0 s each", "ETA": "1:30"}
    assert pace.facts(2, 50, "steps") == {}  # it went back: another pass


def test_calls_hand_reports_that_print_as_lines():
    reports = []
    calls = Calls(reports.append)
    calls.say("loading demo")
    calls.advance(1200, 20000, "samples", loss=3.14159, shards="1/8")
    calls.advance(3, 0, "rows")
    assert reports == [
        Report("loading demo"),
        Report("", 1200, 20000, "samples", {"loss": 3.14159, "shards": "1/8"}),
        Report("", 3, 0, "rows"),
    ]
    assert list(map(str, reports)) == [
        "loading demo",
        "1,200 of 20,000 samples, loss 3.142, shards 1/8",
        "3 rows",
    ]


def test_both_and_stages_pass_reports_on():
    first, second = [], []
    both = Both(Calls(first.append), OfStage(Calls(second.append), "score"))
    both.say("finalizing")
    both.advance(1, 2, "samples")
    assert list(map(str, first)) == ["finalizing", "1 of 2 samples"]
    assert list(map(str, second)) == ["score: finalizing", "score: 1 of 2 samples"]


def test_facts_as_text():
    facts = {"speed": "12 samples/s", "clean_share": 0.25, "stage": "score"}
    expected = "score: 3 of 4 steps, 12 samples/s, clean share 0.250"
    assert count_line(3, 4, "steps", facts) == expected


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0:00"), (42, "0:42"), (725, "12:05"), (12000, "3:20:00"), (3599.6, "1:00:00")],
)
def test_durations(seconds, text):
    assert clock_time(seconds) == text
