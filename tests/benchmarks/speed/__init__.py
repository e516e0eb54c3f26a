"""Time and memory of single steps, against a control in the same run; `run.py` runs them."""
