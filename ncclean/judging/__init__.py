"""A model as judge of an audit: it is asked about each pair of a sample, and its answers kept."""
