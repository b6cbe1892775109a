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


# Methods that decide again and again ------------------------------------------------------------------------------------------
class Lane:
    """What a method makes of a lane that grows: it observes the rows that come, scores who is there, and forces some.

    `usual` are its fields; `newest` is the one that says how many of the newest it forces; the first `sinks` and the last `tail` are forced
    besides.
    """
    usual, newest = {}, None
    margin = math.inf  # how far what it compared with a threshold was from it, where it takes sides

    def __init__(self, trace, layer, head=None, sinks=0, tail=0, **fields):
        self.trace, self.layer, self.head, self.sinks, self.tail = trace, layer, head, sinks, tail
        self.how, self.seen = {**self.usual, **fields}, 0

    def observe(self, rows, live):
        self.seen += len(rows)

    def forced(self, live):
        return (self.trace.positions[live] < self.sinks) | last_ones(len(live), max(self.tail, self.how.get(self.newest, 0)))

    def due(self, live):
        return True

    def room(self, live, budget, ratio=None):
        """How many stay that are not forced; of a ratio, `budget` is what it leaves."""
        return max(0, budget - int(self.forced(live).sum()))

    def score(self, live):
        raise NotImplementedError

    def last_rows(self, live):
        """The last rows of a window, and who was there before them."""
        count = min(self.how["window"], len(live))
        return np.arange(self.seen - count, self.seen), live[: len(live) - count]


def in_parts(lane, ends, budget, slack=0, size=0.0):
    """Of a lane that grows to each of `ends` and is cut where it holds more than the budget, if there is one, and the slack: ordinals kept, (step, ordinal)
    of who went, who was there, was forced and what they scored at the last decision, and how far apart the two at the closest cut
    are, relatively to the score or, where that is larger, to `size`. Equal scores are no near tie."""
    live, events, gap, begin = np.arange(0), [], math.inf, 0
    for end in ends:
        rows, begin = np.arange(begin, end), end
        there = live = np.concatenate([live, rows])
        lane.observe(rows, live)
        forced, scores = lane.forced(live), np.zeros(len(live))
        if budget is not None and len(live) <= budget + slack or not lane.due(live):
            continue
        scores, room = lane.score(live), lane.room(live, budget)
        order = ranking(scores, np.flatnonzero(~forced).tolist())
        if 0 < room < len(order) and scores[order[room - 1]] != scores[order[room]]:
            inside, outside = scores[order[room - 1]], scores[order[room]]
            gap = min(gap, (inside - outside) / max(abs(inside), size))
        stays = forced.copy()
        stays[order[:room]] = True
        events += [(end - 1, j) for j in live[~stays].tolist()]
        live = live[stays]
    return live.tolist(), events, there, forced, scores, gap


class Keydiff(Lane):
    def score(self, live):
        return keydiff(self.trace.keys[self.layer, self.head, live])


def redundancy(keys, threshold=0.5, retain="last"):
    """How like the others each key is on average, as a softmax: of those that a key is like, the last does not count. And how far from
    the threshold the closest is that could be taken for the last."""
    unit = keys / (np.linalg.norm(keys, axis=1, keepdims=True) + 1e-8)
    like, margin = unit @ unit.T, math.inf
    np.fill_diagonal(like, 0)
    for row in like if retain == "last" else ():
        last = max(np.flatnonzero(row > threshold), default=0)
        margin = min(margin, abs(row[last:] - threshold).min())
        row[last] = 0
    weights = np.exp(like.mean(axis=0))
    return weights / weights.sum(), margin


class RKv(Lane):
    """Rows of the window over the entries before it, by the largest logit of the group, less what is redundant. Of the group's sinks
    the largest counts, as of its other logits."""
    usual, newest = {"window": 8, "lambda": 0.07, "pool": "max:7", "threshold": 0.5, "retain": "last"}, "window"

    def score(self, live):
        rows, prefix = self.last_rows(live)
        if not len(prefix):
            return np.zeros(len(live))
        heads = self.trace.heads_of(self.head)
        logits = np.max([self.trace.logits(self.layer, h, rows, prefix) for h in heads], axis=0)
        mass = self.trace.weights(self.layer, max(heads, key=lambda h: self.trace.sink(self.layer, h)), logits).mean(axis=0)
        like, margin = redundancy(self.trace.keys[self.layer, self.head, live], self.how["threshold"], self.how["retain"])
        self.margin, part = min(self.margin, margin), self.how["lambda"]
        return behind_forced(part * pooled(mass, self.how["pool"]) - (1 - part) * like[: len(prefix)], len(live))


