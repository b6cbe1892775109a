#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""trace.py FILE: a small random trace of kvreplay, whose tokens have texts that are hard to show."""
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kvreplay"))
from traces import write

LAYERS, HEADS, ENTRIES, DIMS = 20, 2, 120, 4
WORDS = [" the", " cache", "\n", "</script>", "", "\u202eback", " \t", "é", "<!--", "{{data}}"]

dice = random.Random(1)
rows = lambda: [[[[dice.gauss(0, 1) for _ in range(DIMS)] for _ in range(ENTRIES)] for _ in range(HEADS)] for _ in range(LAYERS)]
texts = [WORDS[index % len(WORDS)] for index in range(ENTRIES)]
write(Path(sys.argv[1]), {name: ("F32", rows()) for name in ("keys", "values", "queries")}, {"token_texts": json.dumps(texts)})
