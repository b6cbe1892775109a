#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants small faults in the headers, one at a time, and asks whether a test notices.

tools/mutate.py [--header GLOB]... [--count N] [--seed N] [--cases N] [--list] [--one TEXT]

A mutant is one line of one header with one operator, constant, condition or statement changed. Of all that can be made
of the chosen headers, a seeded sample is taken. Each is compiled with the test files that cover its header, the nearest
first, until one of them fails: the mutant is killed. One that no test notices survives, and is either listed with its
reason in tests/mutation/accepted.json, or an error. So is it if the accepted are more than 5 % of those that compiled.
What a test far from the header would notice is not counted: the near ones are asked to.

Lines that change only how long a call takes are not mutated, because no test of results could tell: those that fetch
memory ahead of its use, the few constants that say when that, or a sample, is worth its while, and how far a sample is
trusted: what is selected is exact from any sample (TUNING below).

--header  of include/kvpolicy, e.g. 'layout/*'; several may be given; all of ROOMS if none is
--count   how many mutants are tried (default 120; 0: all)
--cases   cases of each property (default 40)
--one     only mutants whose header, line or change contain this text
"""

import argparse
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = ROOT / "include/kvpolicy"
ROOMS = ["core/*", "ops/*", "ops/host/*", "ops/host/attention/*", "ops/host/kernels/*", "ops/host/simd/*", "core/contract/*", "decision/*", "layout/*", "by_name/*", "parts/*",
         "recorders/*", "scorers/*", "accounting/*", "admission/*", "selection/*", "session/*", "step/*",
         "lifecycle/*", "groups/*"]
MOST_ACCEPTED = 0.05

# Which test files cover a header, nearest first. The first pattern that fits counts; a header that none fits is an error,
# so that a new one is not asked of tests that never reach it.
COVER = [
    ("core/codec.hpp", "core/codec"),
    ("core/state.hpp", "core/state laws/refused_calls laws/refused_makings session/keep scorers/trim_kv "
     "admission/dual"),
    ("core/contract/check.hpp", "core/check laws/refused_makings laws/refused_calls layout/refusals"),
    ("core/contract/error.hpp", "core/check laws/refused_makings"),
    ("core/contract/fields.hpp", "by_name/parse eviction/policies"),
    ("core/lanes.hpp", "core/lanes layout/append ops/pooled_top_k laws/keep_set_laws"),
    ("core/cache.hpp", "core/lanes ops/gather_rows core/check layout/append accounting/explain"),
    ("core/signals.hpp", "core/signals core/lanes scorers/intent_kv session/turns laws/keep_set_laws"),
    ("core/dual_cache.hpp", "admission/dual step/step core/check admission/batch"),
    ("core/plan.hpp", "laws/throwing_functors laws/refused_calls accounting/explain layout/shared_pools"),
    ("core/contract/check_counts.hpp", "laws/refused_counts laws/refused_tokens"),
    ("core/contract/check_pointers.hpp", "laws/refused_makings layout/refusals"),
    ("core/contract/hook*.hpp", "core/hooks"),
    ("core/observed.hpp", "eviction/report"),
    ("core/signal_rows.hpp", "core/signals eviction/report"),
    ("core/read_number.hpp", "core/read_number by_name/parse"),
    ("core/logit_options.hpp", "ops/logit_options"),
    ("core/slots.hpp", "lifecycle/slots laws/batch_invariance"),
    ("core/slot_history.hpp", "lifecycle/slots lifecycle/save laws/batch_invariance"),
    ("core/turns.hpp", "lifecycle/turns"),
    ("core/columns.hpp", "core/state laws/batch_invariance laws/admitted_requests"),
    ("core/contract/check_lanes.hpp", "core/check lifecycle/slots laws/refused_makings laws/refused_calls layout/refusals"),
    ("core/row_counts.hpp", "laws/batch_invariance accounting/explain"),
    ("core/*", "core/lanes core/signals laws/keep_set_laws ops/pooled_top_k accounting/explain"),
    ("ops/*lists.hpp", "ops/lists layout/shared_pools layout/list_rewrite layout/dead_slot layout/refusals "
     "layout/aliasing layout/mask"),
    ("ops/host/check_list.hpp", "ops/lists layout/shared_pools layout/list_rewrite layout/dead_slot layout/refusals "
     "layout/aliasing layout/mask layout/overwrite"),
    ("ops/host/kernels/slots*.hpp", "ops/golden/passes ops/slot_kernels ops/lists layout/list_rewrite layout/dead_slot"),
    ("ops/host/split_list.hpp", "ops/lists ops/mask_rows layout/shared_pools layout/list_rewrite layout/dead_slot "
     "layout/aliasing"),
    ("ops/*units.hpp", "layout/shared_pools layout/shared_blocks layout/overwrite layout/drop_blocks layout/aliasing "
     "ops/drop_units"),
    ("ops/host/unit_owners.hpp", "layout/shared_pools layout/shared_blocks layout/overwrite layout/drop_blocks"),
    ("ops/*entries.hpp", "layout/shared_pools layout/appliers layout/append layout/compact layout/dead_slot "
     "layout/overwrite"),
    ("ops/*fold.hpp", "ops/combine ops/fold scorers/stages/reduce_lanes"),
    ("ops/*mask_rows.hpp", "ops/mask_rows layout/mask layout/shared_pools"),
    ("ops/*rerotate.hpp", "ops/rerotate layout/compact_rerotated layout/key_turns"),
    ("ops/*gather_rows.hpp", "ops/gather_rows ops/long_moves ops/ring_append ops/lists "
     "layout/list_rewrite layout/compact"),
    ("ops/*pool.hpp", "ops/combine ops/pool"),
    ("ops/host/top_k.hpp", "ops/top_k ops/pooled_top_k ops/pooled_floors ops/select"),
    ("ops/*top_k.hpp", "ops/top_k ops/pooled_top_k ops/pooled_floors"),
    ("ops/*select_if.hpp", "admission/dual scorers/trim_kv_options admission/batch laws/keep_set_laws"),
    ("ops/host/select*.hpp", "ops/select ops/top_k ops/pooled_floors ops/pooled_top_k"),
    ("ops/host/attention/*.hpp", "ops/golden/attention ops/blocks ops/attention_mass eviction/worked_examples"),
    ("ops/host/kernels/logits*.hpp", "ops/golden/attention ops/blocks ops/attention_mass"),
    ("ops/host/kernels/softmax*.hpp", "ops/golden/attention ops/blocks ops/attention_mass"),
    ("ops/*map.hpp", "ops/combine ops/map ops/row_norm"),
    ("ops/*/logits.hpp", "ops/logits"),
    ("ops/*/mean_row.hpp", "ops/mean_row methods"),
    ("ops/*span_attention.hpp", "ops/span_attention device/span_attention methods"),
    ("ops/host/attention/lane_spans.hpp", "ops/span_attention"),
    ("core/row_spans.hpp", "ops/span_attention device/span_attention scorers/kvzip"),
    ("ops/*/redundancy.hpp", "ops/redundancy methods"),
    ("ops/*/quadratic_form.hpp", "device/moments scorers/expected_attention"),
    ("ops/*query_moments.hpp", "device/moments scorers/expected_attention"),
    ("ops/*normalise.hpp", "ops/normalise scorers/stages/small_stages"),
    ("ops/*lag_spread.hpp", "ops/lag_spread methods"),
    ("ops/*leverage*.hpp", "ops/leverage device/leverage methods"),
    ("core/seeded.hpp", "ops/leverage methods"),
    ("scorers/known_queries.hpp", "methods scorers/expected_attention"),
    ("ops/*row_stats.hpp", "ops/lag_spread scorers/lazy_layers"),
    ("ops/*count_cover.hpp", "device/count_cover scorers/defensive_kv"),
    ("ops/*pooled_attention.hpp", "device/pooled_attention methods"),
    ("ops/*sort_scores.hpp", "device/sort_scores parts/ranks"),
    ("parts/ranks.hpp", "parts/ranks methods"),
    ("ops/*block_scores.hpp", "device/block_verbs scorers/stages/blocks"),
    ("ops/*add_shares.hpp", "device/block_verbs methods"),
    ("ops/*similarity.hpp", "device/block_verbs device/policies"),
    ("decision/block_rule.hpp", "scorers/stages/blocks"),
    ("recorders/record_value_mass.hpp", "recorders/record_value_mass methods"),
    ("ops/*pair_norms.hpp", "device/pair_norms methods"),
    ("ops/*visit_attention.hpp", "device/visit_attention methods"),
    ("ops/host/attention/lane_probabilities.hpp", "ops/attention_mass device/visit_attention"),
    ("recorders/record_mass_ring.hpp", "methods"),
    ("recorders/record_stamps.hpp", "methods"),
    ("ops/*projected_norm.hpp", "ops/projected_norm device/projected_norm"),
    ("ops/*future_queries.hpp", "device/pair_norms methods"),
    ("ops/*row_norm.hpp", "ops/combine ops/record_norms ops/row_norm"),
    ("ops/host/kernels/lowest*.hpp", "ops/golden/passes ops/argmin"),
    ("ops/host/kernels/norms*.hpp", "ops/golden/passes ops/row_norm"),
    ("ops/host/kernels/listing*.hpp", "ops/golden/passes ops/listed_kernels"),
    ("ops/host/kernels/row_pools*.hpp", "device/pooled_attention"),
    ("ops/host/kernels/row_sums*.hpp", "ops/projected_norm device/attention_moments"),
    ("ops/host/kernels/spread*.hpp", "ops/lag_spread"),
    ("ops/host/kernels/element_rows*.hpp", "ops/golden/rows ops/listed_kernels ops/mean_row"),
    ("ops/host/kernels/transpose*.hpp", "ops/golden/rows ops/listed_kernels ops/append_column"),
    ("ops/host/kernels/rope*.hpp", "ops/golden/rows ops/rerotate"),
    ("ops/host/kernels/gates*.hpp", "ops/golden/heads ops/gates"),
    ("ops/host/kernels/residual*.hpp", "ops/golden/heads ops/gates"),
    ("ops/host/row_products.hpp", "ops/golden/heads ops/gates"),
    ("ops/host/simd/*.hpp", "ops/golden/passes ops/golden/attention ops/slot_kernels ops/listed_kernels"),
    ("ops/*ring_append.hpp", "ops/ring_append"),
    ("ops/*attention_mass.hpp", "ops/blocks ops/attention_mass"),
    ("ops/host/kernels/element_rows.hpp", "ops/blocks ops/row_norm ops/rerotate ops/page_bounds recorders/remember scorers/intent_kv"),
    ("ops/host/segments.hpp", "laws/keep_set_laws ops/top_k ops/argmin scorers/stages/reduce_lanes laws/throwing_verbs"),
    ("ops/*append_rows.hpp", "ops/append_rows admission/dual admission/batch step/step"),
    ("ops/host/window_rows.hpp", "admission/dual ops/append_rows step/step admission/batch"),
    ("ops/*argmin*.hpp", "ops/argmin scorers/trim_kv_options"),
    ("ops/*append_column.hpp", "ops/append_column scorers/trim_kv admission/dual laws/batch_invariance"),
    ("ops/*count_rows.hpp", "lifecycle/slots laws/batch_invariance"),
    ("ops/*copy_rows.hpp", "lifecycle/save lifecycle/slots laws/batch_invariance laws/admitted_requests"),
    ("ops/*add_probabilities.hpp", "recorders/attention_probabilities"),
    ("ops/*gate*.hpp", "ops/gates io/gate_files"),
    ("ops/*page_bounds.hpp", "ops/page_bounds selection/history selection/select"),
    ("ops/*page_scores.hpp", "ops/page_bounds selection/select"),
    ("ops/*update_query_memory.hpp", "ops/update_query_memory recorders/remember scorers/intent_kv session/turns"),
    ("ops/*residual*.hpp", "scorers/intent_kv scorers/intent_kv_refusals ops/ranks"),
    ("ops/host/folded_head.hpp", "scorers/intent_kv"),
    ("ops/scratch.hpp", "layout/own_applier laws/ownership accounting/explain"),
    ("ops/rule.hpp", "core/hooks ops/top_k"),
    ("ops/host/unit_marks.hpp", "ops/lists layout/list_rewrite layout/dead_slot"),
    ("ops/host/copy_entries.hpp", "admission/dual ops/append_rows"),
    ("ops/verb.hpp", "laws/refused_calls ops/attention_mass"),
    ("ops/*executor.hpp", "ops/executor ops/blocks"),
    ("ops/host/worker_threads.hpp", "ops/executor ops/executor_throws ops/executor_fork"),
    ("ops/*fill_row.hpp", "layout/shared_pools layout/dead_slot"),
    ("ops/all_reduce.hpp", "ops/all_reduce"),
    ("layout/append.hpp", "layout/append layout/shared_pools laws/refused_calls laws/ownership"),
    ("layout/compact*.hpp", "layout/shared_pools layout/compact_rerotated layout/compact layout/refusals layout/key_turns"),
    ("layout/applier.hpp", "layout/own_applier layout/refusals laws/appliers_laws"),
    ("layout/effects.hpp", "layout/own_applier engines/capabilities"),
    ("layout/edit.hpp", "layout/shared_pools layout/refusals layout/list_rewrite layout/dead_slot layout/compact"),
    ("layout/*", "layout/shared_pools layout/{stem} layout/refusals layout/aliasing layout/agreement"),
    ("by_name/any_protection.hpp", "parts/protect parts/budget by_name/any_policy by_name/parse"),
    ("by_name/admission_systems.hpp", "by_name/systems"),
    ("by_name/*", "by_name/any_policy by_name/parse accounting/explain"),
    ("decision/describe.hpp", "decision/describe"),
    ("decision/decision_hooks.hpp", "core/hooks"),
    ("decision/scratch.hpp", "laws/ownership layout/own_applier accounting/explain"),
    ("decision/forward_rows.hpp", "lifecycle/slots laws/batch_invariance scorers/intent_kv"),
    ("decision/eviction.hpp", "eviction/policies eviction/worked_examples laws/refused_calls laws/refused_makings"),
    ("decision/*", "laws/refused_calls laws/refused_makings laws/throwing_functors eviction/worked_examples "
     "eviction/report step/step admission/dual"),
    ("parts/phase.hpp", "eviction/policies by_name/parse step/step"),
    ("parts/trigger.hpp", "eviction/policies by_name/parse step/step"),
    ("parts/model_tables.hpp", "parts/model_tables"),
    ("parts/protect.hpp", "parts/protect by_name/parse eviction/policies"),
    ("parts/forced.hpp", "parts/protect by_name/parse eviction/policies"),
    ("parts/marked.hpp", "parts/protect by_name/parse eviction/policies"),
    ("parts/*", "parts/budget by_name/parse ops/pooled_top_k"),
    ("recorders/record_page_bounds.hpp", "selection/history ops/page_bounds selection/select"),
    ("recorders/record_gate.hpp", "scorers/trim_kv admission/dual step/step"),
    ("recorders/record_retention.hpp", "scorers/trim_kv admission/dual step/step"),
    ("recorders/record_query_memory.hpp", "recorders/remember scorers/intent_kv session/turns"),
    ("recorders/*", "eviction/worked_examples ops/ring_append laws/refused_makings"),
    ("scorers/intent_kv.hpp", "scorers/intent_kv scorers/intent_kv_refusals ops/ranks session/turns"),
    ("scorers/trim_kv.hpp", "scorers/trim_kv scorers/trim_kv_options"),
    ("scorers/quest.hpp", "selection/select selection/history"),
    ("scorers/admitted_attention.hpp", "step/step eviction/policies"),
    ("scorers/head_table.hpp", "admission/dual admission/batch"),
    ("scorers/write_gate.hpp", "admission/dual step/step"),
    ("scorers/*", "scorers/{stem} eviction/worked_examples eviction/policies laws/keep_set_laws"),
    ("admission/*", "admission/dual admission/batch step/step"),
    ("selection/*", "selection/select selection/history selection/read_lists step/step"),
    ("session/session_store.hpp", "session/session_store session/turns"),
    ("session/keep.hpp", "session/keep session/turns"),
    ("session/*", "session/session_id session/session_store"),
    ("step/evict.hpp", "lifecycle/turns laws/batch_invariance"),
    ("lifecycle/dual_slots.hpp", "laws/admitted_requests"),
    ("lifecycle/*", "lifecycle/slots lifecycle/save laws/batch_invariance laws/admitted_requests"),
    ("groups/*", "groups/calls groups/mixed_decoder"),
    ("step/*", "step/step step/checks_once admission/soak"),
    ("accounting/*", "accounting/verdict accounting/explain by_name/any_policy"),
]

# A pattern in a line without strings and comments, and what it becomes.
CHANGES = [
    (r" <= ", " < "), (r" < ", " <= "), (r" >= ", " > "), (r" > ", " >= "), (r" == ", " != "), (r" != ", " == "),
    (r'(?<!") \+ (?!"|std::to_string)', " - "), (r" - ", " + "), (r" \* (?!const\b)", " + "), (r" / ", " * "),
    (r" % ", " / "),
    (r" \+= ", " -= "), (r" -= ", " += "), (r" && ", " || "), (r" \|\| ", " && "), (r" & ", " | "), (r" \| ", " & "),
    (r"\btrue\b", "false"), (r"\bfalse\b", "true"),
    (r"\bstd::min\b", "std::max"), (r"\bstd::max\b", "std::min"),
    (r"\bcontinue;", "break;"), (r"\bbreak;", "continue;"),
    (r"(?<![\w.])0(?![\w.])", "1"), (r"(?<![\w.])1(?![\w.])", "0"),
    (r"(?<![\w.])(?<!e-)([2-9]|[1-9]\d+)(?![\w.])", lambda m: str(int(m[0]) + 1)),
]
NO_CODE = re.compile(r"^\s*(#|//|template\b|using\b|namespace\b|static_assert\b|requires\b|concept\b|public:|private:|"
                     r"typename\b|friend bool operator==.*default|\w+\(.*\) = (delete|default);)|\bconcept \w+ =|"
                     r"^\s*(struct|class|enum) |= (delete|default);|decltype|\boperator|\[\[noreturn\]\]")
# Lines of which no result depends: what is fetched early, how early, from which size on. Named, so that a line is left
# out by what it says and not by where it stands. So are the sizes of a tile of registers, how much
# of a row a loop of vectors leaves to the loop behind it, and dividing by one.
TUNING = re.compile(r"__builtin_prefetch|_mm_sfence|\b(next|ahead|tile)\.next\(\)|\b(step|tile|row)_prefetcher\b|"
                    r"\bconstexpr (int|std::int64_t) (\w*ahead|line|worth_streaming|least|stretch) = |"
                    r"\bfor \(; (?P<at>\w) \+ (?P<wide>[\w* ]+) <= \w+; (?P=at) \+= (?P=wide)\)|"
                    r"\bi \+ ahead\b|\bdoubt\b|\btake_sample<|\bshare \* sample_keys::size\b|"
                    r"\blogits<\d+, \d+>\(|\bif \(shares\(\) > 1\) divide\b|"
                    r"\bi < 2 \* keys_of_a_tile; \+\+i\)|\bprefetch\(kind, ")
ROOM = re.compile(r"\bscratch_of<|\b(?:scratch_floats|block_storage)\(|\btile = ")  # how much room there is: more of it changes nothing
FETCHING = {"ops/host/prefetch.hpp"}  # all of it
STATEMENT = re.compile(r"^\s*(?!return\b|throw\b|case\b|else\b)[\w:.>*\[\]()-]+?(\(.*\);|( [-+|&*]?= ).*;)$")


def masked(line):
    """The line with the inside of strings, characters and comments blanked, at the same columns. So are sizes of
    arrays: one element more than there are values changes nothing."""
    line = re.sub(r"(?<=std::array<)[^<>]*, \d+(?=>)", lambda m: "_" * len(m[0]), line)
    line = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])+\'', lambda m: m[0][0] + "_" * (len(m[0]) - 2) + m[0][0], line)
    return re.sub(r"//.*", lambda m: " " * len(m[0]), line)


def closing(text, opened):
    """Column of the bracket that closes the one at `opened`, or -1."""
    depth = 0
    for at in range(opened, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return -1


def mutants_of_line(line):
    code = masked(line)
    if NO_CODE.search(code) or TUNING.search(code) or not code.strip():
        return
    for pattern, becomes in CHANGES:
        if callable(becomes) and ROOM.search(code):
            continue
        for found in re.finditer(pattern, code):
            text = becomes(found) if callable(becomes) else becomes
            yield line[:found.start()] + text + line[found.end():]
    for found in re.finditer(r"\b(if|while) \(", code):
        end = closing(code, found.end() - 1)
        if end > 0:
            yield line[:found.end()] + "!(" + line[found.end():end] + ")" + line[end:]
    for found in re.finditer(r"(?<=[( ])!(?=[\w(])", code):
        yield line[:found.start()] + line[found.end():]
    if STATEMENT.match(code) and code.count("(") == code.count(")"):
        yield line[:len(line) - len(line.lstrip())] + ";"


class Mutant:
    def __init__(self, header, number, before, after):
        self.header, self.number, self.before, self.after = header, number, before, after

    def key(self):
        return (self.header, self.before.strip(), self.after.strip())

    def drawn(self, seed):
        """Where it comes in the sample: by what it says, so that a change elsewhere leaves the sample as it is."""
        return hashlib.sha256(f"{seed} {self.key()}".encode()).digest()

    def __str__(self):
        return f"{self.header}:{self.number}: {self.before.strip()}  ->  {self.after.strip()}"


def all_mutants(patterns):
    made = []
    for path in sorted(HEADERS.rglob("*.hpp")):
        header = path.relative_to(HEADERS).as_posix()
        wanted = any(fnmatch.fnmatch(header, each) and header.count("/") == each.count("/") for each in patterns)
        if header in FETCHING or not wanted:
            continue
        for number, line in enumerate(path.read_text().split("\n"), 1):
            made += [Mutant(header, number, line, after) for after in dict.fromkeys(mutants_of_line(line))]
    return made


def tests_of(header):
    stem = pathlib.PurePath(header).stem
    near = next((tests for pattern, tests in COVER if fnmatch.fnmatch(header, pattern)), "")
    names = [f"{name}_test.cpp" for name in near.replace("{stem}", stem).split()]
    there = [name for name in dict.fromkeys(names) if (ROOT / "tests" / name).exists()]
    if not there:
        sys.exit(f"mutate: COVER names no test of {header}")
    return there


class Bench:
    """Compiles and runs test files against a copy of the headers."""

    def __init__(self, folder):
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(ROOT / "include", folder / "include")
        self.compiler = os.environ.get("CXX") or (shutil.which("clang++-19") and "clang++-19") or "g++"
        self.flags = ["-std=c++20", "-O0", "-w", "-pthread", "-D_GLIBCXX_ASSERTIONS", f"-I{folder}/include",
                      f"-I{ROOT}/tests", f'-DKVPOLICY_SOURCE_DIR="{ROOT}"']
        # What never changes is compiled once: the headers of the test frameworks, the program's main.
        (folder / "frame.hpp").write_text("#include <doctest/doctest.h>\n#include <rapidcheck.h>\n#include <cmath>\n"
                                          "#include <functional>\n#include <thread>\n#include <map>\n")
        compiled = "frame.hpp.pch" if "clang" in self.compiler else "frame.hpp.gch"
        self.make("-x", "c++-header", folder / "frame.hpp", "-o", folder / compiled)
        self.objects = []
        for name in ["main", "support/allocation_counter"]:
            self.objects.append(folder / f"{pathlib.PurePath(name).name}.o")
            self.make("-c", ROOT / f"tests/{name}.cpp", "-o", self.objects[-1])
        self.took = {}

    def compile(self, *arguments):
        command = [self.compiler, *self.flags, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=900)

    def make(self, *arguments):
        done = self.compile(*arguments)
        if done.returncode != 0:
            sys.exit(f"mutate: this must compile: {arguments}\n{done.stderr[:4000]}")

    def run(self, test, cases):
        """One of: no_compile, failed, timeout, passed."""
        program = self.folder / "program"
        done = self.compile("-include", self.folder / "frame.hpp", ROOT / "tests" / test, *self.objects, "-lrapidcheck",
                            "-o", program)
        if done.returncode != 0:
            return "no_compile"
        environment = {**os.environ, "RC_PARAMS": f"max_success={cases} noshrink=1"}
        environment.pop("KVPOLICY_TEST_SEED", None)
        started = time.monotonic()
        try:
            ran = subprocess.run([program, "--abort-after=1"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 timeout=20 * self.took[test] + 5 if test in self.took else 300,
                                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)))
        except subprocess.TimeoutExpired:
            return "timeout"
        self.last = time.monotonic() - started
        return "passed" if ran.returncode == 0 else "failed"

    def judge(self, mutant, cases):
        """What came of a mutant, and the test that told."""
        target = self.folder / "include/kvpolicy" / mutant.header
        for test in tests_of(mutant.header):
            original = target.read_text()
            lines = original.split("\n")
            lines[mutant.number - 1] = mutant.after
            target.write_text("\n".join(lines))
            try:
                outcome = self.run(test, cases)
            finally:
                target.write_text(original)
            if outcome == "passed":
                continue
            if test not in self.took:  # a test's word counts once it has passed with nothing planted
                if self.run(test, cases) != "passed":
                    sys.exit(f"mutate: {test} must pass before anything is changed")
                self.took[test] = self.last
            return outcome, test
        return "survived", ""


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--header", action="append", default=[])
    options.add_argument("--count", type=int, default=120)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--cases", type=int, default=40)
    options.add_argument("--list", action="store_true")
    options.add_argument("--one", default="")
    options.add_argument("--build", type=pathlib.Path, default=ROOT / "build/mutation")
    given = options.parse_args()

    chosen = [each for each in all_mutants(given.header or ROOMS) if given.one in str(each)]
    possible = len(chosen)
    if 0 < given.count < possible:
        chosen = sorted(chosen, key=lambda each: each.drawn(given.seed))[:given.count]
    for header in {each.header for each in chosen}:
        tests_of(header)
    if given.list:
        print(*chosen, sep="\n")
        return 0

    accepted = {(one["header"], one["line"], one["mutant"]): one["reason"]
                for one in json.loads((ROOT / "tests/mutation/accepted.json").read_text())}
    bench = Bench(given.build)
    counts = dict.fromkeys(["failed", "timeout", "no_compile", "survived", "accepted"], 0)
    for mutant in chosen:
        outcome, told = bench.judge(mutant, given.cases)
        if outcome == "survived" and mutant.key() in accepted:
            outcome, told = "accepted", accepted[mutant.key()]
        counts[outcome] += 1
        print(f"{outcome:10} {mutant}  [{told}]", flush=True)

    compiled = len(chosen) - counts["no_compile"]
    share = counts["accepted"] / compiled if compiled else 0
    print(f"\nseed {given.seed}: {len(chosen)} of {possible} mutants, {compiled} compiled, "
          f"{counts['failed'] + counts['timeout']} killed ({counts['timeout']} by running too long), "
          f"{counts['survived'] + counts['accepted']} survived, {counts['accepted']} of them accepted ({share:.1%})")
    # One accepted mutant of a small sample says nothing about the share.
    too_many = share > MOST_ACCEPTED and counts["accepted"] > 1
    return 1 if counts["survived"] > 0 or too_many else 0


if __name__ == "__main__":
    sys.exit(main())
