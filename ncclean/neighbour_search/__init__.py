"""The search for nearest neighbours over a whole corpus of embeddings.

Tasks over files: the corpus may be larger than memory. `block_tasks` read blocks of pairs,
`training` learns `inverted_lists` and fills them, `search_tasks` and `near_duplicates` search them
by FAISS, `columns` has what follows from neighbours, `stages` runs the tasks whose files are
missing, `search` is the order of the stages. `run` writes the table, `plan` estimates a search.
"""
