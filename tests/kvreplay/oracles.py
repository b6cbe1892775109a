# SPDX-License-Identifier: Apache-2.0
"""Eviction methods written out in numpy, in double precision: what each scores, forces and may keep.

A trace is reference_test.Trace or anything with its members. Nothing here runs kvreplay; oracles_test.py checks it against numbers
worked by hand, and systems_test.py compares kvreplay with it.
"""

import math

from reference_test import REDUCE, np

NEAR = 2e-5  # float32 sums of a few hundred rows, against double


# Shared definitions ---------------------------------------------------------------------------------------------------------
def budget_of(entries, budget=None, ratio=None):
    return budget if ratio is None else math.floor(entries * (1 - ratio) + 1e-9)


def pooled(values, pool):
    """Over neighbours in the list: an average of zeros and a maximum of nothing beyond its ends."""
    if pool == "none" or not len(values):
        return values
    kind, _, width = pool.partition(":")
    half = int(width) // 2
    padded = np.pad(values, half, constant_values=-np.inf if kind == "max" else 0.0)
    windows = np.lib.stride_tricks.sliding_window_view(padded, int(width))
    return windows.max(axis=1) if kind == "max" else windows.sum(axis=1) / int(width)


def ranking(scores, candidates):
    """The candidates, best first: NaN last, ties to the lower one."""
    return sorted(candidates, key=lambda j: (bool(np.isnan(scores[j])), 0.0 if np.isnan(scores[j]) else -scores[j], j))


def last_ones(entries, count):
    made = np.zeros(entries, bool)
    made[entries - min(count, entries):] = True
    return made


def first_ones(trace, count):
    return trace.positions < count


def put_first(by, forced, count, others, live=None):
    """`others`, with +inf for the `count` best by `by` of who is not forced; and how far apart the two at the cut are, relatively."""
    candidates = [j for j in range(len(by)) if not forced[j] and (live is None or live[j])]
    order = ranking(by, candidates)
    made = np.array(others, float)
    made[order[:count]] = np.inf
    if not 0 < count < len(order):
        return made, np.inf
    inside, outside = by[order[count - 1]], by[order[count]]
    return made, np.inf if np.isnan(outside) or np.isinf(outside) else (inside - outside) / max(abs(inside), 1e-30)


def round_shares(shares, total):
    """Each its floor; what is left of the total one each to the largest fractional parts."""
    whole = [math.floor(x + 1e-9) for x in shares]
    part = [math.floor(1e9 * (x - n) + 0.5) for x, n in zip(shares, whole)]
    for s in sorted(range(len(shares)), key=lambda s: (-part[s], s))[: max(0, total - sum(whole))]:
        whole[s] += 1
    return whole


MASK = (1 << 64) - 1


