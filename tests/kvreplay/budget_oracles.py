# SPDX-License-Identifier: Apache-2.0
"""Which part of a whole budget each layer or lane may keep, and methods that say themselves how much stays, written out in numpy.

A margin says how far the closest other answer is: relatively, or of numbers that are near 1.
"""

import math

from oracles import gap_at, ranking, round_shares
from prompt_oracles import epi_cache, quotient
from reference_test import np


# A total that is fitted to weights --------------------------------------------------------------------------------------------
def listed_bounds(bounds, count):
    return list(bounds) if np.ndim(bounds) else [bounds] * count


def fitted(weights, total, low, high):
    """Real shares between bounds, of which each beyond its lower one is in proportion to its weight, until it is full."""
    weights, low, high = np.asarray(weights, float), np.array(low, float), np.array(high, float)
    parts = weights / weights.sum() if weights.sum() else np.full(len(weights), 1 / len(weights))
    x, full = low + (total - low.sum()) * parts, np.zeros(len(weights), bool)
    while (x > high).any():
        over = x > high
        excess, full = (x - high)[over].sum(), full | over
        x = np.where(over, high, x)
        if full.all():
            break
        others = np.where(full, 0.0, weights)
        x += excess * (others / others.sum() if others.sum() else ~full / (~full).sum())
    return x


def fit(weights, total, low, high):
    """Whole shares of that total, as far as the bounds let it be; and how far apart the two fractions at the cut of the rounding are."""
    count = len(weights)
    low, high = listed_bounds(low, count), listed_bounds(high, count)
    if sum(high) <= total:
        return [int(one) for one in high], math.inf
    if sum(low) >= total:
        return [math.floor(one + 1e-9) for one in low], math.inf
    x = fitted(weights, total, low, high)
    return round_shares(x, total), rounding_margin(x, total)


def rounding_margin(x, total):
    fractions = sorted((one - math.floor(one + 1e-9) for one in x), reverse=True)
    rest = total - sum(math.floor(one + 1e-9) for one in x)
    if not 0 < rest < len(x) or round(1e9 * fractions[rest - 1]) == round(1e9 * fractions[rest]):
        return math.inf
    return fractions[rest - 1] - fractions[rest]


# Layers -----------------------------------------------------------------------------------------------------------------------
def cake_statistics(masses, tau1, tau2):
    """[L,3] of each layer's [Hq,w,prefix]: entropy, variance over rows, and what it prefers."""
    made = []
    for mass in masses:
        entropy, variance = -(mass * np.log(mass + 1e-10)).sum(), mass.var(axis=1, ddof=1).sum()
        made.append((entropy, variance, entropy ** (1 / tau1) * variance ** (1 / tau2)))
    return np.array(made)


def dealt(whole, count, to, sign=1):
    """A count shared out evenly, of which the first get what is left over."""
    each, more = divmod(count, len(to)) if to else (0, 0)
    for place, s in enumerate(to):
        whole[s] += sign * (each + (place < more))


def released_shares(preferences, total, most):
    """As the release rounds them: cut, filled up to what each may have, and what is missing or too much dealt."""
    parts = quotient(preferences, np.sum(preferences))
    wanted = [int(total * part) for part in parts]
    whole = [min(one, most) for one in wanted]
    dealt(whole, sum(wanted) - sum(whole), [s for s, one in enumerate(whole) if one < most])
    missing = total - sum(whole)
    if missing > 0:
        dealt(whole, missing, [s for s, one in enumerate(whole) if one < most])
    elif missing < 0:
        dealt(whole, -missing, [s for s, one in enumerate(whole) if one > 1], -1)
    return whole, min([abs(total * part - round(total * part)) for part in parts if 0 < part < 1], default=math.inf)


def cake_shares(preferences, entries, budget, window, rounding="largest", layered=False):
    """What each layer's lanes may keep, the window included. Layers that come one by one end with the same, but as the release rounds."""
    w = min(window, entries)
    total, most = len(preferences) * max(0, budget - w), entries - w
    if rounding == "largest":
        shares, margin = fit(preferences, total, 0, most)
        return [w + one for one in shares], margin
    shares, margin = [], math.inf
    for count in range(1, len(preferences) + 1) if layered else [len(preferences)]:
        made, near = released_shares(preferences[:count], total, most)
        shares, margin = [min(old, new) for old, new in zip(shares, made)] + made[len(shares):], min(margin, near)
    return [w + one for one in shares], margin