class QFilters(Lane):
    def score(self, live):
        return -self.trace.keys[self.layer, self.head, live] @ self.trace.filters[self.layer, self.head]


def pairs_of(rows, style):
    """The pairs that RoPE turns, as complex numbers."""
    half = rows.shape[-1] // 2
    return rows[..., :half] + 1j * rows[..., half:] if style == "neox" else rows[..., ::2] + 1j * rows[..., 1::2]


def tri_attention(keys, mean, radius, turns, now, offsets, style="neox", aggregate="mean"):
    """What a query of that mean before RoPE draws from keys after it, at distances 1, 2, 4 ... from now; `turns` are radians a position."""
    z, m = pairs_of(keys, style), pairs_of(mean, style)
    later = m * np.exp(1j * (now + 2.0 ** np.arange(offsets))[:, None] * turns)
    return REDUCE[aggregate]((later @ z.conj().T).real) + abs(z) @ (radius - abs(m))


class TriAttention(Lane):
    """z-scores are those over who is not forced; a prompt is forced."""
    usual = {"aggregate": "mean", "normalise": "z", "group": "max", "offsets": 17}

    def forced(self, live):
        return super().forced(live) | (self.trace.positions[live] < self.trace.prompt)

    def score(self, live):
        trace, ranked, scores = self.trace, ~self.forced(live), []
        for h in trace.heads_of(self.head):
            x = tri_attention(trace.keys[self.layer, self.head, live], trace.query_mean[self.layer, h], trace.query_radius[self.layer, h], trace.turns,
                              trace.positions[live[-1]] + 1, self.how["offsets"], trace.style, self.how["aggregate"])
            if self.how["normalise"] == "z" and ranked.any():
                x = (x - x[ranked].mean()) / max(x[ranked].std(), 1e-6)
            scores.append(x)
        return REDUCE[self.how["group"]](np.array(scores))


class Watching(Lane):
    """Methods that see the attention of each row as it was when the row came: a row's softmax, reduced over the group."""

    def observe(self, rows, live):
        super().observe(rows, live)
        heads = self.trace.heads_of(self.head)
        masses = REDUCE[self.how["group"]](np.array([self.trace.softmax(self.layer, h, rows, live) for h in heads]))
        for row, mass in zip(rows, masses):
            seen = live[live <= row]  # of a prompt that comes at once
            self.see(row, seen, mass[: len(seen)])

    def see(self, row, seen, mass):
        raise NotImplementedError


class Scissorhands(Watching):
    """The sum of the last rows; where the group is no sum, it is reduced in each row."""
    usual, newest = {"history": 32, "recent": 32, "group": "sum"}, "recent"

    def __init__(self, trace, *lane, **fields):
        super().__init__(trace, *lane, **fields)
        self.rows = []

    def see(self, row, seen, mass):
        self.rows.append(np.zeros(self.trace.n))
        self.rows[-1][seen] = mass

    def score(self, live):
        return np.sum(self.rows[max(0, len(self.rows) - self.how["history"]):], axis=0)[live]


class LazyEviction(Watching):
    """When an entry was last looked at, and the longest that it ever waited for that; a decision at every window's end."""
    usual, newest = {"alpha": 0.01, "window": 32, "combine": "product", "group": "mean"}, "window"

    def __init__(self, trace, *lane, **fields):
        super().__init__(trace, *lane, **fields)
        self.last, self.interval = trace.positions.copy(), np.zeros(trace.n)

    def see(self, row, seen, mass):
        now, hit = self.trace.positions[row], seen[mass >= self.how["alpha"]]
        self.interval[hit] = np.maximum(self.interval[hit], now - self.last[hit])
        self.last[hit] = now
        self.margin = min(self.margin, abs(mass / self.how["alpha"] - 1).min())

    def due(self, live):
        return (self.trace.positions[live[-1]] + 1) % self.how["window"] == 0

    def score(self, live):
        longest = np.maximum(self.interval[live], 1)
        waits, often = 2 / (1 + np.exp((self.trace.positions[live[-1]] - self.last[live]) / longest)), 2 / (1 + np.exp(1 / longest))
        return waits * often if self.how["combine"] == "product" else waits + often


