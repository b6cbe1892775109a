# SPDX-License-Identifier: Apache-2.0
"""The worker recognises requests by their blocks. Rows are made by hand; it needs NumPy, and neither vLLM nor PyTorch."""

import random

import numpy as np

from kvpolicy_vllm.arithmetic import Course, Cuts
from kvpolicy_vllm.requests import Requests

BLOCK = 4


class Batch:
    """A scheduler of fakes: each request has blocks of its own, but for those that it shares."""

    def __init__(self, cuts, window):
        self.requests, self.cuts = Requests(cuts, window), cuts
        self.blocks, self.lengths, self.prompts = {}, {}, {}
        self.free = list(range(1, 200))
        self.slots = {}  # what a layer would keep: slot -> place -> (request's history, position)
        self.window = window

    def add(self, name, prompt, head=()):
        self.blocks[name], self.lengths[name], self.prompts[name] = list(head), len(head) * BLOCK, prompt

    def drop(self, name):
        self.free += [one for one in self.blocks.pop(name) if not any(one in others for others in self.blocks.values())]
        del self.lengths[name], self.prompts[name]

    def step(self, order, history=lambda name, position: name):
        """Each (name, new tokens) of `order` is a row. Returns the step."""
        tables, ends, new, prefilling = np.zeros((len(order), 400), np.int32), [], [], []
        for row, (name, count) in enumerate(order):
            begin = self.lengths[name]
            end = begin + count
            while len(self.blocks[name]) * BLOCK < end:
                self.blocks[name].append(self.free.pop(0))
            tables[row, : len(self.blocks[name])] = self.blocks[name]
            prefilling.append(begin < self.prompts[name])
            self.lengths[name] = end
            ends.append(end)
            new.append(count)
        step = self.requests.begin(tables, np.array(ends), np.array(new), np.array(prefilling))
        for source, target in step.copies:
            self.slots[target] = dict(self.slots[source])
        for cut in step.cuts:
            name = order[cut.row][0]
            for position in range(cut.tokens - cut.rows, cut.tokens):
                assert self.slots[cut.slot][position % self.window] == (history(name, position), position)
        if step.captured is not None:
            owners = [(name, begin + index) for (name, count), begin in zip(order, (end - one for end, one in zip(ends, new))) for index in range(count)]
            for token, slot, place in zip(*step.captured):
                name, position = owners[token]
                self.slots.setdefault(slot, {})[place] = (history(name, position), position)
        return step


def test_a_request_is_cut_at_its_first_decode_step():
    batch = Batch(Cuts(8, BLOCK), 3)
    batch.add("a", 18)
    assert batch.step([("a", 10)]).cuts == []
    assert batch.step([("a", 8)]).cuts == []
    (cut,) = batch.step([("a", 1)]).cuts
    assert (cut.tokens, cut.leave, cut.entries, cut.rows) == (18, 3, 18, 3)
    assert list(cut.held) == batch.blocks["a"][:5]
    step = batch.step([("a", 1)])
    assert step.cuts == [] and list(step.skips) == [3] and step.captured is None
    assert batch.requests.free == [0]


def test_a_request_is_recognised_in_another_row():
    batch = Batch(Cuts(8, BLOCK), 2)
    for name in "abc":
        batch.add(name, 20)
    batch.step([("a", 20), ("b", 20), ("c", 20)])
    assert [cut.row for cut in batch.step([("c", 1), ("a", 1), ("b", 1)]).cuts] == [0, 1, 2]
    assert list(batch.step([("b", 1), ("c", 1)]).skips) == [3, 3]


def test_rows_of_a_run_without_requests_are_left_alone():
    requests = Requests(Cuts(8, BLOCK), 2)
    step = requests.begin(np.zeros((3, 10), np.int32), np.array([40, 7, 1]), np.array([40, 1, 1]), np.array([False] * 3))
    assert not step.skips.any() and step.cuts == [] and requests.named == {} and step.captured is None


def test_two_requests_that_agree_each_get_the_query_rows():
    """b takes a's prefix from the cache while a stands just behind it."""
    batch = Batch(Cuts(8, BLOCK), 6)
    history = lambda name, position: "both" if position < 16 else name
    batch.add("a", 20)
    batch.step([("a", 16)], history)
    batch.add("b", 24, head=batch.blocks["a"][:4])
    assert len(batch.step([("a", 4), ("b", 8)], history).copies) == 1
    cuts = batch.step([("b", 1), ("a", 1)], history).cuts
    assert [(cut.tokens, cut.leave, cut.rows) for cut in cuts] == [(24, 4, 6), (20, 3, 6)]


def test_the_owner_of_a_prefix_is_who_stood_in_the_row():
    """b comes into the row of a request that ended, before a's."""
    batch = Batch(Cuts(8, BLOCK), 6)
    batch.add("c", 3)
    batch.add("a", 20)
    batch.step([("c", 3), ("a", 16)])
    batch.drop("c")
    batch.add("b", 24, head=batch.blocks["a"][:4])
    batch.step([("b", 8), ("a", 4)], lambda name, position: "both")
    known = {name: batch.requests.named[batch.blocks[name][-1]] for name in "ab"}
    assert {name: one.course.shared for name, one in known.items()} == {"a": 0, "b": 4}


