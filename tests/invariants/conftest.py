"""The tiny world of the pipeline's own tests, and what stands beside these, are importable."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "pipeline")]
