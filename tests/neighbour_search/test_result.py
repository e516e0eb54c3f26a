from ncclean.neighbour_search.result import SAME_IMAGE_COSINE, THRESHOLDS


def test_thresholds_are_those_of_the_docs():
    """By modality, whitened or not: docs/neighbours.md has what they find and take wrongly."""
    assert THRESHOLDS == {"image": {True: 0.80, False: 0.96}, "text": {True: 0.90, False: 0.98}}
    assert SAME_IMAGE_COSINE == 0.98
