# SPDX-License-Identifier: Apache-2.0
"""When a request is cut and how many blocks leave, against counting by hand. It needs neither vLLM nor PyTorch."""

import random

import pytest

from kvpolicy_vllm.arithmetic import Course, Cuts, first_cut

SIZES = [(64, 32), (128, 32), (100, 32), (1024, 128), (33, 32), (20, 32), (256, 16)]


def by_hand(budget, block, tokens):
    """The largest number of kept entries that the budget allows, one block at least, in a tail of tokens % block."""
    kept = tokens
    while kept > budget and kept - block >= block:
        kept -= block
    return kept


@pytest.mark.parametrize("budget, block", SIZES)
def test_the_kept_entries_are_the_tail_and_as_many_whole_blocks_as_the_budget_has_room_for(budget, block):
    cuts = Cuts(budget, block)
    for tokens in range(1, 3 * budget + 3 * block):
        kept = cuts.kept(tokens)
        assert kept == by_hand(budget, block, tokens)
        assert kept % block == tokens % block and cuts.skipped(tokens) * block + kept == tokens
        assert kept <= budget or kept < 2 * block


@pytest.mark.parametrize("budget, block", SIZES)
def test_skipped_blocks_never_fall(budget, block):
    cuts = Cuts(budget, block)
    skipped = [cuts.skipped(tokens) for tokens in range(1, 4 * budget)]
    assert skipped == sorted(skipped) and skipped[-1] > 0


@pytest.mark.parametrize("budget, block", SIZES)
@pytest.mark.parametrize("slack", [1, 2, 5])
def test_memory_is_bounded_for_any_length(budget, block, slack):
    """After its prompt a request never holds more whole blocks than budget and slack, and it is cut as rarely as that allows."""
    for prompt in (1, budget - 1, budget, budget + 1, 3 * budget + 7):
        cuts = Cuts(budget, block, slack)
        course, before = Course(cuts), None
        for tokens in range(prompt, prompt + 6 * budget + 9 * block):
            held = tokens // block - course.skip
            cut = course.step(tokens, True)
            if cut and tokens > prompt:
                assert held == cuts.whole + slack
                assert before is None or tokens - before >= slack * block
            if cut:
                before = tokens if tokens > prompt else None
                assert course.skip == cuts.skipped(tokens)
            assert tokens // block - course.skip <= cuts.whole + slack - (1 if tokens > prompt or budget >= block else 0) or not cuts.skipped(tokens)


@pytest.mark.parametrize("budget, block", SIZES)
@pytest.mark.parametrize("slack", [1, 3])
def test_memory_is_bounded_while_a_prompt_is_read_in_chunks(budget, block, slack):
    """What a request holds when a step begins, with the blocks that the cut of the step before gave back, and the step's own."""
    draw = random.Random(budget)
    for largest in (1, block - 1, 5 * block, 3 * budget):
        cuts = Cuts(budget, block, slack, during_prefill=True)
        course, prompt, tokens, free, most = Course(cuts), draw.randrange(1, 20 * budget), 0, 0, 0
        first = None
        while tokens < prompt + 3 * budget:
            free, before = course.skip, course.skip
            if course.step(tokens, tokens >= prompt):
                first = first or tokens
                assert course.skip > before
            new = min(draw.randint(1, largest), prompt - tokens) if tokens < prompt else 1
            tokens += new
            most = max(most, -(-tokens // block) - free)
        assert most <= cuts.most_held(largest)
        assert first is None or first >= cuts.first(prompt)
        assert first is None or course.intact >= cuts.skipped(cuts.first(prompt))


def test_without_slack_there_is_one_cut():
    course = Course(Cuts(128, 32))
    assert not course.step(500, False) and course.step(600, True) and course.skip == 15
    assert not any(course.step(tokens, True) for tokens in range(601, 3000))


def test_no_cut_moves_rows_into_blocks_of_others():
    for shared in range(40):
        course, cuts = Course(Cuts(128, 32, 2), shared=shared), 0
        for tokens in range(700, 3000):
            if course.step(tokens, True):
                cuts += 1
                assert course.skip >= shared
        assert cuts > 10


def test_blocks_that_are_never_written_are_those_below_the_first_cut():
    draw = random.Random(5)
    for _ in range(500):
        block = draw.choice([16, 32])
        cuts = Cuts(draw.randrange(1, 200), block, draw.randrange(4))
        course, written = Course(cuts, shared=draw.randrange(4)), set()
        tokens = draw.randrange(1, 400)
        for now in range(tokens, tokens + 400):
            if course.step(now, True):
                written |= set(range(course.skip, -(-now // block)))
            intact = course.never_written()
            if now == tokens:
                at_the_start = intact
            assert intact == at_the_start
        assert (at_the_start is None) == (not written) or cuts.slack > 0
        assert not written or min(written) >= at_the_start
        first = first_cut(cuts, tokens, course.shared)
        assert (first is None) == (at_the_start is None)


def test_the_default_slack_keeps_prompts_within_the_budget_reusable():
    for budget, block in SIZES:
        cuts = Cuts(budget, block)
        course = Course(Cuts(budget, block, cuts.whole))
        course.step(budget, True)
        assert course.never_written() * block >= budget // block * block
