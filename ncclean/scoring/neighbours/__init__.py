"""Nearest neighbours over a whole corpus: what statistics inside a block can only sample.

`distinct` tells repeated rows from distinct ones, `centroids` has the lists of vectors, `products`
takes the few cosines that are needed by the fastest `arithmetic`, `search` and `rising` find the
nearest in lists, `groups` decides on near-duplicates, `rivals` counts partners that fit better than
the own one, `lemon` scores agreement with the neighbours; `result` is all of it.
`ncclean.execution.neighbours` has the tasks. FAISS and torch bring an OpenMP runtime each, and on
macOS two of them in one process crash: only `arithmetic` loads torch, for a GPU or matrix tiles.
"""
