"""Recipe files, YAML whose values know their lines, and the records of their runs."""
