"""Use a selection in any training loop: webdataset pipelines, PyTorch, Hugging Face's datasets.

    import ncclean.webdataset
    import webdataset as wds

    pairs = wds.WebDataset(urls).compose(ncclean.webdataset.select("clean.parquet"))

Each remaining sample has its `weight`, a float, and the caption with which it was selected.
"""

from ncclean.webdataset.pairs import SelectedPairs
from ncclean.webdataset.rows import SelectedRows
from ncclean.webdataset.stage import Stage, select

__all__ = ["SelectedPairs", "SelectedRows", "Stage", "select"]
