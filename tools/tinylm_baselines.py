#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bits per byte of the held-out text under two baselines that know nothing of transformers.

    python3 tools/tinylm_baselines.py examples/tinylm/weights/held_out.txt

gzip -9           the text alone, compressed
n-grams of bytes  counted on tinylm's training text (Python and C++, or Python alone), never updated on the held-out text.
                  Order k: k bytes of context predict the next. Two smoothings, both interpolated down to the uniform
                  distribution over 256 bytes: Witten-Bell, and Kneser-Ney with the three discounts of Chen and Goodman.
"""
import argparse
import gzip
import pathlib
import time

import numpy as np
import train_tinylm

HIGHEST = 6


def grams(data: np.ndarray, length: int) -> np.ndarray:
    """Every run of `length` bytes as one integer, the first byte highest."""
    keys = np.zeros(len(data) - length + 1, np.uint64)
    for i in range(length):
        keys = (keys << np.uint64(8)) | data[i:len(data) - length + 1 + i]
    return keys


def counted(keys: np.ndarray):
    """(sorted distinct keys, how often each occurs)."""
    keys = np.sort(keys)
    first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    return keys[first], np.diff(np.append(first, len(keys)))


def look_up(table, keys: np.ndarray) -> np.ndarray:
    """The number beside each key, 0 where the table has no such key."""
    distinct, numbers = table
    at = np.minimum(np.searchsorted(distinct, keys), len(distinct) - 1)
    return np.where(distinct[at] == keys, numbers[at], 0)


def by_context(table):
    """For every context: (contexts, sum of counts), and how many followers it has with count 1, 2 and more."""
    distinct, counts = table
    contexts = distinct >> np.uint64(8)
    first = np.flatnonzero(np.concatenate(([True], contexts[1:] != contexts[:-1])))
    contexts = contexts[first]
    one, two = np.add.reduceat((counts == 1).astype(np.int64), first), np.add.reduceat((counts == 2).astype(np.int64), first)
    more = np.diff(np.append(first, len(counts))) - one - two
    return (contexts, np.add.reduceat(counts, first)), [(contexts, n) for n in (one, two, more)]


def discounts(counts: np.ndarray):
    """Chen and Goodman's D1, D2, D3+ from the counts of counts."""
    n1, n2, n3, n4 = (max(1, int((counts == i).sum())) for i in (1, 2, 3, 4))
    y = n1 / (n1 + 2 * n2)
    return np.clip([0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3], 0, [0, 1, 2, 3])


class Tables:
    """What is known of n-grams of one length: how often each occurs, and after how many different bytes."""

    def __init__(self, data: np.ndarray):
        raw = [counted(grams(data, length)) for length in range(1, HIGHEST + 3)]
        self.raw = raw[:HIGHEST + 1]
        mask = [np.uint64((1 << 8 * length) - 1) for length in range(1, HIGHEST + 2)]
        self.continuation = [counted(longer[0] & m) for longer, m in zip(raw[1:], mask)]


def witten_bell(table, below: np.ndarray, keys: np.ndarray) -> np.ndarray:
    totals, followers = by_context(table)
    count, total = look_up(table, keys), look_up(totals, keys >> np.uint64(8))
    distinct = sum(look_up(f, keys >> np.uint64(8)) for f in followers)
    return np.where(total > 0, (count + distinct * below) / np.maximum(1, total + distinct), below)


def kneser_ney(table, below: np.ndarray, keys: np.ndarray) -> np.ndarray:
    totals, followers = by_context(table)
    d = discounts(table[1])
    count, total = look_up(table, keys), look_up(totals, keys >> np.uint64(8))
    back = sum(d[i + 1] * look_up(f, keys >> np.uint64(8)) for i, f in enumerate(followers))
    left = np.maximum(0, count - d[np.minimum(count, 3)])
    return np.where(total > 0, (left + back * below) / np.maximum(1, total), below)


def bits(probability: np.ndarray) -> float:
    return float(-np.log2(probability).mean())


def evaluate(name: str, data: bytes, held: np.ndarray, results: dict):
    """Bits per byte of every order and smoothing, printed; a lower order serves the first bytes of the text."""
    begin = time.time()
    tables = Tables(np.frombuffer(data, np.uint8).astype(np.uint64))
    uniform = np.full(len(held), 1 / 256)
    wb, kn_lower = uniform.copy(), uniform.copy()
    print(f"{name}: {len(data):,} bytes, counted in {time.time() - begin:.0f} s", flush=True)
    for order in range(HIGHEST + 1):
        keys = grams(held, order + 1)
        kn = kn_lower.copy()
        kn[order:] = kneser_ney(tables.raw[order], kn_lower[order:], keys)
        kn_lower[order:] = kneser_ney(tables.continuation[order], kn_lower[order:], keys)
        wb[order:] = witten_bell(tables.raw[order], wb[order:], keys)
        results[name, order, "Witten-Bell"], results[name, order, "Kneser-Ney"] = bits(wb), bits(kn)
        if order >= 3:
            print(f"  order {order}: Witten-Bell {bits(wb):.4f}, Kneser-Ney {bits(kn):.4f} bits per byte", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("held_out", type=pathlib.Path)
    text = parser.parse_args().held_out.read_bytes()
    print(f"{len(text):,} bytes held out")
    print(f"gzip -9: {8 * len(gzip.compress(text, 9, mtime=0)) / len(text):.4f} bits per byte")
    held = np.frombuffer(text, np.uint8).astype(np.uint64)
    python, cxx = (b"\n".join(files) for files in train_tinylm.corpus())
    results = {}
    evaluate("python and c++", python + b"\n" + cxx, held, results)
    evaluate("python", python, held, results)
    for order in (5, None):
        best = min((k for k in results if order in (None, k[1])), key=results.get)
        print(f"best of {'all' if order is None else f'order {order}'}: {results[best]:.4f} ({best[0]}, order {best[1]}, {best[2]})")


if __name__ == "__main__":
    main()