def cake_cascade(preferences, entries, budget, window, rounding="largest"):
    """How many of a layer are left after each layer that came, and at the end; and how far the closest other answer is."""
    w, made, margin = min(window, entries), [], math.inf
    total, most = len(preferences) * max(0, budget - w), entries - w
    if rounding == "release":
        for count in range(1, len(preferences) + 1):
            shares, near = released_shares(preferences[:count], total, most)
            margin = min(margin, near)
            made.append([w + min([one, *(before[l] - w for before in made if l < len(before))]) for l, one in enumerate(shares)])
        return made, margin
    for count in range(1, len(preferences)):
        x = [float(most)] * count if count * most <= total else fitted(preferences[:count], total, [0] * count, [most] * count)
        made.append([w + math.ceil(one - 1e-9) for one in x])
        margin = min([margin, *(abs(one - round(one)) for one in x if count > 1 and 0 < one < most)])
    shares, near = cake_shares(preferences, entries, budget, window)
    return made + [shares], min(margin, near)


def cut_again(scores, forced, steps):
    """Of a lane that is cut to each of these numbers in turn, by scores that stay: who is left."""
    live = list(range(len(scores)))
    for count in steps:
        order = ranking(scores, [j for j in live if not forced[j]])
        live = sorted([j for j in live if forced[j]] + order[: max(0, count - int(forced.sum()))])
    return live


