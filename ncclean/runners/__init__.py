"""Runners: call functions as tasks in this process, in several, or on a Ray cluster."""
