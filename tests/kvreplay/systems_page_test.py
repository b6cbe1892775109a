#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every spec and every name of the table in docs/systems.md over a small trace, by kvreplay.

    systems_page_test.py PROGRAM

Needs numpy; without it every test is skipped, and says so.
"""

import json
import re
import unittest
from pathlib import Path

from program import Runs, listed
from reference_test import Trace, np
from traces import main, read

PAGE = Path(__file__).resolve().parents[2] / "docs" / "systems.md"
ENTRIES = 700


def rows():
    """The table's rows: the system, and the texts in code of its spec."""
    for line in PAGE.read_text(encoding="utf-8").split("\n"):
        cells = [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 6 and cells[0] not in ("system", "---"):
            yield cells[0], re.findall(r"`([^`]+)`", cells[3])


@unittest.skipIf(np is None, "there is no numpy")
class Page(Runs):
    def setUp(self):
        super().setUp()
        self.write(self.trace(), {"rope_theta": "10000.0"})

    @staticmethod
    def trace():
        """A trace with all that a row's spec reads."""
        trace, dice = Trace(0, "F32", 3, 4, 2, ENTRIES, dims=8, value_dims=8), np.random.default_rng(0)
        stored = trace.stored
        for name in ("log_beta", "external.x", "gate", *(f"birth.{one}" for one in ("surprise", "fast_kvzip", "locret", "kvzap"))):
            numbers = dice.uniform(0, 1, (3, 2, ENTRIES))
            stored[name] = ("F32", (numbers * {"log_beta": -1, "birth.kvzap": -8}.get(name, 1)).astype(np.float32))
        for name, page in (("seer", 64), ("moba", 512), ("nsa", 64), ("dsa", 1)):
            stored[f"page_gate.{name}"] = ("F32", dice.uniform(0, 1, (3, 2, -(-ENTRIES // page))).astype(np.float32))
        stored["table.heads"] = ("F32", np.array([[0, 1], [1, 0], [0, 0]], np.float32))
        stored["table.q_filters"] = ("F32", dice.normal(0, 1, (3, 2, 8)).astype(np.float32))
        stored["query_model.mean"] = ("F32", dice.normal(0, 1, (3, 4, 8)).astype(np.float32))
        square = dice.normal(0, 0.3, (3, 4, 8, 8))
        stored["query_model.square"] = ("F32", (square @ square.swapaxes(2, 3)).astype(np.float32))
        stored["pre_rope_queries"] = ("F32", dice.normal(0, 1, (3, 4, ENTRIES, 8)).astype(np.float32))
        stored["pre_rope_keys"] = ("F32", dice.normal(0, 1, (3, 2, ENTRIES, 8)).astype(np.float32))
        stored["table.thresholds"] = ("F32", dice.normal(0.5, 0.2, (3, 4)).astype(np.float32))
        stored["table.voters"] = ("F32", dice.integers(0, 2, (3, 4)).astype(np.float32) + 0.5)
        stored["table.drift"] = ("F32", np.array([0.2, 1, 0.5], np.float32))
        stored["table.importance"] = ("F32", dice.uniform(0.5, 1, 3).astype(np.float32))
        stored["query_model.radius"] = ("F32", dice.uniform(1, 2, (3, 4, 4)).astype(np.float32))
        stored["output_projection"] = ("F32", dice.normal(0, 1, (3, 16, 32)).astype(np.float32))
        stored["query_rows"] = ("F32", dice.normal(0, 1, (3, 4, 8, 8)).astype(np.float32))
        stored["token_class"] = ("I32", dice.integers(0, 4, ENTRIES).astype(np.int32))
        stored["query_positions"] = ("I32", np.arange(ENTRIES, ENTRIES + 8, dtype=np.int32))
        stored["row_begin"], stored["row_end"] = ("I32", np.zeros(8, np.int32)), ("I32", np.full(8, ENTRIES, np.int32))
        stored["stale_begin"], stored["stale_end"] = ("I32", np.array([100], np.int32)), ("I32", np.array([300], np.int32))
        return trace

    def test_every_row_has_a_spec_that_runs(self):
        names = set(listed())
        seen = 0
        for system, texts in rows():
            ran = 0
            for text in texts:
                with self.subTest(system=system, text=text):
                    if not re.match(r"(admit: |select: )?(\w+)", text) or "::" in text or text.startswith(("registry.", "recent")):
                        continue
                    mode = ("--mode", "select") if text.startswith("select:") else ()
                    if text.startswith("kvreplay "):
                        done = self.run_program(*text.split()[1:])
                    else:
                        self.assertIn(re.sub(r"^(admit|select): ", "", text).split("(")[0].split(" ")[0], names | {"carried", "write_gate", "head_table"})
                        done = self.run_program("--spec", text, *mode)
                    ran += 1
                    if "table=lu_kv" in text:  # by its text alone a table has no numbers
                        self.assertIn("lu_kv, but a table is given to the registry by its name", done.stderr)
                        continue
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    self.assertIn("keep.ordinals", read(self.out))
                    kept = json.loads(done.stdout)["attended_length" if mode else "logical_kept"]
                    budget = re.search(r"budget\((\d+)", text)
                    if budget and int(budget[1]) >= ENTRIES:
                        self.assertEqual(kept, 6 * ENTRIES)
                    else:
                        self.assertTrue(0 < kept < 6 * ENTRIES, kept)
            self.assertGreater(ran, 0, system)
            seen += 1
        self.assertGreater(seen, 24)


if __name__ == "__main__":
    main()