def mix(x):
    """SplitMix64's next number of the state x."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def uniform(seed, sequence, layer, head, position):
    x = mix(seed & MASK)
    for value in (sequence, layer, head, position):
        x = mix(x ^ value)
    return (x >> 40) * 2.0**-24


def window_attention(trace, layer, head, window):
    """[G,w,N]: what the last w rows see, each of the entries up to its own."""
    live = np.arange(trace.n)
    rows = live[trace.n - min(window, trace.n):]
    return np.array([trace.softmax(layer, h, rows, live) for h in trace.heads_of(head)])


def behind_forced(prefix, entries):
    """Scores of a prefix, and zeros for the forced entries after it."""
    return np.concatenate([prefix, np.zeros(entries - len(prefix))])


def window_scores(trace, layer, head, window, pool, rows, group):
    mass = window_attention(trace, layer, head, window)
    prefix = REDUCE[group](np.array([REDUCE[rows](one) for one in mass]))[: max(0, trace.n - window)]
    return behind_forced(pooled(prefix, pool), trace.n)


# Shares of layers and lanes ---------------------------------------------------------------------------------------------------
def pyramid_shares(layers, entries, budget, window, beta, rule):
    """What each layer may keep, its window included."""
    steps = layers - 1
    if rule == "factory":
        room = max(0, budget - window)
        low = room // beta
        high = 2 * room - low
        if high > entries - window:
            high = entries - window
            low = 2 * room - high
        return [window + (high - layer * ((high - low) // steps) if steps else room) for layer in range(layers)]
    room = max(0, budget - window) if rule == "exact" else budget
    low = room / beta
    high = 2 * room - low
    if high > entries - window:
        high = entries - window
        low = 2 * room - high
    if rule == "exact":
        if budget < window:
            return [window] * layers
        line = [window + high - layer * (high - low) / steps if steps else budget for layer in range(layers)]
        return round_shares(line, layers * budget)
    if not entries >= high >= low >= window:
        return [max(1, round(budget))] * layers
    return [round(high - layer * (high - low) / steps if steps else high) for layer in range(layers)]


# Scores of a lane -------------------------------------------------------------------------------------------------------------
def observed_attention(trace, layer, head, group, mass=None):
    """The mean of what a key gets of the rows that see it; mass: [L,Hq,N], or [L,Hkv,N] without a group."""
    live = np.arange(trace.n)
    if mass is not None and mass.shape[1] == trace.kv_heads != trace.query_heads:
        return mass[layer, head] / (trace.n - live)
    each = [trace.softmax(layer, h, live, live).sum(axis=0) if mass is None else mass[layer, h] for h in trace.heads_of(head)]
    return REDUCE[group](np.array([one / (trace.n - live) for one in each]))


def keydiff(keys):
    """The less a key points where keys point on average, the better; a key without a direction has the cosine 0."""
    with np.errstate(invalid="ignore"):
        unit = np.nan_to_num(keys / np.linalg.norm(keys, axis=1, keepdims=True))
        anchor = unit.mean(axis=0)
        return -np.nan_to_num(unit @ anchor / np.linalg.norm(anchor))


def in_parts(score, ends, budget):
    """Of a lane that grows to each of `ends` and is cut there by score(live): ordinals kept, (step, ordinal) of who went, who was
    there and what they scored at the last decision, and how far apart the two at the closest cut are."""
    live, events, gap, begin = [], [], np.inf, 0
    for end in ends:
        live, begin = live + list(range(begin, end)), end
        there, scores = live, score(np.array(live))
        if len(live) <= budget:
            continue
        order = ranking(dict(zip(live, scores)), live)
        if budget:
            inside, outside = (dict(zip(live, scores))[j] for j in (order[budget - 1], order[budget]))
            gap = min(gap, inside - outside)
        live = sorted(order[:budget])
        events += [(end - 1, j) for j in sorted(set(there) - set(live))]
    return live, events, there, scores, gap


def external_rows(trace, layer, query_head, lse=None):
    """[R,N]: every row sees all entries, whatever its position."""
    logits = trace.logits_of(trace.query_rows[layer, query_head] @ trace.keys[layer, query_head // trace.group].T)
    return trace.weights(layer, query_head, logits) if lse is None else np.exp(logits - lse[layer, query_head][:, None])


def external_row_scores(trace, layer, head, recent, pool, rows, group, lse=None):
    """lookahead_kv and dapq."""
    each = np.array([REDUCE[rows](external_rows(trace, layer, h, lse)) for h in trace.heads_of(head)])
    return behind_forced(pooled(REDUCE[group](each)[: max(0, trace.n - recent)], pool), trace.n)


def fast_kvzip_window(entries, window=-1):
    if window >= 0:
        return window
    return 4096 if entries >= 32000 else int(0.02 * entries)


def nacl(trace, layer, head, budget, window, share, group, seed, forced):
    """The best by the window's attention first, then numbers drawn; and the gap at the cut of the first."""
    mass = REDUCE[group](window_attention(trace, layer, head, window).sum(axis=1))
    free = max(0, budget - int(forced.sum()))
    drawn = [uniform(seed, 0, layer, head, int(position)) for position in trace.positions]
    return put_first(mass, forced, free - math.floor(share * free + 1e-9), drawn)


def sir_llm(numbers, ends, budget, sinks, entropy, decay, positions):
    """After each turn: (who was there, who is forced, scores, ordinals kept, gap at the cut of the first)."""
    numbers, held, begin, made = np.array(numbers, float), np.zeros(len(numbers), bool), 0, []
    for end in ends:
        numbers[:begin] *= decay  # a turn arrives
        held = held.copy()
        held[begin:end] = True
        forced = held & (positions < sinks)
        scores, gap = np.arange(len(numbers), dtype=float), np.inf
        kept = np.flatnonzero(held).tolist()
        if len(kept) > budget:
            free = max(0, budget - int(forced.sum()))
            scores, gap = put_first(numbers, forced, min(entropy, free), scores, held)
            order = ranking(scores, np.flatnonzero(held & ~forced).tolist())
            kept = sorted(order[:free] + np.flatnonzero(forced).tolist())
        made.append((held, forced, scores, kept, gap))
        held = np.isin(np.arange(len(numbers)), kept)
        begin = end
    return made


def lu_kv_shares(prunes, entries):
    """[L,Hkv] of prune ratios: what each lane may keep, layer by layer."""
    made = []
    for layer in prunes:
        wanted = [min(1.0, max(0.0, 1 - float(ratio))) * entries for ratio in layer]
        total = min(max(round(sum(wanted)), len(wanted)), len(wanted) * entries)
        made += [min(max(share, 1), entries) for share in round_shares(wanted, total)]
    return made


def lu_kv_row(ratio):
    return min(max(round(100 * ratio) - 1, 0), 98)


def locret(numbers, budget, stabilizers, local, chunk=None):
    """Of a lane: ordinals kept, (step, ordinal) of who went, and who was ranked at the last decision (None if it dropped nobody)."""
    entries = len(numbers)
    context = max(0, entries - local)
    live, events, ranked = [], [], None
    for begin in range(0, context, chunk or max(1, context)):
        end = min(begin + (chunk or context), context)
        live += range(begin, end)
        if len(live) <= budget:
            ranked = None
            continue
        forced = [j for j in live if j >= end - stabilizers] if end < context else []
        ranked = [j for j in live if j not in set(forced)]
        kept = sorted(ranking(numbers, ranked)[: max(0, budget - len(forced))] + forced)
        events += [(end - 1, j) for j in sorted(set(live) - set(kept))]
        live = kept
    return live + list(range(context, entries)), events, ranked
