"""Commands as functions of the package."""

import pytest

import ncclean
from ncclean.errors import InputError


def test_commands_are_functions_with_results_that_print(tmp_path):
    made = ncclean.synth(str(tmp_path / "c"), pairs=60, shard_size=60, held_out=0, workers=1)
    assert made["pairs"] == 60
    out = str(tmp_path / "s.parquet")
    scored = ncclean.score(str(tmp_path / "c"), out, model="demo", precision="fp32", shift=0.2)
    assert scored["rows"] == 60
    assert repr(scored).splitlines()[:2] == ["score", "  rows        60"]
    assert "<td style='text-align:left'>60</td>" in scored._repr_html_()
    assert scored.made == (out,)
    with pytest.raises(InputError, match="--keep-fraction needs --score"):
        ncclean.select(out, str(tmp_path / "x.parquet"), keep_fraction=0.5)
    kept = ncclean.select(out, str(tmp_path / "x.parquet"), score="similarity", keep_fraction=0.5)
    assert kept["kept"] == 30


def test_wrong_values_are_input_errors_and_unknown_options_are_pythons(tmp_path):
    with pytest.raises(InputError, match="synth: pairs: Input should be a valid integer"):
        ncclean.synth(str(tmp_path), pairs="many")
    with pytest.raises(TypeError, match="pears"):
        ncclean.synth(str(tmp_path), pears=3)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        ncclean.nonsense  # noqa: B018


def test_evaluate_takes_the_task(tmp_path):
    with pytest.raises(InputError, match="evaluate takes compare, linear-probe, noise"):
        ncclean.evaluate("beauty")
    with pytest.raises(TypeError, match="pears"):
        ncclean.evaluate("noise", scores="s.parquet", out="n.json", pears=3)
    ncclean.synth(str(tmp_path / "c"), pairs=60, shard_size=60, held_out=0, workers=1)
    ncclean.score(str(tmp_path / "c"), str(tmp_path / "s.parquet"), model="demo", shift=0.1)
    found = ncclean.evaluate(
        "noise", scores=str(tmp_path / "s.parquet"), out=str(tmp_path / "noise.json")
    )
    assert found.command == "evaluate noise"
    assert found["clean"] + sum(found["noisy"].values()) == 60
    alone = ncclean.evaluate("noise", str(tmp_path / "s.parquet"))
    assert alone.values == found.values
    assert alone.made == ()
    with pytest.raises(InputError, match="evaluate takes compare"):
        ncclean.evaluate("nois", str(tmp_path / "s.parquet"))


def test_overwrite_is_the_commands(tmp_path):
    options = {"pairs": 20, "shard_size": 20, "held_out": 0, "workers": 1}
    ncclean.synth(str(tmp_path / "c"), **options)
    ncclean.score(str(tmp_path / "c"), str(tmp_path / "s"), model="demo", shift=0.1)
    again = ncclean.score(
        str(tmp_path / "c"), str(tmp_path / "s"), model="demo", shift=0.1, block_size=10,
        overwrite=True,
    )  # fmt: skip
    assert again["rows"] == 20
