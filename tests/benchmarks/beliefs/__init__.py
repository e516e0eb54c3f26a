"""What each training method believed about the pairs of a run."""
