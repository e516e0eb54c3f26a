"""Read recipe files, YAML whose values know their lines, and keep the records of their runs."""
