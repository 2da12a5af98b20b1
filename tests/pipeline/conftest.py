"""The tiny world beside the tests is importable. (A package of the tests' own would be called `pipeline` too.)"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
