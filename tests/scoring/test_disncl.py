import torch

from ncclean.scoring.disncl import mutual_match


def test_by_hand():
    assert mutual_match(torch.tensor([[0.5, 0.6], [0.1, 0.9]])).tolist() == [False, True]


def test_column_counts_as_well():
    assert mutual_match(torch.tensor([[0.5, 0.1], [0.6, 0.9]])).tolist() == [False, True]


def test_ties_are_matches():
    assert mutual_match(torch.full((3, 3), 0.2)).all()


def test_no_pairs():
    assert mutual_match(torch.zeros(0, 0)).tolist() == []
