"""A selection in anybody's training loop: webdataset pipelines, PyTorch, Hugging Face's datasets.

    import ncclean.webdataset
    import webdataset as wds

    pairs = wds.WebDataset(urls).compose(ncclean.webdataset.select("clean.parquet"))

Each sample that is left has its `weight`, a float, and the caption that it was selected with.
"""

from ncclean.webdataset.pairs import SelectedPairs
from ncclean.webdataset.rows import SelectedRows
from ncclean.webdataset.stage import Stage, select

__all__ = ["SelectedPairs", "SelectedRows", "Stage", "select"]
