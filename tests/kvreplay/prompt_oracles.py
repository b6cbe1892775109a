# SPDX-License-Identifier: Apache-2.0
"""Scores of the eviction methods that decide once for a prompt, written out in numpy, in double precision.

What oracles.py says of traces holds here too. Attention is handed over as an array wherever a number worked by hand can be one.
Budgets that are allotted are in budget_oracles.py.
"""

import math

from oracles import behind_forced, external_rows, first_ones, gap_at, pairs_of, pooled, put_first, ranking, uniform, window_attention
from reference_test import REDUCE, np


# Shared definitions ---------------------------------------------------------------------------------------------------------
def quotient(over, under):
    """0/0 is 0, and NaN stays."""
    over, under = np.broadcast_arrays(np.asarray(over, float), np.asarray(under, float))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((over == 0) & (under == 0), 0.0, over / under)


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)


def head_norms(trace, layer, query_head, order):
    """How long each value is behind a query head's part of the output projection, or what the trace says of its lane."""
    if getattr(trace, "value_norms", None) is not None:
        return trace.value_norms[layer, query_head // trace.group]
    width = trace.values.shape[3]
    part = trace.output_projection[layer][:, query_head * width : (query_head + 1) * width]
    return np.linalg.norm(trace.values[layer, query_head // trace.group] @ part.T, ord=order, axis=1)


def projected_norms(trace, layer, head):
    return np.mean([head_norms(trace, layer, h, 1) for h in trace.heads_of(head)], axis=0)


def prefix_attention(trace, layer, head, window):
    """[G,w,N−w]: of the last w rows, without their own columns."""
    return window_attention(trace, layer, head, window)[:, :, : max(0, trace.n - window)]


def all_heads(trace, layer, rows):
    """[Hq,rows,N]: what the last rows see, each of the entries up to its own."""
    return np.concatenate([window_attention(trace, layer, head, rows) for head in range(trace.kv_heads)])


def in_a_softmax(trace, layer, query_head, logits):
    """Of logits that are scaled already; the model's cap and sink hold for them too."""
    return trace.weights(layer, query_head, trace.cap * np.tanh(logits / trace.cap) if trace.cap else logits)


def scale_of(trace):
    return 1 / np.sqrt(trace.d) if trace.scale is None else trace.scale


def standard(scores):
    """z-scores of all lanes of a layer together, of whose variance the divisor is one less than their number."""
    spread = scores.std(ddof=1) if scores.size > 1 else 0.0
    return (scores - scores.mean()) / max(spread, 1e-6)


# By a window of rows ----------------------------------------------------------------------------------------------------------
def cake(mass, gamma, pool):
    """mass: [G,w,prefix]. Large on average, or different from row to row."""
    return np.mean([pooled(one, pool) for one in mass.mean(axis=1) + gamma * mass.var(axis=1, ddof=1)], axis=0)


def finch(mass, entries, counts, group):
    """mass: [G,w,columns]. A row counts as often as it sees entries, or as there are before it."""
    rows = mass.shape[1]
    seen = entries - rows + np.arange(rows) + (counts == "exact")
    return REDUCE[group]((seen[:, None] * mass).mean(axis=1))


def defended(mass, pool):
    """mass: [G,w,prefix]. Each row pooled without losing mass; the largest of all rows, and never below what that is on average."""
    rows = [[pooled(row, pool) for row in head] for head in mass]
    rows = np.array([[row * quotient(a.sum(), row.sum()) for row, a in zip(one, head)] for one, head in zip(rows, mass)])
    most = rows.max(axis=(0, 1))
    return np.maximum(most, most.mean())


def covering(mean, limit, room):
    """Who has most of it, best first, while the sum stays below the limit and there is room; and how far the nearest other answer is."""
    share = quotient(mean, mean.sum())
    order = ranking(share, range(len(share)))
    sums = np.cumsum(share[order])
    count = min(int((sums < limit).sum()), room)
    return order[:count], min([gap_at(share, order, count), *abs(sums[: max(0, room)] - limit)])


def defensive_kv(trace, layer, budget, window, pool, cover, bias, norm_axis):
    """Of a layer's lanes: scores, and the gap at the closest cut of who is put first."""
    masses = [window_attention(trace, layer, head, window) for head in range(trace.kv_heads)]
    w, prefix = min(window, trace.n), max(0, trace.n - window)
    columns = slice(prefix, None) if bias == "window" else slice(max(0, prefix - w), prefix)
    limit = cover - np.concatenate(masses)[:, :, columns].sum(axis=2).mean()
    norms = np.array([projected_norms(trace, layer, head)[:prefix] for head in range(trace.kv_heads)])
    if norm_axis != "none":
        norms = quotient(norms, norms.sum(axis={"heads": 0, "tokens": 1}[norm_axis], keepdims=True))
    made, gaps = [], []
    for mass, norm in zip(masses, norms):
        scores = behind_forced(defended(mass[:, :, :prefix], pool) * norm, trace.n)
        first, gap = covering(mass[:, :, :prefix].mean(axis=(0, 1)), limit, max(0, budget - w))
        scores[first] = np.inf
        made.append(scores)
        gaps.append(gap)
    return made, min(gaps)


def critical(scores, norms, forced, budget, count, epsilon):
    """So many of the best by what they scored, forced entries among them, and then the best by what they scored in the measure of the value's norm."""
    first = max(0, min(count, budget) - int(forced.sum()))
    made, _ = put_first(scores, forced, first, (scores + epsilon) * norms)
    return made, gap_at(scores, ranking(scores, np.flatnonzero(~forced).tolist()), first)


def first_places(part, budget):
    return max(1, int(part * budget)) if part else 0


def compressed(masses, votes, pool):
    """masses: [Hq,w,prefix]. The rows' sum of each query head, and the average of the heads by their votes."""
    return quotient(np.array([pooled(mass.sum(axis=0), pool) for mass in masses]).T @ votes, votes.sum())


# By keys and values -----------------------------------------------------------------------------------------------------------
def spread_in_reference(rows, reference):
    """How different a row's channels are, each in the measure of its range in the reference: as a softmax over the rows."""
    low, high = reference.min(axis=0), reference.max(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where((high == low) & ~np.isnan(rows - low), 0.0, (rows - low) / (high - low))
    spread = z.std(axis=1, ddof=1) if z.shape[1] > 1 else np.zeros(len(z))
    weights = np.exp(spread - spread.max())
    return weights / weights.sum()


def lag_kv(keys, values, lag, sinks, cross):
    """Scores, who is forced, and how far apart the closest of a block are, relatively."""
    entries, at, gap = len(keys), np.arange(len(keys)), math.inf
    blocks = max(0, entries - sinks) // lag
    if entries < sinks + 2 * lag:
        return np.where(at < sinks, 0.0, quotient(at - sinks, max(0, entries - sinks))), at < sinks, gap
    scores = np.zeros(entries)
    for b in range(blocks - 1):
        begin, middle, end = (sinks + (b + i) * lag for i in range(3))
        made = np.mean([spread_in_reference(rows[begin:middle], rows[middle:end]) for rows in (keys, values)], axis=0)
        worst = ranking(made, range(lag))[::-1]
        near = np.diff(made[worst])
        gap = gap if cross else min([gap, *near[near > 0] / made.mean()])
        scores[begin:middle] = made if cross else np.argsort(worst) / lag
    return scores, (at < sinks) | (at >= sinks + (blocks - 1) * lag), gap


def by_blocks(values, block):
    """Divided by the sums of their blocks."""
    if not block:
        return values
    at = np.arange(len(values)) // block
    return quotient(values, np.bincount(at, values)[at])


def cur(keys, values, block, of):
    k, v = (by_blocks((rows**2).sum(axis=1), block) for rows in (keys, values))
    made = {"product": k * v, "mean": (k + v) / 2, "key": k, "value": v}[of]
    return quotient(made, made.sum())


def sketch_of(trace, layer, head, size, seed):
    """[D,k], of the trace or drawn; None where keys are not to be sketched."""
    given = getattr(trace, "sketch", None)
    if given is not None:
        return given if given.ndim == 2 else given[layer, head]
    if not size:
        return None
    draws = np.array([uniform(seed, 0, layer, head, i) for i in range(2 * trace.d * size)]).reshape(trace.d, size, 2)
    return np.sqrt(-2 * np.log(1 - draws[..., 0])) * np.cos(2 * np.pi * draws[..., 1]) / np.sqrt(size)


def leverages(keys, sketch, jitter):
    """How far a key lies in directions that few keys share."""
    x = keys - keys.mean(axis=0)
    if sketch is not None:
        x = x @ sketch
    for _ in range(6):
        try:
            factor = np.linalg.cholesky(x.T @ x + jitter * np.eye(x.shape[1]))
        except np.linalg.LinAlgError:
            jitter *= 10
            continue
        return (np.linalg.solve(factor, x.T) ** 2).sum(axis=0)
    raise np.linalg.LinAlgError("no jitter helps")


def leverage(trace, layer, entries, sketch, seed, jitter):
    """[Hkv, of these entries]: z-scores of a layer."""
    if not len(entries):
        return np.zeros((trace.kv_heads, 0))
    return standard(np.array([leverages(trace.pre_rope_keys[layer, head, entries], sketch_of(trace, layer, head, sketch, seed), jitter)
                              for head in range(trace.kv_heads)]))


def mass_in_chunks(trace, layer, query_head, entries, chunk, padding):
    """What the rows of a chunk give its entries, each of which sees all of them: logits are products."""
    made = []
    for begin in range(0, len(entries), chunk):
        part = entries[begin : begin + chunk]
        logits = trace.queries[layer, query_head, part] @ trace.keys[layer, query_head // trace.group, part].T
        if padding == "kvpress":
            logits = np.pad(logits, (0, chunk - len(part)))
            logits[:, len(part):] = -1e-9
        made.append(in_a_softmax(trace, layer, query_head, logits).sum(axis=0)[: len(part)])
    return np.concatenate(made)


def compactor_middle(entries, sinks, recent):
    begin = min(sinks, entries)
    return np.arange(begin, entries - min(recent, entries - begin))


def compactor(trace, layer, budget, sinks, recent, chunk, blend, sketch, seed, jitter, padding):
    """[Hkv,N] of a layer: keys that lead, and entries that their neighbours look at."""
    middle, made = compactor_middle(trace.n, sinks, recent), np.zeros((trace.kv_heads, trace.n))
    if not len(middle):
        return made
    looked = []
    for head in range(trace.kv_heads):
        mass = np.mean([mass_in_chunks(trace, layer, h, middle, chunk, padding) for h in trace.heads_of(head)], axis=0)
        looked.append(pooled(mass * np.linalg.norm(trace.values[layer, head, middle], axis=1), "avg:3"))
    part = 1 - budget / trace.n if blend == -1 else blend
    made[:, middle] = part * leverage(trace, layer, middle, sketch, seed, jitter) + standard(np.array(looked))
    return made


# By what queries are like -----------------------------------------------------------------------------------------------------
def turned_on_average(trace, future):
    """The mean of RoPE's matrices at the positions to come."""
    matrix = np.eye(trace.d)
    if not future:
        return matrix
    turn = np.exp(1j * (trace.positions[-1] + 1 + np.arange(future))[:, None] * trace.turns).mean(axis=0)
    places = pairs_of(np.arange(trace.d), trace.style)
    first, second = places.real.astype(int), places.imag.astype(int)
    matrix[first, first] = matrix[second, second] = turn.real
    matrix[second, first], matrix[first, second] = turn.imag, -turn.imag
    return matrix


def query_model(trace, layer, query_head, sinks):
    """Mean and covariance of queries before RoPE."""
    if getattr(trace, "query_mean", None) is not None:
        square = getattr(trace, "query_square", None)
        return trace.query_mean[layer, query_head], None if square is None else square[layer, query_head]
    rows = trace.pre_rope_queries[layer, query_head, ~first_ones(trace, sinks)]
    if not len(rows):
        return np.zeros(trace.d), np.zeros((trace.d, trace.d))
    centred = rows - rows.mean(axis=0)
    return rows.mean(axis=0), centred.T @ centred / len(rows)


def expected_logits(keys, mean, square, scale):
    """The logarithm of what a key draws from queries of that mean and covariance on average."""
    made = scale * (keys @ mean)
    return made if square is None else made + scale**2 / 2 * ((keys @ square) * keys).sum(axis=1)


def expected_attention(trace, layer, head, future, sinks, epsilon, covariance, values):
    turn, ranked, mass = turned_on_average(trace, future), ~first_ones(trace, sinks), np.zeros(trace.n)
    if not ranked.any():
        return mass
    for h in trace.heads_of(head):
        mean, square = query_model(trace, layer, h, sinks)
        logits = expected_logits(trace.keys[layer, head, ranked], turn @ mean, turn @ square @ turn.T if covariance else None, scale_of(trace))
        mass[ranked] += in_a_softmax(trace, layer, h, logits) / trace.group
    return (mass + epsilon) * np.linalg.norm(trace.values[layer, head], axis=1) if values else mass


def cap_kv(trace, layer, head, tau, future, sinks, epsilon):
    """What a value adds to the directions that the values of likely keys have."""
    turn, ranked, made = turned_on_average(trace, future), ~first_ones(trace, sinks), np.zeros(trace.n)
    if not ranked.any():
        return made
    values = trace.values[layer, head, ranked]
    for h in trace.heads_of(head):
        alike = unit(trace.keys[layer, head, ranked]) @ unit(turn @ query_model(trace, layer, h, sinks)[0])
        weights = np.exp(tau * (alike - alike.max()))
        matrix = np.eye(values.shape[1]) + (values * (weights + epsilon)[:, None]).T @ values
        made[ranked] += weights * (values * np.linalg.solve(matrix, values.T).T).sum(axis=1) / trace.group
    return made


def ada_ea(trace, layer, head, covariance):
    """Who is admitted, and how far the closest logit is from its threshold."""
    heads = trace.heads_of(head)
    over = []
    for h in heads:
        logits = expected_logits(trace.keys[layer, head], trace.query_mean[layer, h], trace.query_square[layer, h] if covariance else None, scale_of(trace))
        over.append((trace.cap * np.tanh(logits / trace.cap) if trace.cap else logits) - trace.thresholds[layer, h])
    return (np.array(over) > 0).any(axis=0), abs(np.array(over)).min()


# By external rows -------------------------------------------------------------------------------------------------------------
def chunks_of_rows(trace):
    """(begin, end, its rows) of each chunk: rows that stand together and are about the same entries."""
    about = list(zip(trace.row_begin.tolist(), trace.row_end.tolist()))
    cuts = [r for r in range(len(about)) if not r or about[r] != about[r - 1]] + [len(about)]
    return [(*about[a], range(a, b)) for a, b in zip(cuts, cuts[1:])]


def kvzip(trace, layer, head, sinks, plus):
    """The most that a row which repeats an entry's chunk gives it, where it sees sinks, the chunk, and the rows before it."""
    scores, keys = np.zeros(trace.n), trace.keys[layer, head]
    own = getattr(trace, "query_keys", None)
    for begin, end, rows in chunks_of_rows(trace):
        near = min(sinks, begin)
        seen = np.concatenate([keys[:near], keys[begin:end]] + ([] if own is None else [own[layer, head, rows]]))
        hidden = len(seen) - near - (end - begin)
        for h in trace.heads_of(head):
            logits = trace.logits_of(trace.query_rows[layer, h, rows] @ seen.T)
            if hidden:
                logits[:, -hidden:] = np.where(np.tri(hidden, dtype=bool), logits[:, -hidden:], -np.inf)
            mass = trace.weights(layer, h, logits)[:, near : near + end - begin]
            if plus:
                mass = mass * quotient(head_norms(trace, layer, h, 2)[begin:end], trace.hidden_norm[layer, rows][:, None])
            scores[begin:end] = np.maximum(scores[begin:end], mass.max(axis=0))
    return scores


def kvcompose(trace, layer, rows, group, add_mean, values, lse=None):
    """[Hkv,N] of a layer."""
    made = []
    for head in range(trace.kv_heads):
        made.append(REDUCE[group](np.array([REDUCE[rows](external_rows(trace, layer, h, lse)) for h in trace.heads_of(head)])))
        if values:
            made[-1] = made[-1] * np.linalg.norm(trace.values[layer, head], axis=1)
    return np.array(made) + (np.mean(made, axis=0) if add_mean else 0.0)


def epi_cache(trace, layer, head, live=slice(None)):
    """The most that an external row gives each of who is there."""
    keys = trace.keys[layer, head, live]
    return np.max([trace.weights(layer, h, trace.logits_of(trace.query_rows[layer, h] @ keys.T)).max(axis=0) for h in trace.heads_of(head)], axis=0)