def dynamic_shares(scores, entries, budget, window):
    """scores: [L,Hkv,prefix]. By how many of the best of all lanes are in a layer."""
    w = min(window, entries)
    layers, heads = len(scores), len(scores[0])
    each = max(0, budget - w)
    every = np.array(scores).ravel()
    order = ranking(every, range(len(every)))
    hits = np.bincount(np.array(order[: heads * layers * each], int) // max(1, len(every) // layers), minlength=layers)
    shares, margin = fit(hits, layers * each, 0, entries - w)
    return [w + one for one in shares], min(margin, gap_at(every, order, heads * layers * each))


def importance_shares(importance, entries, budget, floor, cap):
    return fit(importance, len(importance) * budget, min(floor, budget), min(entries, int(cap * budget)))


def variance_shares(masses, entries, budget):
    """masses: [L,N]. The more a layer's attention varies from entry to entry, the less it may keep."""
    variances = np.array([mass.var() for mass in masses])
    weights = np.exp(-quotient(variances, variances.sum()))
    return fit(weights / weights.sum(), len(masses) * budget, 0.01 * entries, entries)


def drift_shares(table, power, floor, entries, heads, budget):
    """Of layers, all of whose lanes are one pool."""
    return fit(np.asarray(table) ** power, len(table) * heads * budget, floor * heads * budget, heads * entries)


def epi_cache_in_chunks(trace, budget, ends, power, floor):
    """Of lanes that grow to each of `ends`: ordinals kept, (step, segment, ordinal) of who went, who was there and what it scored at the last
    decision, and how near another answer was."""
    lanes, heads, begin, events, gap = trace.lanes(), trace.kv_heads, 0, [], math.inf
    live, there, scores = [np.arange(0)] * len(lanes), np.zeros((len(lanes), trace.n), bool), np.zeros((len(lanes), trace.n))
    for end in ends:
        live, begin = [np.concatenate([one, np.arange(begin, end)]) for one in live], end
        held = [sum(len(one) for one in live[layer * heads : (layer + 1) * heads]) for layer in range(trace.layers)]
        if sum(held) <= budget * len(lanes):
            continue
        shares, margin = fit(trace.drift**power, budget * len(lanes), floor * heads * budget, held)
        for s, lane in enumerate(lanes):
            there[s], scores[s, live[s]] = np.isin(np.arange(trace.n), live[s]), epi_cache(trace, *lane, live[s])
        for layer, share in enumerate(shares):
            pool = {(s, j): scores[s, j] for s in range(layer * heads, (layer + 1) * heads) for j in live[s].tolist()}
            order = ranking(pool, sorted(pool))
            gap = min(gap, gap_at(pool, order, share), margin / 50)
            events += [(end - 1, s, j) for s, j in sorted(order[share:])]
            for s in range(layer * heads, (layer + 1) * heads):
                live[s] = np.array(sorted(j for of, j in order[:share] if of == s), int)
    return [one.tolist() for one in live], sorted(events), list(there), scores, gap


# Ranks, and lanes -------------------------------------------------------------------------------------------------------------
def composite_counts(scores, budget, first_layer):
    """scores: [L,Hkv,N]. How many places of a rank are among the best of all, of which a layer has at least one."""
    ranks = -np.sort(-np.array(scores), axis=2)
    composite = ranks.mean(axis=1)
    if first_layer:
        composite[0] = composite.max(axis=0)
    every, layers = composite.ravel(), len(composite)
    order = ranking(every, range(len(every)))
    counts = np.bincount(np.array(order[: layers * budget], int) // composite.shape[1], minlength=layers)
    return [max(1, int(one)) for one in counts], gap_at(every, order, layers * budget), composite


def sure_places(budget, floor):
    """The best that a lane keeps whatever others have."""
    return min(budget, max(1, int(floor * budget))) if floor else 0


def lane_budgets(scores, forced, budget, floor):
    """Of a layer's lanes that share what they may keep: each has a part for sure, and its forced entries are of it. And the gap at the cut."""
    count, orders = len(scores), [ranking(one, np.flatnonzero(~fixed).tolist()) for one, fixed in zip(scores, forced)]
    sure = sure_places(budget, floor)
    made = [int(fixed.sum()) for fixed in forced]
    room = [max(0, sure - one) for one in made]
    made = [min(len(fixed), one + more) for fixed, one, more in zip(forced, made, room)]
    rest = {(s, j): scores[s][j] for s in range(count) for j in orders[s][room[s]:]}
    order, left = ranking(rest, sorted(rest)), max(0, count * budget - sum(made))
    for s, _ in order[:left]:
        made[s] += 1
    return made, gap_at(rest, order, left)


# Methods that say themselves how much stays -----------------------------------------------------------------------------------
def ramp(rows, last):
    """Weights of rows, from 1 to the last one's."""
    return 1 + (last - 1) * np.arange(rows) / max(1, rows - 1)


def part_of(part, entries):
    return math.floor(part * entries + 1e-9)


def weighted_rows(masses, last):
    """masses: [Hq,R,N]. The mean over heads and rows, of which the later ones count more."""
    return (ramp(masses.shape[1], last)[:, None] * masses).mean(axis=(0, 1))


def pyramid_infer_shares(layers, entries, first, last, curve, least):
    made = []
    for layer in range(layers):
        far = layer / max(1, layers - 1)
        part = first + (last - first) * far if curve == "linear" else last + (first - last) * (1 + math.cos(math.pi * far)) / 2
        made.append(min(entries, max(least, part_of(part if layers > 1 else first, entries))))
    return made


def fastgen(mass, classes, recover, recent, frequent):
    """The cheapest recipe that keeps enough of a lane's mass: its number, who stays, and how near another answer is."""
    entries = len(mass)
    share = quotient(mass, mass.sum())
    order, best = ranking(share, range(entries)), part_of(frequent, entries)
    steps = [classes == 1, classes == 2, np.isin(np.arange(entries), order[:best]), np.arange(entries) >= entries - part_of(recent, entries)]
    stays, margin = np.zeros(entries, bool), math.inf
    for recipe, more in enumerate(steps):
        stays = stays | more
        margin = min(margin, abs(share[stays].sum() - recover), gap_at(share, order, best) if recipe == 2 else math.inf)
        if share[stays].sum() >= recover:
            return recipe, stays, margin
    return 4, np.ones(entries, bool), margin


def simlayer_kv(mass, entries, threshold, initial, recent, last):
    """mass: [Hq,w,N]. Whether a layer looks at its ends alone, who stays then, and how far its mass is from the threshold."""
    ends = mass.mean(axis=(0, 1))[: max(0, entries - last)]
    at = np.arange(entries)
    if threshold >= 1 or entries <= initial + recent + last:
        return False, np.ones(entries, bool), math.inf
    seen = ends[:initial].sum() + ends[len(ends) - recent:].sum()
    lazy = bool(seen > threshold)
    return lazy, (at < initial) | (at >= entries - max(0, recent - last)) | (not lazy), abs(seen - threshold)


def mp_cache_prompt(mass):
    """mass: [Hq,R,N]. The most that a row gives an entry on average over the heads."""
    return mass.mean(axis=0).max(axis=0)
