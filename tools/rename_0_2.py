#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renames the C++ names of kvpolicy 0.1 to those of 0.2 in a user's sources.

    rename_0_2.py PATH...                 rewrites .hpp .cpp .cu .cuh .h .cc .hh, and the ```cpp blocks of .md files
    rename_0_2.py --check PATH...         writes nothing, prints what it would change, exits 1 if there is anything
    rename_0_2.py --comments PATH...      also names in comments and in the prose of .md files
    rename_0_2.py --strings PATH...       also names in string literals, where errors of kvpolicy are quoted
    rename_0_2.py --variables PATH...     also parameters and locals that have the old names, such as `lane who`
    rename_0_2.py --table                 prints the table old -> new as Markdown
    rename_0_2.py --self-test             tests itself

Names in specs, program options, trace tensors and result files are strings, and did not change: strings stay as they are
unless --strings is given, which touches only the calls and arguments that errors name. A second run changes nothing.

The script reads tokens, not C++: it knows scopes, and the type that stands in front of a declared name. `auto` variables
are judged by how they are used. What it cannot judge it leaves alone; the compiler then says where.
"""

import re

import renamer
from renamer import ALIASES

# The table ---------------------------------------------------------------------------------------------------------------

# Headers under kvpolicy/.
HEADERS = {
    "eviction/decide.hpp": "decision/decide.hpp",
    "recorders/recording.hpp": "decision/record.hpp",
    "engines/carry.hpp": "engines/bind.hpp",
    "ops/carry_numbers.hpp": "ops/append_column.hpp",
    "ops/host/carry_numbers.hpp": "ops/host/append_column.hpp",
    "ops/cuda/carry_numbers.hpp": "ops/cuda/append_column.hpp",
    "ops/remember_rows.hpp": "ops/update_query_memory.hpp",
    "ops/host/remember_rows.hpp": "ops/host/update_query_memory.hpp",
    "ops/cuda/remember_rows.hpp": "ops/cuda/update_query_memory.hpp",
    "ops/host/ahead.hpp": "ops/host/prefetch.hpp",
    "ops/cuda/tell.hpp": "ops/cuda/apply_stats.hpp",
    "ops/cuda/residual_room.hpp": "ops/cuda/residual_storage.hpp",
    "policies/readings.hpp": "policies/published_settings.hpp",
    "recorders/accumulate.hpp": "recorders/record_attention_mass.hpp",
    "recorders/bound_pages.hpp": "recorders/record_page_bounds.hpp",
    "recorders/carry_gate.hpp": "recorders/record_gate.hpp",
    "recorders/carry_retention.hpp": "recorders/record_retention.hpp",
    "recorders/remember.hpp": "recorders/record_query_memory.hpp",
}

# Public names that mean nothing else: renamed wherever they stand.
IDENTIFIERS = {
    # what a decision came to in memory
    "step_tally": "step_stats",
    "promotion_tally": "promotion_stats",
    "clear_tally": "clear_stats",
    "clear_tally_t": "clear_stats_t",
    "tell_t": "count_kept_t",
    "tell_dropped": "count_dropped",
    "tell_dropped_t": "count_dropped_t",
    # state
    "held_column": "recorded_column",
    "held_columns": "recorded_columns",
    # steps and admission
    "page_supply": "page_free_list",
    "make_room": "promote",
    "take_in": "ingest",
    "refuse_fresh": "refuse_new_tokens",
    "refuse_fresh_t": "refuse_new_tokens_t",
    # verbs and recorders
    "carry_numbers": "append_column",
    "carry_numbers_t": "append_column_t",
    "carry_entries": "permute_columns",
    "carry_entries_t": "permute_columns_t",
    "remember_rows": "update_query_memory",
    "remember_rows_t": "update_query_memory_t",
    "remembering": "query_memory_update",
    "carry_gate": "record_gate",
    "carry_retention": "record_retention",
    "bound_pages": "record_page_bounds",
    # executors and kernels
    "speaks": "simd_level",
    "launch_numbers": "launch_config",
    "fault_word": "device_error",
    "tell_fault": "report_fault",
    "set_numbers": "set_launch_config",
    "numbers_for": "launch_config_for",
}

# Public names that are also plain words, by where they stand: `kv::NAME`, or NAME as a type or call inside of kvpolicy's
# own namespace or under `using namespace kvpolicy`. (namespace that qualifies, old): new.
QUALIFIED = {
    ("", "tally"): "apply_stats",
    ("", "appended"): "append_request",
    ("", "entering"): "ring_request",
    ("", "accumulate"): "record_attention_mass",
    ("", "remember"): "record_query_memory",
    ("", "any_of"): "any_signal_of",
    ("", "best"): "plain_top_k",
    ("", "times"): "multiplied",
    ("", "span"): "position_span",
    ("", "ratio"): "drop_ratio",
    ("", "global"): "per_sequence",
    ("", "random"): "random_scores",
    ("", "identity"): "identity_map",
    ("", "select"): "select_pages",
    ("ops", "tell"): "count_kept",
    ("engines", "carry"): "bind",
    ("engines", "carried"): "bound_policy",
}
CALLED = {"select", "identity", "tell", "carry"}  # functions among them; the others are types

# Members, found as `object.NAME`, `.NAME =`, and where a class declares them. `of`: types of the object, as far as they
# can be told; "*": any other object. A new name of None: stays.
LANES, LANE = ("lanes",), ("lane",)
MEMBERS = {
    "who": [(("entry", "lane_entries", "verdict"), "lane"), ("*", "lanes")],
    "offset": [(("keep_set",), "indptr")],
    "ordinal": [(("keep_set",), "indices")],
    "held": [(("paged_lanes", "pages_of_lanes", "lane_take", "count_released_kernel", "write_released_kernel"), "num_pages")],
    "told": [(("entering", "count_exits_body"), "host_tokens")],
    "supply": [(("pages_of_lanes",), "free_list"), (("all_released", "count_released_kernel", "all_takes"), "free_pages")],
    "odd": [(("segment_word",), "aux_count")],
    "room": [(("plan", "selection_plan"), "keep_storage")],
    "numbers": [(("Executor", "cuda_executor", "emulated_device"), "config")],
    "entering": [(("exit_plan",), "new_tokens")],
}
# Objects by the names that everybody gives them, where no declaration tells.
OBJECTS = {
    "entry": {"about"},
    "keep_set": {"keep", "keep_", "view", "chosen"},
    "Executor": {"exec", "exec_", "executor", "device", "gpu"},
    "paged_lanes": {"global"},
    "entering": {"asked"},
    "count_exits_body": {"some"},
    "pages_of_lanes": {"to"},
    "lane_take": {"mine"},
    "all_released": {"all"},
    "segment_word": {"told"},
    "exit_plan": {"plans", "exits"},
    "plan": {"plan", "plans", "decided", "plan_", "into"},
}
PRIVATE_OBJECTS = {"entering", "count_exits_body", "pages_of_lanes", "lane_take", "all_released", "segment_word"}
# What the members of a lane and of lanes are called: how an object of unknown type is used.
OF_A_LANE = {"sequence", "layer", "head"}
OF_LANES = {"sequences", "layer_begin", "layer_end", "heads", "bound", "count", "position", "in_flight", "layers", "size",
            "at", "index", "committed", "layers_only"}

# Members of classes of kvpolicy that a class of the same form (a block of threads) has too: `block.NAME(`.
BLOCK = {"add": "atomic_add", "lower": "atomic_min", "raise": "atomic_max", "unite": "atomic_or",
         "intersect": "atomic_and"}

# Private names of kvpolicy's own headers and tests: no user has them, but they go along in this repository.
INTERNAL = {
    "let_go": "retire",
    "tell_nothing": "count_nothing",
    "tell_tails": "count_tails",
    "tell_kept": "count_listed",
    "clear_tally_kernel": "clear_stats_kernel",
    "add_to_tally": "add_to_stats",
    "told_of_kept": "stats_of_kept",
    "told_of_dropped": "stats_of_dropped",
    "tell_kernel": "stats_kernel",
    "launch_tell": "launch_stats",
    "segment_word": "packed_result",
    "sort_key": "radix_key",
    "order_of": "radix_key",
    "check_numbers": "check_launch_config",
    "numbers_": "config_",
    "speaks_": "simd_level_",
    "carry_kernel": "permute_kernel",
    "carry_lanes": "permute_lanes",
    "carry_lane": "permute_lane",
    "launch_carry": "launch_permute",
    "for_each_carry": "for_each_permute",
    "attention_room": "attention_storage",
    "residual_room": "residual_storage",
    "select_room": "select_storage",
    "sums_room": "sums_storage",
    "counting_room": "counting_storage",
    "slot_rooms": "slot_storage",
    "unit_rooms": "unit_storage",
    "check_room": "check_capacity",
    "check_gate_room": "check_gate_scratch",
    "check_carry": "check_bind",
    "entering_": "new_tokens_",
    "who_": "lanes_",
    "Told": "Source",
    "room_": "storage_",
    "rooms": "storage",
    "lowest_room": "lowest_storage",
    "told_tokens": "few_host_tokens",
}

# Parameters and locals, by the type that stands in front of them (--variables). "": where no rule of the list fits.
VARIABLES = {
    "who": [({"lanes"}, "batch"), ({"lane"}, "this_lane")],
    "held": [({"state", "State", "dual_state"}, "state"), ({"held_columns"}, "recorded")],
    "told": [({"tally", "step_tally", "promotion_tally"}, "stats"), ({"segment_word"}, "result"),
             ({"bag_type", "Told"}, "all_signals"), ({"int"}, "known_pages")],
    "fresh": [({"appended", "span<appended", "a_few"}, "new_tokens"),
              ({"entry_numbers"}, "new_numbers"), ({"cache", "lanes"}, "chunk"), ({"int"}, "num_new_tokens")],
    "entering": [({"int", "int*"}, "new_tokens")],
    "held_": [({"State", "state"}, "state_")],
    "told_": [({"int"}, "known_pages_"), ({"int*"}, "num_listed_")],
    "room": [({"int", "size_t", "int64_t", "ptrdiff_t"}, "capacity"), ({"*"}, "temp_storage")],
    "supply": [({"page_supply"}, "free_list")],
    "speaks": [({"isa"}, "simd_level")],
}

# Texts in string literals (--strings): the calls and the arguments that errors name.
STRINGS = [
    (r"\bfresh\.who\b", "chunk.lanes"),
    (r"\bfresh\.shape\b", "chunk.shape"),
    (r"(?<=\.)who\b(?=$| =|\.| \()", "lanes"),
    (r"\bwho(?=\.(?:sequences|layers|layer_begin|layer_end|heads|bound|count|position|in_flight)\b)", "lanes"),
    (r"\bglobal\.held\b", "global.num_pages"),
    (r"^make_room(?=$|:)", "promote"),
    (r"^take_in(?=$|:)", "ingest"),
    (r"^carry(?=$|:)", "bind"),
    (r"\bset_numbers\b", "set_launch_config"),
    (r"\bremember_rows\b", "update_query_memory"),
    (r"\bcarry_numbers\b", "append_column"),
    (r"\bcarry_entries\b", "permute_columns"),
]

# Words that in comments and prose are names where they stand between backticks (--comments).
QUOTED = {
    "who": "lanes", "told": "stats", "tell": "count_kept", "tally": "apply_stats", "fresh": "new_tokens",
    "held": "state", "appended": "append_request", "carry": "bind", "room": "temp_storage",
    "accumulate": "record_attention_mass", "remember": "record_query_memory",
}  # fmt: skip


# How its names are told from other words ---------------------------------------------------------------------------------


class Renamer(renamer.Renamer):
    HEADERS, IDENTIFIERS, QUALIFIED, MEMBERS = HEADERS, IDENTIFIERS, QUALIFIED, MEMBERS
    OBJECTS, STRINGS, QUOTED = OBJECTS, STRINGS, QUOTED

    def word(self, source, i, own, qualify):
        words, code = source.words, source.code
        name = words[i]
        before = words[i - 1] if i else ""
        after = words[i + 1] if i + 1 < len(words) else ""
        if before == "::" and i > 1 and words[i - 2] == "std":
            return None
        if name in BLOCK and (
            (before in (".", "->") and words[i - 2] in ("block", "block_"))
            or (after == "(" and before == "T" and source.declarations(name) and self.in_block(source, i))
        ):
            return BLOCK[name]
        if name in MEMBERS:
            new = self.member(source, i, qualify)
            if new is not None:
                return new
        if name in VARIABLES and self.variables:
            new = self.variable(source, i, qualify)
            if new is not None:
                return new
        if name in IDENTIFIERS:
            return IDENTIFIERS[name]
        if self.variables and name in INTERNAL:
            return INTERNAL[name]
        return self.qualified(source, i, own)

    @staticmethod
    def in_block(source, i):
        return any(
            kind == "class" and at < i < source.close[at] and "block" in " ".join(source.words[max(0, at - 6) : at])
            for at, kind in source.kinds.items()
        )

    def qualified(self, source, i, own):
        words, code = source.words, source.code
        name = words[i]
        rules = [(space, new) for (space, old), new in QUALIFIED.items() if old == name]
        if not rules:
            return None
        before, after = words[i - 1] if i else "", words[i + 1] if i + 1 < len(words) else ""
        for space, new in rules:
            if before == "::":
                qualifier = words[i - 2]
                if (space == "" and qualifier in ALIASES) or (space != "" and qualifier == space):
                    return new
                continue
            if not own or before in (".", "->"):
                continue
            if name in CALLED:
                kind = source.type_before(i) if code[i - 1].kind == "word" or before in (">", "&", "*") else None
                inner = source.enclosing(i)
                declared = after in ("(", "{") and kind is not None and (
                    inner < 0 or source.kinds.get(inner) == "namespace")
                called = after == "(" and (before in (";", "{", "}", "=", "return", ")", "(", ",", "<")) and (
                    name in ("identity", "select") and not self.local(source, name, i))
                if space == "ops":
                    declared = declared and kind == "tell_t"
                    called = False
                if declared or called:
                    return new
                continue
            if before in ("struct", "class") and after in ("{", ":", ";"):
                return new
            if source.lookup(name, i) is not None and after != "::":
                decl = source.lookup(name, i)
                if decl[4] != i or True:
                    continue
            if source.kinds.get(source.enclosing(i)) == "enum":
                continue
            if self.is_type(words, code, i) or (before in ("&", "(", ",", "<") and after == "::"):
                return new
        return None

    def member(self, source, i, qualify):
        words = source.words
        name = words[i]
        rules = MEMBERS[name]
        before, after = words[i - 1], words[i + 1] if i + 1 < len(words) else ""
        if name == "room" and self.variables and after == "(" and "KVPOLICY_NAMESPACE" in words:
            if before == "row_block" or (before == "." and words[i - 2] in ("logits", "logits_", "]")):
                return "block_storage"
            decl = source.lookup(name, i)
            if before == "::" or (decl is not None and decl[3] and source.plain(decl[2]) in ("int", "int64_t", "size_t")):
                return "scratch_floats"
        elif name == "room" and self.variables and after == "(":
            if before == "::" and words[i - 2] not in ALIASES:
                return "scratch_floats"
            if before == "." and words[i - 2] == "logits":
                return "block_storage"
        if name == "room" and after != "(":  # memory of a kernel: none of a user's
            decl = source.lookup(name, i)
            member = before in (".", "->") or (decl is not None and decl[3] and words[decl[4] + 1] != "(")
            return "temp_storage" if self.variables and member else None
        if name in ("offset", "ordinal") and after == "(":
            return None
        if name == "numbers" and after == "(" and before not in (".", "->") and "cuda_executor" in words[:i]:
            return "config" if words[i + 2] == ")" and source.code[i - 1].kind != "word" else None
        if before in (".", "->"):
            designated = before == "." and words[i - 2] in ("{", ",", "(") and after in ("=", "{")
            if designated:
                opening = source.enclosing(i)
                owner = words[opening - 1] if opening > 0 and source.code[opening - 1].kind == "word" else None
                if owner == "return" or owner is None:
                    owner = None
                elif source.lookup(owner, opening - 1):
                    owner = source.plain(source.lookup(owner, opening - 1)[2])
                obj = None
            else:
                obj, owner = source.object_type(i - 1)
                if obj == "this":
                    opening = [at for at, k in source.kinds.items() if k == "class" and at < i < source.close[at]]
                    owner = self.class_name(source, max(opening)) if opening else None
            if owner is not None and re.fullmatch(r"[A-Z]\w*", owner) and owner != "Executor":
                owner = None  # a template's parameter: its name tells
            if name == "who":
                return self.who(source, i, obj, owner, designated)
            for types, new in rules:
                if types == "*" or owner in types:
                    return new
                if designated and name in ("offset", "ordinal") and owner is None and self.in_keep_set(source, i):
                    return new
                if designated and name in ("held",) and owner is None and self.beside(source, i, {"table", "entries"}):
                    return new
                known = [t for t in types if t not in PRIVATE_OBJECTS or "KVPOLICY_NAMESPACE" in words]
                if owner is None and not designated and any(obj in OBJECTS.get(t, ()) for t in known):
                    return new
                if name == "ordinal" and owner not in ("entry", "auto", "verdict") and obj in OBJECTS["keep_set"]:
                    return new
                if owner in ("auto",) and any(obj in OBJECTS.get(t, ()) for t in types):
                    return new
            return None
        # declared by a class, or used inside of one
        decl = source.lookup(name, i)
        if decl is None or not decl[3]:
            return None
        kind = source.plain(decl[2])
        if name == "who":
            new = {"lanes": "lanes", "lane": "lane"}.get(kind)
            if new is not None and self.taken(source, new, decl):
                return None
            if new is not None and decl[4] == i:
                qualify.append((decl[0], decl[1], new, i))
            return new
        owner = self.owner_of(source, decl[4])
        for types, new in rules:
            if owner in types:
                return new
        if name == "numbers" and owner is not None and kind in ("launch_numbers",) and words[decl[4] + 1] == "(":
            return "config"
        return None

    def in_keep_set(self, source, i):
        return self.beside(source, i, {"seen", "lists", "capacity", "decides"}) and not self.beside(source, i, {"count"})

    def who(self, source, i, obj, owner, designated):
        words = source.words
        one, many = MEMBERS["who"][0][0], "lanes"
        if owner in one or (owner is None and obj in OBJECTS["entry"]):
            return "lane"
        if owner is not None and owner not in ("auto", "Entry"):
            # a class of this file says what its own is
            for begin, end, kind, member, at in source.declarations("who"):
                if member and self.owner_of(source, at) == owner:
                    new = {"lane": "lane", "lanes": "lanes"}.get(source.plain(kind), many)
                    if self.taken(source, new, (begin, end, kind, member, at)):
                        return None
                    return {"lane": "lane", "lanes": "lanes"}.get(source.plain(kind), many)
        if designated:
            j = i + 2
            value = words[j] if j < len(words) else ""
            decl = source.lookup(value, j) if source.code[j].kind == "word" else None
            if decl and source.plain(decl[2]) == "lane" and words[j + 1] in (",", "}"):
                return "lane"
            if self.beside(source, i, {"ordinal"}) and not self.beside(source, i, {"seen", "capacity", "offset"}):
                return "lane"
            return many
        if words[i + 1 : i + 2] and words[i + 1] in (".", "->") and words[i + 2] in OF_A_LANE:
            following = words[i + 3] if i + 3 < len(words) else ""
            if following != "(":
                return "lane"
        return many

    def variable(self, source, i, qualify):
        words = source.words
        name = words[i]
        before = words[i - 1] if i else ""
        if before in (".", "->", "::"):
            return None
        decl = source.lookup(name, i)
        if decl is None or (decl[3] and "KVPOLICY_NAMESPACE" not in words) or (decl[3] and (name in ("who", "held") or words[decl[4] + 1] == "(")):
            return None
        kind = self.deduce(source, decl) if source.plain(decl[2]) == "auto" else decl[2]
        for types, new in VARIABLES[name]:
            if "*" in source.words[max(0, decl[4] - 3) : decl[4]] and source.plain(kind) in ("int", "int64_t"):
                kind = kind + "*"
            if "*" in types or source.plain(kind) in types or any("<" in t and kind.replace("const", "").startswith(t) for t in types):
                if self.used(source, new, decl):
                    return None
                if new in ("state",) and decl[4] == i:
                    qualify.append((decl[0] + 1, decl[1], new, i))
                return new
        return None

    @staticmethod
    def used(source, new, decl):
        """The new name means something else where the variable is known: it keeps the old one."""
        words = source.words
        if new == "state" and any(words[j - 1 : j + 1] == ["using", "state"] for j in range(1, len(words))):
            return True
        return any(
            words[j] == new and words[j - 1] not in (".", "->", "::") and not (new == "state" and words[j + 1] == "<")
            for j in range(decl[4], min(decl[1], len(words) - 1))
        )

    @staticmethod
    def deduce(source, decl):
        """What an `auto` is, by what follows."""
        at, end = decl[4], decl[1]
        name = source.words[at]
        for j in range(at + 1, min(end, len(source.words) - 2)):
            if source.words[j] == name and source.words[j + 1] == ".":
                if source.words[j + 2] in OF_A_LANE and source.words[j + 3] != "(":
                    return "lane"
                if source.words[j + 2] in OF_LANES:
                    return "lanes"
        text = " ".join(source.words[at : at + 12])
        cast = re.match(r"\w+ = static_cast < (?:std :: )?(\w+) >", text)
        if cast:
            return cast.group(1)
        return "lane" if re.search(r"\. (at|lane_at|lane_of) \(", text) else "auto"

    def prose(self, text):
        """Names in a comment or a paragraph: whole names that are nothing else, and words between backticks."""
        names = {**IDENTIFIERS, **{k: v for k, v in INTERNAL.items() if self.variables}}
        names = {k: v for k, v in names.items() if "_" in k.strip("_")}

        def code(match):
            inner = match.group(1)
            inner = re.sub(r"(?<=[\w)]\.)who\b", "lanes", inner)
            inner = re.sub(r"\b[A-Za-z_]\w*\b", lambda m: names.get(m.group(), QUOTED.get(m.group(), m.group())), inner)
            return "`" + inner + "`"

        for (space, old), new in QUALIFIED.items():
            text = re.sub(rf"\b((?:kv|kvpolicy)::(?:v0::)?{space + '::' if space else ''}){old}\b", rf"\g<1>{new}", text)
        if text.startswith("// expect:"):  # what a compiler says of a test that must not compile
            text = re.sub(r"\baccumulate\b", "record_attention_mass", text)
        text = re.sub(r"`select`(?= (?:with|of a selection|writes|comes|fills)|, which)", "`select_pages`", text)
        text = re.sub(r"\b(exec|executor)\.numbers\(\)", r"\1.config()", text)
        text = re.sub(r"(?<=[\w)]\.)who\b", "lanes", text)
        text = re.sub(r"\b[A-Za-z]\w*_\w+\b", lambda m: names.get(m.group(), m.group()), text)
        text = re.sub(r"`([^`\n]+)`", code, text)
        for old, new in HEADERS.items():
            text = re.sub(rf"(?<![\w/]){re.escape(old)}(?!\w)|(?<=kvpolicy/){re.escape(old)}(?!\w)", new, text)
        return text


def table():
    private = PRIVATE_OBJECTS | {"count_released_kernel", "write_released_kernel", "all_takes", "emulated_device", "Executor"}
    every = ("cache", "signals", "plan", "state", "score_view", "keep_set")
    members = []
    for old, rules in MEMBERS.items():
        for types, new in rules:
            public = [each for each in (every if types == "*" else types) if each not in private]
            if public:
                members.append((f"`{old}` of `" + "`, `".join(public) + "`", f"`{new}`"))
    members += [(f"`{old}` of a block of threads", f"`{new}`") for old, new in BLOCK.items()]
    return renamer.table(Renamer, ("0.1", "0.2"), members)


SELF_TEST = [
    # (options, before, after)
    ({}, "#include <kvpolicy/eviction/decide.hpp>\n", "#include <kvpolicy/decision/decide.hpp>\n"),
    ({}, "int n = cache.who.size(); // who\n", "int n = cache.lanes.size(); // who\n"),
    ({}, "bool f(kv::entry at) { return at.who.head == 0; }\n", "bool f(kv::entry at) { return at.lane.head == 0; }\n"),
    ({}, "bool f(kv::entry const& at) { g(at.who); }\n", "bool f(kv::entry const& at) { g(at.lane); }\n"),
    ({}, 'auto s = "cache.who"; f(plan.who());\n', 'auto s = "cache.who"; f(plan.lanes());\n'),
    ({}, "struct mine { kv::lanes who{}; int n() const { return who.size(); } };\n",
     "struct mine { kv::lanes lanes{}; int n() const { return lanes.size(); } };\n"),
    ({}, "namespace kvpolicy { struct a { lanes who; void f(lanes const&); lane g(lane x); }; }\n",
     "namespace kvpolicy { struct a { kvpolicy::lanes lanes; void f(kvpolicy::lanes const&); lane g(lane x); }; }\n"),
    ({}, "int who = 3; f(who);\n", "int who = 3; f(who);\n"),
    ({}, "int f(kv::lane who) { return who.head; }\n", "int f(kv::lane who) { return who.head; }\n"),
    ({"variables": True}, "int f(kv::lane who) { return who.head; }\n", "int f(kv::lane this_lane) { return this_lane.head; }\n"),
    ({"variables": True}, "int f(lanes const& who) { return [&](lane who) { return row(who); }(who.at(0)); }\n",
     "int f(lanes const& batch) { return [&](lane this_lane) { return row(this_lane); }(batch.at(0)); }\n"),
    ({"variables": True}, "using namespace kvpolicy; template <class E> void f(state<E>& held, state<E> const& other) { g(held); }\n",
     "using namespace kvpolicy; template <class E> void f(state<E>& state, kvpolicy::state<E> const& other) { g(state); }\n"),
    ({}, "kv::keep_set keep; int a = keep.offset[0] + *keep.ordinal; e.ordinal = 1;\n",
     "kv::keep_set keep; int a = keep.indptr[0] + *keep.indices; e.ordinal = 1;\n"),
    ({}, "bool f(kv::entry at) { return at.ordinal > 2; }\n", "bool f(kv::entry at) { return at.ordinal > 2; }\n"),
    ({}, "kv::tally t; kv::ops::tell(exec, keep, all, false, &t);\n", "kv::apply_stats t; kv::ops::count_kept(exec, keep, all, false, &t);\n"),
    ({}, "std::span<int> a; kv::span b{0, 4}; turn.span(at, 3);\n", "std::span<int> a; kv::position_span b{0, 4}; turn.span(at, 3);\n"),
    ({}, "std::accumulate(a, b, 0); kv::accumulate{}; how.accumulate = true;\n",
     "std::accumulate(a, b, 0); kv::record_attention_mass{}; how.accumulate = true;\n"),
    ({}, "kv::budget_scope::global; both.global.entries; kv::global g{3};\n",
     "kv::budget_scope::global; both.global.entries; kv::per_sequence g{3};\n"),
    ({}, "template <class B> void f(B& block) { block.add(p, 1); list.add(1); }\n",
     "template <class B> void f(B& block) { block.atomic_add(p, 1); list.add(1); }\n"),
    ({}, "kv::make_room(exec, policy); // make_room\n", "kv::promote(exec, policy); // make_room\n"),
    ({}, "namespace kvpolicy { void select(int); void f(int a) { select(a); } }\n",
     "namespace kvpolicy { void select_pages(int); void f(int a) { select_pages(a); } }\n"),
    ({"variables": True}, "void f(kv::lanes const& who = batch) { g(who); }\n", "void f(kv::lanes const& who = batch) { g(who); }\n"),
    ({"comments": True}, "// make_room, then `told`; the room\n", "// promote, then `stats`; the room\n"),
    ({"strings": True}, 'expect("make_room: fresh.who.count"); f("knorm | span(0, 3)");\n',
     'expect("promote: chunk.lanes.count"); f("knorm | span(0, 3)");\n'),
    ({}, 'auto const text = R"(cache.who // "make_room)"; make_room(x);\n', 'auto const text = R"(cache.who // "make_room)"; promote(x);\n'),
]  # fmt: skip

PAGE = "Say `cache.who`.\n\n```cpp\nf(cache.who);\n```\n\n```sh\nmake_room\n```\n"

if __name__ == "__main__":
    renamer.main(Renamer, __doc__, table, SELF_TEST, (PAGE, PAGE.replace("f(cache.who)", "f(cache.lanes)")))
