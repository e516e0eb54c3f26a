"""Render a world with known noise: scenes, captions, corpora and held-out sets.

Neither a test machine nor an air-gapped user has a corpus at hand. This one is rendered, seeded and
reproducible to the byte, with the truth about every pair in its json.
"""

from ncclean.data.options import CorpusOptions
from ncclean.data.synthetic.captions import Caption, write_caption
from ncclean.data.synthetic.corpus import write_corpus
from ncclean.data.synthetic.heldout import ZEROSHOT_SETS, write_heldout
from ncclean.data.synthetic.render import draw_scene
from ncclean.data.synthetic.scene import Scene, sample_scene

__all__ = [
    "ZEROSHOT_SETS",
    "Caption",
    "CorpusOptions",
    "Scene",
    "draw_scene",
    "sample_scene",
    "write_caption",
    "write_corpus",
    "write_heldout",
]
