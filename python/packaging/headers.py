# SPDX-License-Identifier: Apache-2.0
"""The version of the headers, for scikit-build-core: those of the checkout, or those that the sdist holds."""

from __future__ import annotations

import re
from pathlib import Path


def dynamic_metadata(field: str, settings: dict[str, object] | None = None) -> str:
    if field != "version" or settings:
        raise RuntimeError(f"headers: field = {field}, but it is version, without settings")
    here = Path(__file__).resolve().parent.parent
    for root in (here.parent, here):
        header = root / "include" / "kvpolicy" / "version.hpp"
        if header.is_file():
            return re.search(r'version\[\] = "([^"]+)"', header.read_text()).group(1)
    raise RuntimeError(f"headers: include/kvpolicy/version.hpp = missing, but it is in {here} or above it")
