"""The search for neighbours as tasks over files, for a corpus that does not fit into memory.

A corpus is `blocks` of pairs. `passes` are the tasks of a block: hash, sample, assign, write by
list. `searches`, `duplicates` and `columns` are the tasks of a group of `lists`. `stages` runs the
tasks whose files are missing, and `corpus` is the order of the stages.
"""
