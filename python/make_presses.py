#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/kvpolicy/presses.py from presses.txt. A new method is a line of the table.

    python3 make_presses.py            # writes the module
    python3 make_presses.py --check    # fails if the module is not what the table says
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODULE = HERE / "src" / "kvpolicy" / "presses.py"

HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""The presses of kvpress that kvpolicy has, under their names. make_presses.py writes this file from presses.txt.

    from kvpolicy.presses import SnapKVPress  # instead of: from kvpress import SnapKVPress

    with SnapKVPress(compression_ratio=0.5)(model):
        model.generate(**inputs)
"""

from __future__ import annotations

from dataclasses import dataclass

from ._press import AdaKVPress, ChunkKVPress, CriticalAdaKVPress, CriticalKVPress, CURPress, DMSPress, DuoAttentionPress, ExpectedAttentionPress, KVzapPress, LagKVPress, Press, QFilterPress, SimLayerKVPress
from ._press import missing as __getattr__
from ._prompt_presses import CompactorPress, ExpectedAttentionStatsPress, FastKVzipPress, FinchPress, KVComposePress, KVzipPress
'''


def rows(text):
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            name, parameters, scorer, *shares = (part.strip() for part in line.split("|"))
            yield name, [one.split("=") for one in parameters.split(", ") if one], scorer, "".join(f", {one}" for one in shares)


def module_of(text):
    made, names = HEAD, []
    for name, parameters, scorer, shares in rows(text):
        names.append(name)
        made += f"\n\n@dataclass\nclass {name}(Press):\n"
        for parameter, default in parameters:
            made += f"    {parameter}: {'int' if default.isdigit() else 'float'} = {default}\n"
        made += "\n" if parameters else ""
        for method, text_of in (("scorer", scorer), ("shares", shares)):
            if text_of:
                quoted = f'f"{text_of}"'.replace("{", "{self.") if "{" in text_of else f'"{text_of}"'
                made += "\n" * (method == "shares") + f"    def {method}(self) -> str:\n        return {quoted}\n"
    listed = ", ".join(f'"{name}": {name}' for name in sorted((*names, "CompactorPress", "CURPress", "ExpectedAttentionPress", "KVzapPress", "LagKVPress")))
    made += f"\n\nPRESSES: dict[str, type[Press]] = {{{listed}}}\n"
    made += "__all__ = " + str(["PRESSES", "AdaKVPress", "ChunkKVPress", "CompactorPress", "CriticalAdaKVPress", "CriticalKVPress", "CURPress", "DMSPress", "DuoAttentionPress", "ExpectedAttentionPress", "ExpectedAttentionStatsPress", "FastKVzipPress", "FinchPress", "KVComposePress", "KVzapPress", "KVzipPress", "LagKVPress", "Press", "QFilterPress", "SimLayerKVPress", *names]).replace("'", '"') + "\n"
    return made


def main():
    made = module_of((HERE / "presses.txt").read_text())
    if sys.argv[1:] == ["--check"]:
        if MODULE.read_text() != made:
            sys.exit("make_presses.py: src/kvpolicy/presses.py is not what presses.txt says; run make_presses.py")
        return
    MODULE.write_text(made)


if __name__ == "__main__":
    main()
