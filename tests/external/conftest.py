"""The stub server and the tiny world are importable. (A package of the tests' own would be called `pipeline` too.)"""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("stubs", "pipeline"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
sys.path.insert(0, str(Path(__file__).parent))
