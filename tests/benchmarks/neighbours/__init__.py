"""The neighbour search: time, memory, equal results, near-duplicates."""
