"""Commands as declarations: made from options by name, with an identity, from settings."""

import json
import os
import re
from pathlib import Path

import pytest
from ncclean_pipelines.adapt import Adapt
from ncclean_pipelines.command import Result, build
from ncclean_pipelines.evaluate_models import EvaluateZeroshot
from ncclean_pipelines.evaluate_noise import EvaluateNoise
from ncclean_pipelines.export import Export
from ncclean_pipelines.finetune import Finetune
from ncclean_pipelines.inject_noise import InjectNoise
from ncclean_pipelines.registry import COMMANDS
from ncclean_pipelines.score import Score

import ncclean
from ncclean.base.option_values import values_by_name
from ncclean.base.options import parameters
from ncclean.storage.inputs import identity


@pytest.mark.parametrize("kind", COMMANDS.values(), ids=lambda kind: kind.name)
def test_every_command_declares_itself(kind):
    assert kind.summary.endswith(".")
    assert f"Example: `ncclean {kind.name}" in kind.__doc__
    for name, parameter in parameters(kind).items():
        assert parameter.option.help.strip(), name
        assert (
            not parameter.is_required
            or parameter.option.typed_default is None
            or name in ("shards", "method")
        )


def test_options_reach_the_groups_that_hold_them():
    command = build(
        Score, {"shards": ["a.tar"], "out": "s.parquet", "block_size": 10, "workers": 2}
    )
    assert command.options.block_size == 10
    assert command.cluster.workers == 2
    required = {"method": "ncu", "shards": ["a.tar"], "out": "r"}
    command = build(Finetune, {**required, "gamma": 0.4, "epochs": 2})
    assert command.objective.ncu.gamma == 0.4
    assert command.objective.epochs == 2
    assert values_by_name(command)["gamma"] == 0.4


def test_none_is_a_value_where_the_type_has_it():
    command = build(Score, {"shards": "a.tar", "out": "s", "pretrained": None, "workers": None})
    assert command.pretrained is None
    assert command.cluster.workers is None


def test_one_value_is_a_list_of_one():
    command = build(EvaluateZeroshot, {"model": "demo", "data": "sets", "pretrained": "x"})
    assert (command.model, command.data, command.pretrained) == (["demo"], ["sets"], ["x"])
    assert build(InjectNoise, {"shards": "a", "out": "b", "kind": "ncr", "rate": 0.2}).rates == {
        "ncr": 0.2
    }
    assert build(EvaluateNoise, {"scores": "s", "threshold": "a=1"}).thresholds == {"a": 1.0}
    assert build(EvaluateNoise, {"scores": "s", "threshold": {"a": 1}}).thresholds == {"a": 1.0}


def test_paths_become_text():
    command = build(Export, {"selection": Path("a") / "s.parquet", "out": Path("b.npy")})
    assert (command.selection, command.out) == (f"a{os.sep}s.parquet", "b.npy")
    assert build(Score, {"shards": Path("a.tar"), "out": "s"}).shards == ["a.tar"]
    assert build(Score, {"shards": [Path("a.tar"), "b.tar"], "out": "s"}).shards == [
        "a.tar",
        "b.tar",
    ]


@pytest.fixture
def shards(tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    (folder / "a.tar").write_bytes(bytes(10240))
    return folder


def trained(shards, method="clip", **options):
    return build(Finetune, {"method": method, "shards": str(shards), "out": "run", **options})


def test_identity_holds_options_inputs_and_version(shards):
    made = identity(trained(shards, learning_rate=0.1))
    assert made["version"] == ncclean.__version__
    assert made["options"]["learning_rate"] == 0.1
    ((path, stamp),) = made["inputs"]["shards"].items()
    assert Path(path) == shards / "a.tar"
    assert re.fullmatch(r"10,240 bytes, version \d+", stamp)
    assert made == json.loads(json.dumps(made))


def test_identity_leaves_out_what_changes_nothing(shards):
    plain = identity(trained(shards))
    idle = {"device": "cpu", "decode_threads": 3, "save_steps": 7, "workers": None}
    elsewhere = {"out": "elsewhere", "overwrite": True, "resume": True}
    assert identity(trained(shards, **idle, **elsewhere)) == plain
    assert "gamma" not in plain["options"]
    assert "device" not in plain["options"]
    assert "gamma" in identity(trained(shards, "ncu"))["options"]


def test_identity_depends_on_options_and_inputs(shards):
    plain = identity(trained(shards))
    assert identity(trained(shards, seed=1)) != plain
    os.utime(shards / "a.tar", ns=(1, 1))
    touched = identity(trained(shards))
    assert touched["options"] == plain["options"]
    assert touched["inputs"] != plain["inputs"]
    (shards / "b.tar").write_bytes(bytes(10240))
    assert len(identity(trained(shards))["inputs"]["shards"]) == 2


@pytest.mark.parametrize("method", ["clip", "ncu", "disncl"])
def test_a_command_can_be_made_of_its_identity(shards, method):
    command = trained(shards, method, batch_size=10)
    options = json.loads(json.dumps(identity(command)))["options"]
    assert identity(build(Finetune, {**options, "out": "run"})) == identity(command)


def test_identity_sees_into_a_model_folder(shards, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights").write_text("a")

    def stamped():
        command = {"scores": "s", "shards": str(shards), "out": "o", "model": f"local-dir:{model}"}
        return identity(build(Adapt, {**command, "scores": str(scores)}))["inputs"]["model"]

    scores = tmp_path / "s.parquet"
    scores.write_bytes(b"")
    before = stamped()
    assert len(before) == 1
    (model / "weights").write_text("ab")
    assert stamped() != before


def test_a_result_shows_figures_failures_and_files():
    result = Result(
        "score", None, {"rows": 3, "rate": float("nan")}, {"rows": "3"}, ("s.parquet",),
        {"00001": "<broken>"},
    )  # fmt: skip
    assert result["rows"] == 3
    assert result.to_json() == {"rows": 3, "rate": None}
    assert repr(result).splitlines() == [
        "score",
        "  rows           3",
        "  failed: 00001  <broken>",
        "  made           s.parquet",
    ]
    assert "&lt;broken&gt;" in result._repr_html_()
