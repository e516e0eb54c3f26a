"""Ask a model as judge of an audit about each pair of a sample, and keep its answers."""
