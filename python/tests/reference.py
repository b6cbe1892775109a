# SPDX-License-Identifier: Apache-2.0
"""SnapKV, H2O and Knorm in double precision, in the slowest obvious way. It shares no code with the library."""

import numpy as np


def probabilities(keys, queries, scale=None):
    """[query head, row, entry]: the softmax of the last rows over keys [KV head, entry, channel], each row causal."""
    keys, queries = np.asarray(keys, np.float64), np.asarray(queries, np.float64)
    group = queries.shape[0] // keys.shape[0]
    entries, rows = keys.shape[1], queries.shape[1]
    made = np.zeros((queries.shape[0], rows, entries))
    for head in range(queries.shape[0]):
        for row in range(rows):
            seen = entries - rows + row + 1
            logits = keys[head // group, :seen] @ queries[head, row] * (scale or keys.shape[2] ** -0.5)
            weights = np.exp(logits - logits.max())
            made[head, row, :seen] = weights / weights.sum()
    return made


def top(scores, count):
    """The ordinals of the highest scores, the lower ordinal first of equal ones, ascending."""
    order = sorted(range(len(scores)), key=lambda at: (-scores[at], at))
    return sorted(order[:count])


def snapkv(keys, queries, window, width, budget, scale=None):
    """For each KV head the kept ordinals. `queries` are the last rows."""
    entries, window = keys.shape[1], min(window, keys.shape[1])
    mass = probabilities(keys, queries[:, -window:], scale)
    group, kept = queries.shape[0] // keys.shape[0], []
    for head in range(keys.shape[0]):
        score = mass[head * group : (head + 1) * group].sum(axis=1).mean(axis=0)[: entries - window]
        reach = width // 2
        pooled = [score[max(0, at - reach) : at + reach + 1].max() for at in range(len(score))]
        best = top(pooled, max(budget - window, 0))
        kept.append(best + list(range(entries - window, entries)))
    return kept


def knorm(keys, budget):
    return [top(-np.linalg.norm(np.asarray(head, np.float64), axis=1), budget) for head in keys]


def quest(keys, queries, page, budget):
    """The pages [KV head][page] that a group's newest rows read: the last one, and the best others. Arrays are of one layer
    of one sequence."""
    heads, entries, _ = keys.shape
    group, made = queries.shape[0] // heads, []
    for head in range(heads):
        pages = [keys[head, a : a + page] for a in range(0, entries, page)]
        rows = queries[head * group : (head + 1) * group, -1].astype(np.float64)
        scores = [max(np.maximum(row * one.min(axis=0), row * one.max(axis=0)).sum() for row in rows) for one in pages]
        others = sorted(range(len(pages) - 1), key=lambda at: (-scores[at], at))[: max(0, budget // page - 1)]
        made.append(sorted([*others, len(pages) - 1]))
    return made
