"""The search for nearest neighbours over a whole corpus of embeddings.

Tasks over files: the corpus may be larger than memory. `block_tasks` read blocks of pairs and write
inverted lists, `search_tasks` and `near_duplicates` scan groups of them, `columns` has what follows
from neighbours, `stages` runs the tasks whose files are missing, `search` is the order of the
stages. `run` writes the table, `plan` estimates a search. FAISS and torch bring an OpenMP runtime
each, and on macOS two of them in one process crash: only `matmul` loads torch, for a GPU or matrix
tiles.
"""
