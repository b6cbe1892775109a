#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a spec with every name of the grammar, by kvreplay: it parses, and what it prints reads back and decides alike.

    grammar_test.py PROGRAM

Needs numpy; without it every test is skipped, and says so.
"""

import json
import unittest

from reference_test import np
from systems_page_test import ENTRIES, Page
from traces import main, read

SCORERS = """snapkv h2o tova knorm random streaming_llm full recency external(name=x) intent_kv trim_kv db_trim_kv observed_attention
    carried(name=kvzap) fast_kvzip lookahead_kv dapq keydiff r_kv scissorhands q_filters tri_attention keys_values cake defensive_kv
    layer_defensive_kv compress_kv finch kvcompose kvzip expected_attention cap_kv lag_kv cur leverage compactor window_attention
    received_attention received_by_value openvino voted_attention late_attention dynamic_kv chunk_kv pyramid_kv nacl sir_llm critical_kv
    critical_ada_kv locret peak_attention epi_cache""".split()
WITHOUT_BUDGET = "side_quest neural_gc simlayer_kv(0.1,recent=64) fastgen(0.5) pyramid_infer mp_cache_prompt".split()
STAGES = """reduce_lanes(decides=layer, how=mean)|reduce_lanes(token, sum)|reduce_lanes(layer, max)|blocks(size=20, how=mean)|blocks
    |critical(first=0.5, epsilon=0.0001)|critical|put_first(tokens=10, part=0, then=recency)|put_first(part=0.25, then=random)
    |mix(lambda=0.5, with=knorm)|mix(0.5, recency)|times_norm|times_norm(of=projected, norm=l1, epsilon=0.5)|normalised(how=sum, block=0)
    |normalised(min_max)|normalised(z)|normalised(softmax)|normalised(rank, block=128)|pooled(pool=max:7)|pooled(avg:5)|decayed(decay=0.9)
    |noise(seed=42)|noise|frozen"""
PROTECTIONS = ("sinks(4)", "sinks(tokens=4)", "recent(4)", "recent(tokens=4)", "span(3, 9)", "span(begin=3, end=9)", "safe", "safe(sinks=4, recent=32)",
               "prompt", "marks(class=2)", "marks(2)")
BUDGETS = ("budget(100)", "budget(tokens=100)", "budget(ratio=0.5)", "budget(bytes=100000)", "budget(100, by=fixed)", "budget(ratio=0.5, by=seen)",
           "budget(100, by=ramp, beta=20)", "budget(100, by=moments, tau1=1, tau2=1)", "budget(100, by=hits)", "budget(100, by=ranks)",
           "budget(ratio=0.5, rounding=exact, held=true, by=moments, rounding=release)",
           "budget(100, by=variance)", "budget(100, by=table_power, table=drift, power=1.1, floor=0.25)",
           "budget(100, by=importance, table=importance, least=32, cap=3)", "budget(ratio=0, by=depth, first=0.5)")
SCOPES = ("budget(100, scope=lane)", "budget(100, scope=layer, floor=0.2)", "budget(100, scope=global, floor_tokens=4)")
TRIGGERS = ("over_budget", "over_budget(7)", "over_budget(slack=7)", "over_total(100)", "over_total(entries=100)", "every(64)", "every(steps=64)",
            "full_buffer(3)", "full_buffer(entries=3)")
PICKS = ("top", "at_least(0.1)", "at_least(least=0.1, strict=false, unbounded=true)", "at_least_table(heads)",
         "at_least_table(table=importance, strict=true)", "lowest(part=0.5)")
# One spec of each system, and what goes with it.
EXAMPLES = (
    "evict: snapkv(window=32, pool=max:7) | budget(512, by=ramp, beta=20)",
    "evict: cake(window=32, gamma=200) | budget(512, by=moments, tau1=1.6, tau2=0.4) | when(layer)",
    "evict: external(name=x) | critical(first=0.5, epsilon=0.0001) | budget(512)",
    "evict: external(name=x) | reduce_lanes(layer, sum) | blocks(20, mean) | budget(512)",
    "evict: carried(name=fast_kvzip) | safe(sinks=4, recent=128) | budget(512, scope=global)",
    "evict: carried(name=surprise) | put_first(tokens=100, then=recency) | reduce_lanes(token, max) | sinks(4) | budget(512) | when(turn)",
    "evict: snapkv(window=32, pool=none) | put_first(part=0.75, then=random) | budget(512)",
    "evict: r_kv(window=8, lambda=0.07) | sinks(4) | budget(512) | over_budget(127)",
    "admit: carried(name=kvzap) | sinks(4) | window(128) | at_least(-4)",
    "admit: write_gate | window(256) | at_least(0.1)",
    "select: quest | page(16) | dense(2) | budget(512)",
    "evict: tri_attention | prompt | budget(512) | over_budget(127)",
)


def specs():
    yield from EXAMPLES
    yield from (f"evict: {one} | budget(100)" for one in SCORERS)
    yield from (f"evict: {one}" for one in WITHOUT_BUDGET)
    yield from (f"evict: snapkv | {one.strip()} | budget(100)" for one in STAGES.split("|"))
    for one in PROTECTIONS:
        yield from (f"evict: knorm | {one} | budget(100)", f"admit: write_gate | window(16) | {one}", f"select: quest | page(16) | {one} | budget(64)")
    yield from ("evict: knorm | everything | budget(100)", "admit: write_gate | everything", "select: quest | everything")
    yield from (f"evict: cake | {one}" for one in BUDGETS)
    yield from (f"evict: snapkv | {one}" for one in (*SCOPES, "unlimited"))
    yield from (f"select: quest | {one}" for one in (*BUDGETS[:5], "unlimited"))
    yield from (f"evict: knorm | budget(100) | {one}" for one in TRIGGERS)
    yield from (f"evict: knorm | budget(100) | when({one})" for one in ("prefill", "step", "turn", "chunk", "layer"))
    yield from (f"evict: knorm | {one}" for one in PICKS)
    yield from (f"select: quest | {one}" for one in PICKS[:-1])
    yield from (f"admit: write_gate | {one}" for one in PICKS[1:-1])
    yield from ("admit: write_gate | window(tokens=256) | cap(tokens=10)", "admit: kvzap", "admit: attention_gate", "admit: ada_ea",
                "admit: expected_margin | at_least(0)", "admit: head_table(table=heads)", "select: page_gates(name=seer, page=64) | budget(128)",
                "select: quest | page(size=16) | dense(layers=1) | inherit(layers=2) | budget(64)")


@unittest.skipIf(np is None, "there is no numpy")
class Grammar(Page):
    """Only what is named here: not the inherited test again."""

    @staticmethod
    def trace():
        made = Page.trace()
        made.stored["prompt_end"] = ("I32", np.array(50, np.int32))
        return made

    def text_of(self, spec):
        """What the program prints of a spec, with its section, and the results."""
        done = self.run_program("--spec", spec, *(("--mode", "select") if spec.startswith("select") else ()))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return f"{spec.split(':')[0]}: {json.loads(done.stdout)['spec']}", read(self.out)

    def test_every_name(self):
        for spec in specs():
            with self.subTest(spec=spec):
                text, results = self.text_of(spec)
                again, same = self.text_of(text)
                self.assertEqual((again, same), (text, results))

    def test_names_of_parameters_that_are_wrong(self):
        for part, said in (("over_budget(steps=3)", "steps, but over_budget has the fields"), ("top(3)", "3, but top has no fields"),
                           ("top | at_least(0.5)", "at_least, but there is one before, at column 16"), ("every(steps=0)", "every.steps = 0")):
            self.fails(self.run_program("--spec", f"evict: knorm | {part}"), said, part=part)
        self.fails(self.run_program("--spec", "evict: fastgen(0.5) | top"), "top, but fastgen has one of its own")


def load_tests(loader, _, __):
    """The tests of this file alone."""
    return unittest.TestSuite(Grammar(name) for name in loader.getTestCaseNames(Grammar) if name in vars(Grammar))


if __name__ == "__main__":
    main()