def test_a_request_with_another_length_is_another_one():
    batch = Batch(Cuts(8, BLOCK), 6)
    batch.add("a", 30)
    batch.step([("a", 14)])
    batch.add("b", 30, head=batch.blocks["a"][:4])
    batch.drop("a")
    batch.step([("b", 2)])
    assert batch.requests.named[batch.blocks["b"][-1]].rows_from == 16


def test_a_request_that_was_preempted_is_cut_when_it_decodes_again():
    """It comes back in chunks that end behind its prompt."""
    batch = Batch(Cuts(8, BLOCK), 3)
    batch.add("a", 18)
    for new in (10, 10, 10):
        assert batch.step([("a", new)]).cuts == []
    (cut,) = batch.step([("a", 1)]).cuts
    assert (cut.tokens, cut.leave) == (30, 6)


def test_rows_that_came_from_the_prefix_cache_are_missing():
    batch = Batch(Cuts(8, BLOCK), 9)
    batch.add("a", 19, head=[3000, 3001, 3002])
    batch.step([("a", 7)])
    (cut,) = batch.step([("a", 1)]).cuts
    assert cut.rows == 7


def test_no_rows_move_into_blocks_of_the_prefix_cache():
    batch = Batch(Cuts(8, BLOCK), 0)
    batch.add("a", 19, head=[3000, 3001, 3002, 3003])
    batch.step([("a", 3)])
    assert batch.step([("a", 1)]).cuts == []


def test_a_block_that_is_used_again_forgets_its_request():
    batch = Batch(Cuts(8, BLOCK), 2)
    for index in range(50):
        batch.free = sorted(batch.free)
        batch.add("a", 20)
        batch.step([("a", 20)])
        batch.drop("a")
    assert batch.requests.slots <= 3 and len(batch.requests.named) == 1


def test_random_batches_follow_a_plain_model():
    """Requests come, grow in chunks, wait, end and are cut again; each row's blocks and query rows are those of its own request."""
    draw = random.Random(11)
    for slack, window in ((0, 0), (0, 5), (2, 5), (1, 3)):
        batch, courses, count, cuts = Batch(Cuts(16, BLOCK, slack), window), {}, 0, 0
        for _ in range(1500):
            if len(courses) < 6 and draw.random() < 0.3:
                batch.add(count, draw.randrange(1, 60))
                courses[count] = Course(batch.cuts)
                count += 1
            order = []
            for name in draw.sample(list(courses), len(courses)):
                left = batch.prompts[name] - batch.lengths[name]
                order.append((name, draw.randint(1, left) if left > 0 else 1))
            order = order[: draw.randint(0, len(order))]
            expected = []
            for row, (name, new) in enumerate(order):
                begin, before = batch.lengths[name], courses[name].skip
                if courses[name].step(begin, begin >= batch.prompts[name] and new == 1):
                    expected.append((row, begin, courses[name].skip - before, min(window, begin)))
            step = batch.step(order)
            cuts += len(expected)
            assert [(cut.row, cut.tokens, cut.leave, cut.rows) for cut in step.cuts] == expected
            assert list(step.skips) == [courses[name].skip for name, _ in order]
            for name in list(courses):
                if draw.random() < 0.02 and batch.lengths[name] > 0:
                    batch.drop(name)
                    del courses[name]
        assert cuts > 50
        assert batch.requests.slots <= 63


def test_a_prompt_that_begins_with_an_ended_answer_is_another_request():
    """The first request ends with whole blocks. What takes them is cut by a course of its own."""
    for window in (0, 3):
        batch = Batch(Cuts(8, BLOCK, 9), window)
        batch.add("a", 6)
        batch.step([("a", 6)])
        for _ in range(2):
            batch.step([("a", 1)])
        head = list(batch.blocks["a"])
        assert batch.lengths["a"] == 8 and len(head) == 2
        history = lambda name, position: "a" if position < 8 else name
        batch.add("b", 30, head)
        batch.step([("b", 10)], history)
        batch.step([("b", 12)], history)
        made = batch.step([("b", 1)], history)
        assert [(cut.tokens, cut.leave) for cut in made.cuts] == [(30, 6)]


def test_a_request_that_decodes_beside_one_that_took_its_blocks_stays_itself():
    batch = Batch(Cuts(8, BLOCK, 9), 0)
    batch.add("a", 6)
    batch.step([("a", 6)])
    for _ in range(2):
        batch.step([("a", 1)])
    batch.add("b", 30, list(batch.blocks["a"]))
    batch.step([("b", 10), ("a", 1)])
    known = batch.requests.named
    assert known[batch.blocks["a"][-1]].course.began and not known[batch.blocks["b"][-1]].course.began
