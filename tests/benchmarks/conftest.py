"""The modules of `tests/benchmarks` name one another without a package, as the scripts do."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
