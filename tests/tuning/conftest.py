"""The stand-ins beside the tests are importable, here and in worker processes, which are handed the import path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
