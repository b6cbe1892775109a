# SPDX-License-Identifier: Apache-2.0
"""The package of this checkout is tested, installed or not."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
