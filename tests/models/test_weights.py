"""State dicts out of the files that trainers write, with what was taken off said."""

import pytest
import torch
from safetensors.torch import save_file

from ncclean.errors import ModelError
from ncclean.models.weights import check_finite, read_state_dict, why

STATE = {"visual.proj": torch.ones(2, 3), "logit_scale": torch.tensor(1.0)}
MOMENTS = {"state": {"visual.proj": {"exp_avg": torch.ones(2, 3)}}}


def saved(folder, values):
    torch.save(values, folder / "w.pt")
    return folder / "w.pt"


def under(prefix, state=STATE):
    return {prefix + name: value for name, value in state.items()}


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "module.",
        "_orig_mod.",
        "model.",
        "module._orig_mod.",
        "_orig_mod.module.",
        "model.module._orig_mod.module.",
        "model.model.",
        "_fsdp_wrapped_module.",
    ],
)
@pytest.mark.parametrize("key", ["", "state_dict", "model", "module", "net"])
def test_wrappers_are_taken_off_and_said(tmp_path, caplog, prefix, key):
    values = under(prefix)
    path = saved(tmp_path, {key: values, "epoch": 5, "optimizer": MOMENTS} if key else values)
    state = read_state_dict(path)
    assert set(state) == set(STATE)
    assert torch.equal(state["visual.proj"], STATE["visual.proj"])
    said = [text for text in (*prefix.split("."), key) if text not in ("", "state_dict")]
    assert all(text in caplog.text for text in said)
    assert bool(caplog.records) == bool(said)


def test_wrappers_of_a_part_are_taken_off(tmp_path):
    path = saved(tmp_path, {"visual._orig_mod.trunk.module.proj": torch.ones(2)})
    assert list(read_state_dict(path)) == ["visual.trunk.proj"]


def test_only_leading_names_of_a_model_are_wrappers(tmp_path):
    path = saved(tmp_path, {"text.model.proj": torch.ones(2), "modules.proj": torch.ones(2)})
    assert list(read_state_dict(path)) == ["text.model.proj", "modules.proj"]


def test_safetensors_are_unwrapped_too(tmp_path):
    save_file(under("module."), tmp_path / "w.safetensors")
    assert set(read_state_dict(tmp_path / "w.safetensors")) == set(STATE)


def test_what_is_no_weight_is_left_out_and_said(tmp_path, caplog):
    averaged = {**under("module."), "n_averaged": torch.tensor(3), "epoch": 5}
    assert set(read_state_dict(saved(tmp_path, averaged))) == set(STATE)
    assert "2 entries" in caplog.text


def test_open_clips_own_key_comes_before_others(tmp_path, caplog):
    path = saved(tmp_path, {"ema": under(""), "state_dict": {"a": torch.zeros(1)}})
    assert list(read_state_dict(path)) == ["a"]
    assert "ema" in caplog.text


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"model": STATE, "model_ema": STATE}, "model, model_ema"),
        ({**STATE, **under("module.")}, r"visual\.proj twice"),
        ({"epoch": 5}, "no state dict"),
        ({"rng": {"cpu": torch.zeros(4, dtype=torch.uint8)}}, "no state dict"),
        ([torch.ones(2)], "no state dict"),
        ({}, "no state dict"),
    ],
)
def test_a_file_without_one_state_dict_is_refused(tmp_path, values, says):
    with pytest.raises(ModelError, match=says) as refused:
        read_state_dict(saved(tmp_path, values))
    assert "w.pt" in str(refused.value)


def test_torchscript_is_said_to_be_code(tmp_path):
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "w.pt")
    with pytest.raises(ModelError, match="TorchScript") as refused:
        read_state_dict(tmp_path / "w.pt")
    assert "weights_only" not in str(refused.value)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_tensors_that_are_not_finite_are_named(number, dtype, refused):
    broken = torch.tensor([1.0, number], dtype=dtype)
    check_finite({"a": torch.ones(2, dtype=dtype), "n": torch.tensor(3), "o": broken[:0]}, "w.pt")
    refused(check_finite, {"a": torch.ones(2), **dict.fromkeys("bcde", broken)}, "w.pt")


def test_keys_that_do_not_fit_are_named():
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(4, 2, bias=False)
    state = {**other.state_dict(), "head.weight": torch.ones(1)}
    with pytest.raises(RuntimeError) as error:
        model.load_state_dict(state)
    assert why(error.value) == (
        "the file lacks bias; the architecture lacks head.weight; weight is (2, 4) in the file, "
        "(2, 3) in the architecture"
    )
