"""The analytic stand-in of the tuning tests is importable here too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tuning"))
