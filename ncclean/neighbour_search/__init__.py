"""Search for nearest neighbours over a whole corpus of embeddings.

Tasks over files: the corpus may be larger than memory. `corpus` reads `blocks` of pairs and finds
equal ones, `training` learns and fills `inverted_lists`, which FAISS searches. `near_duplicates`,
`lemon`, `better_matches` and `reference` derive results from neighbours, `stages` runs tasks and
queries whose files are missing, `search` has the order of the stages. `run` writes the `table`,
`plan` estimates a search.
"""
