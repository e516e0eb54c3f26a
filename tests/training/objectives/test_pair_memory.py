import torch

from ncclean.training.objectives.base import pair_keys
from ncclean.training.objectives.bayes import PairMemory


def test_keys_are_those_of_the_uids():
    keys = pair_keys(["a", "b", "a"])
    assert keys.dtype == torch.int64
    assert keys[0] == keys[2] != keys[1]


def test_remembers_by_key_and_grows():
    memory = PairMemory(2)
    keys = pair_keys([str(i) for i in range(3000)])
    values = torch.arange(6000.0).view(3000, 2)
    memory.remember(keys[:5], values[:5])
    memory.remember(keys, values)
    assert len(memory) == 3000
    assert torch.equal(memory.recall(keys.flip(0)), values.flip(0))
    assert memory.recall(pair_keys(["unseen"])).isnan().all()
    memory.remember(torch.tensor([7, 7]), torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
    assert memory.recall(torch.tensor([7])).tolist() == [[2.0, 2.0]]


def test_survives_a_checkpoint(tmp_path):
    memory = PairMemory(1)
    memory.remember(torch.tensor([3, -9]), torch.tensor([[0.5], [1.5]]))
    torch.save(memory.state_dict(), tmp_path / "m.pt")
    other = PairMemory(1)
    other.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True))
    assert other.recall(torch.tensor([-9, 3])).tolist() == [[1.5], [0.5]]
