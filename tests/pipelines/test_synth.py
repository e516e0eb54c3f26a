"""The synth stage: what it writes, and what it replaces."""

import pytest

from ncclean.errors import InputError
from pipelines.synth import SynthRequest, synth


def test_overwrite_replaces_what_synth_wrote_and_nothing_else(tmp_path):
    out = tmp_path / "c"
    many = SynthRequest(out=str(out), pairs=60, shard_size=20, held_out=5, workers=1)
    assert synth(many).shards == 3
    (out / "notes.txt").write_text("mine")
    few = SynthRequest(out=str(out), pairs=20, shard_size=20, held_out=0, workers=1)
    with pytest.raises(InputError, match="exists"):
        synth(few)
    again = SynthRequest(
        out=str(out), pairs=20, shard_size=20, held_out=0, workers=1, overwrite=True
    )
    synth(again)
    assert sorted(path.name for path in out.iterdir()) == ["00000.tar", "notes.txt"]


@pytest.mark.parametrize("wrong", [{"kind": "salt"}, {"out": "s3://b/x"}, {"pairs": 0}])
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(InputError):
        SynthRequest(**{"out": "c", **wrong})
