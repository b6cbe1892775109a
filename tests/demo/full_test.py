#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""full_test.py DEMO_FULL PLUGIN: the whole table has a row for each policy and budget, and takes a user's policies."""
import os
import sys
import tempfile

from programs import expect, finish, refused, run

demo = sys.argv[1]
FEW = ["--cases", "1", "--windows", "0", "--context", "512"]
ALWAYS_BUDGETED = ["streaming_llm", "snapkv", "h2o", "intent_kv", "knorm", "random", "keydiff", "chunk_kv", "r_kv", "lazy_eviction",
                   "q_filters", "tri_attention", "cake", "critical_kv", "defensive_kv", "expected_attention", "expected_pooled", "kvzip", "kvcompose", "value_aware", "trim_kv", "wg_kv", "local_attention", "quest",
                   "wg_kv+quest", "trim_kv+quest", "wg_kv+trim_kv", "wg_kv+trim_kv+quest"]

ran = run(demo, *FEW, "--full")
expect(ran.returncode == 0, f"status {ran.returncode}, {ran.stderr}")
rows = [tuple(line.split()[:2]) for line in ran.stdout.splitlines()[4:] if line][:1 + 3 * len(ALWAYS_BUDGETED)]
expected = [("full", "all")] + [(name, f"1/{share}") for name in ALWAYS_BUDGETED for share in (16, 8, 4)]
expect(rows == expected, f"the rows are {rows}")
table = ran.stdout.splitlines()[:4 + len(expected)]
expect(all(len(line) <= 140 for line in table), "no line of the table is wider than 140 columns")
expect("1 recall questions" in table[0], f"the number of cases is named: {table[0]}")
expect("(21-100)" in ran.stdout, "1 of 1 has the interval from 21 to 100 %")

own = run(demo, *FEW, "--policy", "snapkv(window=16) | sinks(4) | budget(64)", "--policy", "intent_kv | budget(64)", "--layout",
          "dead_slot")
expect(own.returncode == 0, f"policies of a user: {own.stderr}")
names = [line.split()[0] for line in own.stdout.splitlines() if line and not line.startswith(("tinylm", " ", "policy", "In "))]
expect(names == ["full", "yours", "yours"] * 2, f"policies of a user: {names}")
own = run(demo, *FEW, "--policy", "kvzip | budget(64)", "--policy", "knorm | times_norm(of=projected) | budget(64)")
expect(own.returncode == 0, f"policies that ask for more of a prompt: {own.stderr}")
three = "admit: write_gate | at_least(0.0033) | window(16); select: quest(page=16) | budget(96) | dense(0); evict: trim_kv | budget(48)"
with tempfile.TemporaryDirectory() as folder:
    own = run(demo, *FEW, "--policy", three, "--policy", "admit: head_table | sinks(4) | window(60)", "--policy", "trim_kv | budget(64)",
              "--policy", "select: quest | budget(64); evict: knorm | budget(128)", "--report", os.path.join(folder, "sections.html"))
expect(own.returncode == 0, f"specs with sections: {own.stderr}")
names = [line.split()[0] for line in own.stdout.splitlines() if line and not line.startswith(("tinylm", " ", "policy", "In ", "What"))]
expect(names == ["full"] + ["yours"] * 4 + ["full"] + ["yours"] * 4, f"specs with sections: {names}")
expect("admit: write_gate | at_least(least=0.0033, strict=false, unbounded=false) | window(16); select: quest(page=16" in own.stdout
       and "; evict: trim_kv(" in own.stdout, f"the spec is printed in full: {own.stdout}")
refused(demo, ["--policy", "admit: write_gate; evict: h2o | budget(64)"], "demo: --policy = admit: write_gate", "an eviction gets no queries or attention_probabilities")
refused(demo, ["--policy", "admit: carried(name=mine)"], "demo: --policy = admit: carried", "born with no numbers")
refused(demo, ["--policy", "admit: write_gate; admit: write_gate"], "parse: column 20", "")
refused(demo, ["--policy", "dapq | budget(64)"], "demo: --policy = dapq", "are those of a repetition of the prompt")
refused(demo, ["--policy", "nope | budget(4)"], "", "")
mine = run(demo, *FEW, "--plugin", sys.argv[2], "--policy", "knorm | squared | budget(64)", "--policy", "value_aware | budget(64)")
expect(mine.returncode == 0, f"parts of a plugin: {mine.stderr}")
expect("knorm | squared | budget(64)" in mine.stdout, f"the plugin's stage is printed: {mine.stdout}")
mine = run(demo, *FEW, "--plugin", sys.argv[2], "--policy", "knorm | budget(64)", "--layout", "scrubbed")
same = run(demo, *FEW, "--policy", "knorm | budget(64)")
cells = lambda done: [line.split()[:6] for line in done.stdout.splitlines() if line.startswith(("full", "yours"))]
expect(mine.returncode == 0 and "layout scrubbed" in mine.stdout and cells(mine) == cells(same), f"the plugin's applier: {mine.stdout} {mine.stderr}")
refused(demo, ["--layout", "scrubbed"], "demo: --layout = scrubbed, but ", "there are compact, list_rewrite, dead_slot, mask and overwrite")
refused(demo, ["--plugin", "./none.so", "--policy", "knorm | budget(4)"], "demo: --plugin = ./none.so, but it cannot be loaded: ", "")
refused(demo, ["--layout", "nope"], "demo: --layout = nope, but ", "there are compact, list_rewrite, dead_slot, mask and overwrite")
refused(demo, ["--check", "--policies", "snapkv"], "demo: --check = without full", "shares of the full cache's recall")
finish()
