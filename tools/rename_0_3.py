#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renames the C++ names of kvpolicy 0.2 to those of 0.3 in a user's sources.

    rename_0_3.py PATH...                 rewrites .hpp .cpp .cu .cuh .h .cc .hh, and the ```cpp blocks of .md files
    rename_0_3.py --check PATH...         writes nothing, prints what it would change, exits 1 if there is anything
    rename_0_3.py --comments PATH...      also names in comments and in the prose of .md files
    rename_0_3.py --strings PATH...       also names in string literals, where errors of kvpolicy are quoted
    rename_0_3.py --table                 prints the table old -> new as Markdown
    rename_0_3.py --self-test             tests itself

Sources for 0.1 are first given to rename_0_2.py. Names in specs, program options, trace tensors and result files are
strings, and did not change: strings stay as they are unless --strings is given, which touches only the calls and arguments
that errors name. A second run changes nothing.

The script reads tokens, not C++: it knows scopes, and the type that stands in front of a declared name. `auto` variables
are judged by how they are used. What it cannot judge it leaves alone; the compiler then says where.
"""

import renamer


def moved(old, new, names, **others):
    return {f"{old}/{name}.hpp": f"{new}/{others.get(name, name)}.hpp" for name in names.split()}


class Renamer(renamer.Renamer):
    HEADERS = {
        **moved("printed", "by_name", "any_admission any_budget any_cache_policy any_observed any_pick any_policy any_protection "
                "any_recorders any_scorer any_signals forced_entries held known_parts own_parts read_budget registered_parts "
                "registry scorer_model set_fields spec spec_parts systems", own_parts="user_parts"),
        **moved("core", "core/contract", "check check_counts check_lanes check_places check_pointers error fields hook_checks hooks"),
        **moved("budget", "parts", "allot budget largest_remainder pick proportional ramp seen"),
        **moved("protect", "parts", "forced marked protect"),
        **moved("trigger", "parts", "phase trigger"),
        **moved("tables", "parts", "model_tables"),
        **moved("stages", "scorers/stages", "frozen put_first reduce_lanes"),
        **moved("eviction", "decision", "eviction"),
        **moved("decision", "core", "bag", bag="signal_set"),
        **moved("decision", "decision", "check hooks refusals", check="decision_checks", hooks="decision_hooks",
                refusals="decision_refusals"),
        **moved("selection", "selection", "refusals", refusals="selection_refusals"),
        **moved("recorders", "recorders", "hooks", hooks="recorder_hooks"),
        **moved("recorders", "scorers", "freeze"),
        **moved("step", "step", "check", check="step_checks"),
    }  # fmt: skip

    # Hooks that recorders and scorers declare.
    IDENTIFIERS = {"all_born": "all_known_at_append", "from_birth": "known_at_append", "reduces_ranks": "safe_across_ranks"}

    QUALIFIED = {
        ("", "bag"): "signal_set",
        ("", "decides"): "can_decide",
        ("", "per"): "column_extent",
        ("", "unit"): "item",
        ("budget_scope", "global"): "sequence",
        ("granularity", "token"): "sequence",
        ("ops", "attention_mass"): "compute_attention_mass",
        ("ops", "attention_mass_t"): "compute_attention_mass_t",
    }
    ONLY_QUALIFIED = {"decides"}

    MEMBERS = {
        "bound": [(("lanes", "newer_tokens"), "capacity")],
        "dims": [(("plane",), "channels")],
        "layer": [(("plane",), "layer_stride")],
        "unit": [(("plane",), "unit_stride")],
        "token": [(("plane",), "token_stride")],
        "head": [(("plane",), "head_stride")],
        "dim": [(("plane",), "channel_stride")],
        "of": [(("keep_set",), "items")],
        "seen": [(("keep_set",), "entry_count")],
        "one": [(("column",), "extent")],
        "global": [(("dual_cache", "dual_state"), "pages")],
        "pages": [(("paged_lanes",), "free_pages")],
        "exits": [(("step_plan",), "admission")],
        "evicting": [(("step_plan",), "eviction")],
        "selecting": [(("step_plan",), "selection")],
        "prefix": [(("dead_slot", "list_edit"), "protected_prefix")],
        "locked": [(("dead_slot", "list_edit"), "locked_prefix")],
    }
    OBJECTS = {
        "lanes": {"lanes", "lanes_", "batch"},
        "plane": {"k", "v"},
        "keep_set": {"keep", "keep_", "chosen"},
        "column": {"about"},
        "dual_cache": {"both", "both_", "view"},
        "dual_state": {"state", "state_"},
        "paged_lanes": {"global"},
        "step_plan": {"plans", "plans_"},
    }
    BESIDE = {
        "lanes": lambda there: there & {"layer_end", "count", "position"},
        # views of query rows have no units, tables of pointers and of scales no elements
        "plane": lambda there: "dim" in there or there & {"unit", "token"} and there & {"base", "bases", "element", "dims"},
        "column": lambda there: there & {"bytes", "rule"},
        "keep_set": lambda there: there & {"indptr", "indices"},
        "dual_cache": lambda there: there & {"window", "oldest"},
        "paged_lanes": lambda there: "num_pages" in there,
        "dead_slot": lambda there: there & {"map", "map_begin", "dead"},
    }

    STRINGS = [
        (r"\blanes\.bound\b", "lanes.capacity"),
        (r"`bound`", "`capacity`"),
        (r"\b(k|v|keys)\.dims(?= = )", r"\1.channels"),
        (r"\bglobal\.pages\b", "pages.free_pages"),
        (r"\bglobal\.(?=(?:lanes|num_pages|table|where)\b)", "pages."),
        (r"^attention_mass(?=:)", "compute_attention_mass"),
    ]
    QUOTED = {}

    def member(self, source, i, qualify):
        # `exit_plan::exits()` is a function, and stays
        calls = source.words[i + 1 : i + 2] == ["("]
        return None if calls else super().member(source, i, qualify)


def table():
    members = [(f"`{old}` of `" + "`, `".join(types) + "`", f"`{new}`") for old, rules in Renamer.MEMBERS.items() for types, new in rules]
    kinds = {"decides": ", the concept", "per": ", the enumeration", "unit": ", the enumeration", "attention_mass": ", the verb"}
    return renamer.table(Renamer, ("0.2", "0.3"), members, kinds)


SELF_TEST = [
    # (options, before, after)
    ({}, "#include <kvpolicy/printed/own_parts.hpp>\n", "#include <kvpolicy/by_name/user_parts.hpp>\n"),
    ({}, '#include "kvpolicy/core/error.hpp"\n', '#include "kvpolicy/core/contract/error.hpp"\n'),
    ({}, "#include <kvpolicy/decision/decide.hpp>\n", "#include <kvpolicy/decision/decide.hpp>\n"),
    ({}, "int n = cache.lanes.bound + plan.lanes().bound; // bound\n", "int n = cache.lanes.capacity + plan.lanes().capacity; // bound\n"),
    ({}, "kv::lanes const& who = all; f(who.bound, page.bound);\n", "kv::lanes const& who = all; f(who.capacity, page.bound);\n"),
    ({}, "kv::lanes a{.heads = 2, .bound = 8}; x.lanes = {.layer_end = 1, .bound = 8}; y = {.sequences = 1, .bound = 8};\n",
     "kv::lanes a{.heads = 2, .capacity = 8}; x.lanes = {.layer_end = 1, .capacity = 8}; y = {.sequences = 1, .bound = 8};\n"),
    ({}, "f(cache.k.dims, cache.v.dim, rows.dims, lane.layer);\n", "f(cache.k.channels, cache.v.channel_stride, rows.dims, lane.layer);\n"),
    ({}, "int f(kv::plane const& keys) { return keys.dims * keys.head; }\n",
     "int f(kv::plane const& keys) { return keys.channels * keys.head_stride; }\n"),
    ({}, "c.k = {.base = p, .dims = 4, .layer = a, .unit = b, .token = c, .head = d, .dim = 2}; kv::lane l{.layer = 1, .head = 2};\n",
     "c.k = {.base = p, .channels = 4, .layer_stride = a, .unit_stride = b, .token_stride = c, .head_stride = d, .channel_stride = 2}; "
     "kv::lane l{.layer = 1, .head = 2};\n"),
    ({}, "auto const plane = [](int n) { return kv::plane{.base = p, .dims = n, .head = 4}; };\n",
     "auto const plane = [](int n) { return kv::plane{.base = p, .channels = n, .head_stride = 4}; };\n"),
    ({}, "queries = {.base = p, .dims = 4, .layer = a, .head = b, .row = c}; scales = {.layer = 3, .unit = 1, .token = 2};\n",
     "queries = {.base = p, .dims = 4, .layer = a, .head = b, .row = c}; scales = {.layer = 3, .unit = 1, .token = 2};\n"),
    ({}, "if (keep.of == kv::unit::page) f(keep.seen[0]); struct a { int seen; };\n",
     "if (keep.items == kv::item::page) f(keep.entry_count[0]); struct a { int seen; };\n"),
    ({}, "kv::keep_set view() { return {.lanes = all, .of = kv::unit::page, .indptr = a, .indices = b, .seen = seen}; }\n",
     "kv::keep_set view() { return {.lanes = all, .items = kv::item::page, .indptr = a, .indices = b, .entry_count = seen}; }\n"),
    ({}, "kv::column{\"mass\", kv::per::lane_entry}; if (each.about.one == kv::per::session) g(); h({.one = a, .bytes = 4});\n",
     "kv::column{\"mass\", kv::column_extent::lane_entry}; if (each.about.extent == kv::column_extent::session) g(); h({.extent = a, .bytes = 4});\n"),
    ({}, "using namespace kvpolicy; column a{\"mass\", per::lane_entry}; double per = 2; f(per);\n",
     "using namespace kvpolicy; column a{\"mass\", column_extent::lane_entry}; double per = 2; f(per);\n"),
    ({}, "kv::granularity::token; kv::budget_scope::global; kv::place{unit, token}; place.token;\n",
     "kv::granularity::sequence; kv::budget_scope::sequence; kv::place{unit, token}; place.token;\n"),
    ({}, "f(both.global.entries, both.global.pages.free, state.global); kv::dual_cache c{.window = w, .global = p};\n",
     "f(both.pages.entries, both.pages.free_pages.free, state.pages); kv::dual_cache c{.window = w, .pages = p};\n"),
    ({}, "f(*plans.exits, plans.evicting, plans.selecting); kv::exit_plan<E> plan; plan.exits();\n",
     "f(*plans.admission, plans.eviction, plans.selection); kv::exit_plan<E> plan; plan.exits();\n"),
    ({}, "kv::dead_slot<mine> how{.map = m, .prefix = p, .locked = l}; kv::intent_kv s{.prefix = 4};\n",
     "kv::dead_slot<mine> how{.map = m, .protected_prefix = p, .locked_prefix = l}; kv::intent_kv s{.prefix = 4};\n"),
    ({}, "kv::ops::attention_mass(exec, a, b, {}, c); kv::verbs<kv::ops::attention_mass_t>; kv::attention_mass{table};\n",
     "kv::ops::compute_attention_mass(exec, a, b, {}, c); kv::verbs<kv::ops::compute_attention_mass_t>; kv::attention_mass{table};\n"),
    ({}, "requires kv::decides<P, S, E>; static constexpr auto decides = kv::granularity::layer; plan.decides();\n",
     "requires kv::can_decide<P, S, E>; static constexpr auto decides = kv::granularity::layer; plan.decides();\n"),
    ({}, "kv::bag const all(given, recorders, state); int bag = 3;\n", "kv::signal_set const all(given, recorders, state); int bag = 3;\n"),
    ({}, "static constexpr bool from_birth = true; bool reduces_ranks() const;\n",
     "static constexpr bool known_at_append = true; bool safe_across_ranks() const;\n"),
    ({"strings": True}, 'expect("make_plan: lanes.bound = 0"); f("knorm | budget(9, scope=global)"); g("attention_mass");\n',
     'expect("make_plan: lanes.capacity = 0"); f("knorm | budget(9, scope=global)"); g("attention_mass");\n'),
    ({"strings": True}, 'expect("promote: global.lanes.count (0) = 8"); expect("attention_mass: queries.rows = -1");\n',
     'expect("promote: pages.lanes.count (0) = 8"); expect("compute_attention_mass: queries.rows = -1");\n'),
    ({"comments": True}, "// granularity::token, from_birth; see printed/spec.hpp\n", "// granularity::sequence, known_at_append; see by_name/spec.hpp\n"),
]  # fmt: skip

PAGE = "Say `lanes.bound`.\n\n```cpp\nf(cache.lanes.bound);\n```\n\n```sh\nfrom_birth\n```\n"

if __name__ == "__main__":
    renamer.main(Renamer, __doc__, table, SELF_TEST, (PAGE, PAGE.replace("cache.lanes.bound", "cache.lanes.capacity")))
