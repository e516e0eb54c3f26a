"""Find causes of noise: groups of pairs in which errors are more frequent than elsewhere."""
