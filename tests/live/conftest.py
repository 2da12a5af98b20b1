"""The small live world of the environments' tests, and the small simulated one, are importable."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("environments", "pipeline"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))
