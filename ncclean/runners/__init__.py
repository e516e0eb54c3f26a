"""Runners: this process, several, or a Ray cluster call functions as tasks."""
