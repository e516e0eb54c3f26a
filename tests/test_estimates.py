"""A share with its interval, to metadata and JSON and back."""

from dataclasses import asdict, dataclass

from ncclean.base.estimates import UNKNOWN, Estimate, flattened


@dataclass(frozen=True)
class Trial:
    pairs: int
    rate: Estimate
    other: Estimate = UNKNOWN


def test_json_has_three_fields_of_it_and_none_for_what_is_not_known():
    assert asdict(Trial(3, Estimate(0.2, 0.1)), dict_factory=flattened) == {
        "pairs": 3, "rate": 0.2, "rate_low": 0.1, "rate_high": None,
        "other": None, "other_low": None, "other_high": None,
    }  # fmt: skip


def test_it_is_read_from_what_it_wrote():
    rate = Estimate(0.2, 0.1, 0.3)
    metadata = {name: str(value) for name, value in rate.fields("noise_rate").items()}
    assert Estimate.of_fields(metadata, "noise_rate") == rate
    unknown = {name: str(value) for name, value in UNKNOWN.fields("noise_rate").items()}
    assert Estimate.of_fields(unknown, "noise_rate") == UNKNOWN == Estimate.of_fields({}, "x")
    broken = Estimate.of_fields({"rate": "0.2", "rate_low": "a", "rate_high": None}, "rate")
    assert (broken.value, broken.is_known, broken.has_interval) == (0.2, True, False)


def test_a_rate_of_zero_is_known():
    fields = {"rate": 0.0, "rate_low": 0.0, "rate_high": 0.1}
    assert Estimate.of_fields(fields, "rate") == Estimate(0.0, 0.0, 0.1)


def test_an_interval_has_both_ends():
    assert Estimate(0.2, 0.1, 0.3).has_interval
    assert not Estimate(0.2, 0.1).has_interval
    assert not Estimate(0.2, high=0.3).has_interval
