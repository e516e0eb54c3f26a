"""Nearest neighbours over a whole corpus: what statistics inside a block can only sample.

`distinct` tells repeated rows from distinct ones, `centroids` has the lists of vectors, `search`
finds the nearest in lists, `groups` decides on near-duplicates, `rivals` counts partners that fit
better than the own one, `lemon` scores agreement with the neighbours; `result` is all of it.
`ncclean.execution.neighbours` has the tasks. Nothing here loads torch: FAISS and torch bring an
OpenMP runtime each, and on macOS two of them in one process crash.
"""
