"""Nearest neighbours over a whole corpus: what statistics inside a block can only sample.

`matrix` holds the embeddings, `distinct` tells repeated rows from distinct ones, `index` searches
with FAISS, `groups` finds near-duplicates, `rivals` counts partners that fit better than the own
one, `lemon` scores agreement with the neighbours. Nothing here loads torch: FAISS and torch bring
an OpenMP runtime each, and on macOS two of them in one process crash.
"""