class KeysValues(Watching):
    """What rows gave an entry since its birth, in the measure of its value if `values`, and a position's average if `by_age`."""
    usual, newest = {"grace": 0, "values": False, "by_age": False, "group": "sum"}, "grace"

    def __init__(self, trace, *lane, **fields):
        super().__init__(trace, *lane, **fields)
        self.mass, self.norms = np.zeros(trace.n), np.linalg.norm(trace.values[self.layer, self.head], axis=1)

    def see(self, row, seen, mass):
        if self.how["values"]:
            drawn = mass * self.norms[seen]
            mass = mass.sum() * drawn / (drawn.sum() or 1)
        self.mass[seen] += mass

    def score(self, live):
        positions = self.trace.positions[live]
        return self.mass[live] / (positions[-1] - positions + 1 if self.how["by_age"] else 1)


def blocks_of(entries, size):
    return np.arange(entries) // size


def with_their_blocks(chosen, size):
    """The members of all blocks that have one of them."""
    block = blocks_of(len(chosen), size)
    return np.isin(block, block[chosen])


def block_means(values, size):
    """Of each entry, its block's mean."""
    block = blocks_of(len(values), size)
    return (np.bincount(block, values) / np.bincount(block))[block]


class NeuralGc(Lane):
    """Of a layer: a part of the full blocks goes, those that the last rows looked at the least. Of a block with a forced entry nothing goes,
    and it is none of those of which a part goes."""
    usual = {"block": 32, "window": 5, "every": 256, "drop": 0.5}

    def forced(self, live):
        return with_their_blocks(super().forced(live) | last_ones(len(live), 1), self.how["block"])

    def due(self, live):
        return (self.trace.positions[live[-1]] + 1) % self.how["every"] == 0

    def room(self, live, budget, ratio=None):
        free = int((~self.forced(live)).sum())
        return free - math.floor(self.how["drop"] * (free // self.how["block"]) + 1e-9) * self.how["block"]

    def score(self, live):
        rows, _ = self.last_rows(live)
        mass = [self.trace.softmax(self.layer, h, rows, live).mean(axis=0) for h in range(self.trace.query_heads)]
        return block_means(np.mean(mass, axis=0), self.how["block"])


class ChunkKv(Lane):
    """Of a layer: whole chunks stay by the mean of what their members have of all heads, where a forced one has nothing; fewer entries than
    a chunk are ranked one by one."""
    usual, newest = {"chunk": 20, "window": 32, "pool": "avg:5", "scores": ""}, "window"

    def __init__(self, trace, *lane, **fields):
        super().__init__(trace, *lane, **fields)
        self.chunk, self.newest = self.how["chunk"], None if self.how["scores"] else "window"  # given scores force nothing

    def forced(self, live):
        return with_their_blocks(super().forced(live), self.chunk if len(live) >= self.chunk else 1)

    def score(self, live):
        heads = range(self.trace.kv_heads)
        base = [np.broadcast_to(self.trace.given, (self.trace.layers, len(heads), len(live)))[self.layer, head] if self.how["scores"] else
                window_scores(self.trace, self.layer, head, self.how["window"], self.how["pool"], "mean", "mean") for head in heads]
        scores = np.where(super().forced(live), 0.0, np.sum(base, axis=0))
        return block_means(scores, self.chunk) if len(live) >= self.chunk else scores

    def room(self, live, budget, ratio=None):
        forced, scores, block = self.forced(live), self.score(live), blocks_of(len(live), self.chunk)
        if len(live) < self.chunk or len(live) <= budget:
            return super().room(live, budget)
        stay = max(1, budget // self.chunk if ratio is None else int((block[-1] + 1) * (1 - ratio))) - len(set(block[forced]))
        order = ranking(scores[:: self.chunk], sorted(set(block[~forced])))
        if 0 < stay < len(order) and scores[order[stay] * self.chunk] != scores[order[stay - 1] * self.chunk]:
            self.margin = min(self.margin, 1 - scores[order[stay] * self.chunk] / scores[order[stay - 1] * self.chunk])
        return int(np.isin(block, order[: max(0, stay)]).sum())


def gap_at(scores, order, count, size=0.0):
    """How far apart the two at the cut of an order are, relatively to the score or, where that is larger, to `size`. Equal ones are no near tie,
    and who is put first or is NaN is far from the others."""
    if not 0 < count < len(order):
        return math.inf
    inside, outside = scores[order[count - 1]], scores[order[count]]
    return (inside - outside) / max(abs(inside), size) if np.isfinite([inside, outside]).all() and inside != outside else math.inf


class OpenVino(Lane):
    """Of a layer: whole blocks stay by what all rows and heads gave their members. `adaptive`: those that have most of it are put first, and of the
    others those stay whose keys are unlike the rest. `crush`: of the blocks that go, some stay besides that represent them.

    `spans` of positions are forced besides; `edge` is how far from its row's mean the closest cosine was that could be taken for a smaller one.
    """
    usual = {"start": 32, "recent": 128, "block": 32, "score": "sum", "adaptive": False, "cover": 0.9, "crush": 0, "anchor": "mean", "seed": 0}
    edge, size, spans = math.inf, 0.1, ()  # `size` is that of sums of cosines

    def observe(self, rows, live):
        super().observe(rows, live)
        mass = np.sum([self.trace.softmax(self.layer, h, rows, live).sum(axis=0) for h in range(self.trace.query_heads)], axis=0)
        self.mass = mass / (len(live) - live) if self.how["score"] == "norm_sum" else mass

    def forced(self, live):
        size, positions = self.how["block"], self.trace.positions[live]
        begin = blocks_of(len(live), size) * size
        forced = super().forced(live) | (begin < self.how["start"]) | (begin + size > len(live) - self.how["recent"])
        for first, last in self.spans:
            forced |= (first <= positions) & (positions < last)
        return with_their_blocks(forced, size)

    def blocks(self, live):
        """The members of each block that may go, a block a row."""
        return live[~self.forced(live)].reshape(-1, self.how["block"])

    def room(self, live, budget, ratio=None):
        return min(super().room(live, budget) // self.how["block"], len(self.blocks(live))) * self.how["block"]

    def score(self, live, budget):
        scores, blocks = np.zeros(len(live)), self.blocks(live)
        scores[blocks] = self.ranks(blocks, self.room(live, budget) // self.how["block"])[:, None]
        return scores

    def ranks(self, blocks, most):
        """What each block is ranked by, of which so many stay."""
        sums = self.mass[blocks].sum(axis=1)
        if not self.how["adaptive"] or not len(sums):
            return sums
        order = ranking(sums, range(len(sums)))
        reached = np.cumsum(sums[order]) / sums.sum()
        first = min(most, int((reached < self.how["cover"]).sum()) + 1)
        # Whether the last that may stay reaches the cover says nothing: it is put first if those before it did not.
        self.margin = min([self.margin, gap_at(sums, order, first), *abs(reached[: max(0, most - 1)] - self.how["cover"])])
        ranks = self.diversity(blocks)
        ranks[order[:first]] = np.inf
        return ranks

    def diversity(self, blocks):
        """The less a block's keys are like those of all blocks, the better; what is below the mean of its row is no likeness."""
        alike = []
        for head in range(self.trace.kv_heads):
            keys = self.trace.keys[self.layer, head, blocks.ravel()]
            unit = keys / np.maximum(np.linalg.norm(keys, axis=1, keepdims=True), 1e-8)
            like = unit @ unit.T
            np.fill_diagonal(like, 0)
            mean = like.mean(axis=1, keepdims=True)
            self.edge = abs(like - mean)[like != 0].min(initial=self.edge)
            alike.append(np.where(like < mean, 0, like))
        return -np.mean(alike, axis=0).mean(axis=0).reshape(blocks.shape).sum(axis=1)

    def words(self, blocks):
        """A bit of each member: whether it is of the better half of all members."""
        order = ranking(self.mass, blocks.ravel().tolist())
        self.margin = min(self.margin, gap_at(self.mass, order, len(order) // 2))
        return np.isin(blocks, order[: len(order) // 2])

    def anchor(self, words):
        size = self.how["block"]
        return {"mean": 2 * words.sum(axis=0) > len(words), "zeros": np.zeros(size, bool), "ones": np.ones(size, bool), "alternating": np.arange(size) % 2 == 1,
                "random": np.array([uniform(self.how["seed"], 0, self.layer, 0, place) for place in range(size)]) >= 0.5}[self.how["anchor"]]

    def representatives(self, blocks, dropped):
        """Of the blocks dropped: every so many of them, ordered by their words' distances to the anchor."""
        wanted = self.how["crush"]
        if not 0 < wanted <= len(dropped):
            return []
        words = self.words(blocks)
        far = (words != self.anchor(words)).sum(axis=1)
        return sorted(dropped, key=lambda b: (far[b], b))[:: len(dropped) // wanted][:wanted]

    def kept(self, live, budget):
        """Ordinals of who stays, representatives included."""
        blocks, most = self.blocks(live), self.room(live, budget) // self.how["block"]
        ranks = self.ranks(blocks, most)
        order = ranking(ranks, range(len(ranks)))
        self.margin = min(self.margin, gap_at(ranks, order, most, self.size if self.how["adaptive"] else 0.0))
        stay = order[:most] + self.representatives(blocks, order[most:])
        return sorted(live[self.forced(live)].tolist() + blocks[stay].ravel().tolist())
