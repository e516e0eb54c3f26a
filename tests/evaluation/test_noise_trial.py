"""What a trial embeds, before it scores."""

import pytest

from ncclean.data.shards import ShardRef
from ncclean.evaluation.noise_trial import TrialRequest
from ncclean.models.request import ModelRequest


@pytest.mark.parametrize(("share", "wanted"), [(0.2, 20), (0.001, 1)])
def test_as_many_donors_are_embedded_as_captions_are_wanted(monkeypatch, tmp_path, share, wanted):
    """Not fewer, rounded down, and not all of a donor corpus of any size."""
    asked = []

    def embedded(self, shards, pairs, folder, progress):
        asked.append((folder.name, pairs))
        if folder.name == "images":
            raise StopIteration
        return None, shards

    monkeypatch.setattr(TrialRequest, "_embedded", embedded)
    model = ModelRequest(model="demo", pretrained=None)
    shards = [
        ShardRef(name=name, url=f"{name}.tar", size=1, version="") for name in ("a", "b", "c")
    ]
    request = TrialRequest(
        shards=shards[:1], donors=shards, share=share, pairs=100, model=model, scale=model
    )
    with pytest.raises(StopIteration):
        request.run(tmp_path)
    assert asked == [("donors", wanted), ("images", 100)]
