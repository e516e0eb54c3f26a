"""Run recipes: the stages of a job in one YAML file, checked before the start and resumable."""
