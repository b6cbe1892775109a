# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side over fakes of vLLM's pool, requests and manager: it needs neither vLLM nor PyTorch."""

import random

import fakes
import pytest

from kvpolicy_vllm.arithmetic import Course, Cuts

Manager = fakes.over_fakes("manager")[0].CutManager


def scheduler(cuts, blocks=64, window=0):
    return fakes.Scheduler(Manager(fakes.Spec(cuts.block, cuts, window), block_pool=fakes.Pool(blocks)))


def run(of, request, new):
    """One step of one request, and the token that it makes."""
    assert of.allocate(request, new) is not None
    request.computed += new
    if request.computed == request.num_tokens:
        request.tokens.append(1000 + request.num_tokens)


def held(of, request):
    return [not block.is_null for block in of.manager.req_to_blocks[request.request_id]]


def test_blocks_leave_one_step_after_the_cut():
    of, request = scheduler(Cuts(8, 4)), fakes.Request("a", list(range(30)), 30)
    run(of, request, 20)
    run(of, request, 10)
    assert held(of, request) == [True] * 8
    run(of, request, 1)  # the worker moves rows at the begin of this step
    assert held(of, request) == [True] * 8
    run(of, request, 1)
    assert held(of, request) == [False] * 6 + [True] * 2
    assert of.manager.block_pool.get_num_free_blocks() == 63 - 2


def test_a_chunk_of_one_token_of_the_prompt_is_no_decode_step():
    of, request = scheduler(Cuts(8, 4)), fakes.Request("a", list(range(30)), 30)
    for new in (29, 1):
        run(of, request, new)
    assert not of.manager.courses["a"].began
    run(of, request, 1)
    assert of.manager.courses["a"].skip == 6


def test_only_blocks_that_no_cut_writes_are_hashed():
    for slack in (0, 1, 3):
        for length in range(2, 60):
            cuts = Cuts(8, 4, slack)
            of, request = scheduler(cuts, 200), fakes.Request("a", list(range(length)), length)
            run(of, request, length)
            written = set()
            course = Course(cuts)
            for _ in range(60):
                now = request.computed
                if course.step(now, True):
                    written |= {block.block_id for block in of.manager.req_to_blocks["a"][course.skip : -(-now // 4)]}
                run(of, request, 1)
            if course.skip:
                assert not written & {block.block_id for block in of.manager.block_pool.hashes.values()}
                assert len(of.manager.block_pool.hashes) == course.intact
            else:
                assert len(of.manager.block_pool.hashes) == (length + 60) // 4


def test_the_freed_head_is_found_by_the_next_request():
    of, first = scheduler(Cuts(8, 4), window=3), fakes.Request("a", list(range(30)), 30)
    run(of, first, 30)
    for _ in range(4):
        run(of, first, 1)
    second = fakes.Request("b", list(range(28)) + [99, 98, 97], 31)
    assert of.allocate(second, 100) == 31 - 24 and second.computed == 24
    third = fakes.Request("c", list(range(26)), 26)
    of.allocate(third, 100)
    assert third.computed == 20  # skipped(26) is 5 blocks


def test_a_hit_leaves_the_tokens_whose_query_rows_are_read():
    of, first = scheduler(Cuts(8, 4), window=9), fakes.Request("a", list(range(60)), 60)
    run(of, first, 60)
    second = fakes.Request("b", list(range(30)), 30)
    of.allocate(second, 100)
    assert second.computed == 20


def test_a_request_that_ended_leaves_nothing():
    of, request = scheduler(Cuts(8, 4)), fakes.Request("a", list(range(30)), 30)
    run(of, request, 30)
    run(of, request, 1)
    of.release(request)
    assert of.manager.courses == {} and of.manager.begins == {} and of.manager.block_pool.get_num_free_blocks() == 63


@pytest.mark.parametrize("slack", [0, 2, 4])
def test_random_requests_follow_a_plain_model_of_blocks(slack):
    """Requests with shared heads come, are preempted, cancelled and end. What a cut writes is owned by one, and hashed by none."""
    draw = random.Random(slack)
    cuts = Cuts(16, 4, slack)
    of = scheduler(cuts, 50, window=5)
    pool = of.manager.block_pool
    contents = {}  # what a block holds: the tokens that it was computed from, or None after rows moved into it
    heads = [[draw.randrange(100) for _ in range(60)] for _ in range(3)]
    running, waiting, courses, counts = [], [], {}, dict(cut=0, hit=0, preempted=0, done=0)
    for index in range(240):
        head = draw.choice(heads)[: draw.randrange(60)]
        tokens = head + [1000 * index + at for at in range(draw.randrange(1, 40))]
        waiting.append(fakes.Request(str(index), tokens, len(tokens)))
    waiting.reverse()
    ends = {one.request_id: one.num_tokens + draw.randrange(1, 80) for one in waiting}

    def step_of(request, new):
        fresh = request.request_id not in of.manager.req_to_blocks
        new = of.allocate(request, new)
        if new is None:
            return False
        blocks = of.manager.req_to_blocks[request.request_id]
        if fresh:
            shared = request.computed // 4
            courses[request.request_id] = Course(cuts, shared=shared)
            counts["hit"] += shared
            for at, block in enumerate(blocks[:shared]):
                assert contents[block.block_id] == tuple(request.tokens[: 4 * at + 4])
        course, begin = courses[request.request_id], request.computed
        if course.step(begin, begin >= request.num_prompt_tokens and new == 1):
            counts["cut"] += 1
            for block in blocks[course.skip : -(-begin // 4)]:
                assert block.ref_cnt == 1 and block.block_hash is None
                contents[block.block_id] = None
        for at in range(course.skip, len(blocks)):
            assert not blocks[at].is_null
        request.computed += new
        whole = course.skip == 0
        for at in range(begin // 4, request.computed // 4 if request.computed % 4 == 0 else -(-request.computed // 4)):
            assert blocks[at].ref_cnt == 1
            contents[blocks[at].block_id] = tuple(request.tokens[: min(4 * at + 4, request.computed)]) if whole else None
        if request.computed == request.num_tokens:
            request.tokens.append(draw.randrange(100))
        return True

    while running or waiting:
        for request in list(running):
            left = request.num_tokens - request.computed
            while request in running and not step_of(request, draw.randint(1, left)):
                victim = running.pop()
                of.release(victim)
                waiting.append(victim)
                counts["preempted"] += 1
        while waiting and len(running) < 8 and step_of(waiting[-1], draw.randrange(1, 50)):
            running.append(waiting.pop())
        for request in list(running):
            if request.num_tokens >= ends[request.request_id] or draw.random() < 0.002:
                of.release(request)
                running.remove(request)
                counts["done"] += 1
        owned = {block.block_id for blocks in of.manager.req_to_blocks.values() for block in blocks if not block.is_null}
        assert len(owned) + pool.get_num_free_blocks() == 49
        assert all(contents[block.block_id] == hashed for hashed, block in pool.hashes.items())
    assert pool.get_num_free_blocks() == 49
    assert counts["done"] == 240 and min(counts.values()) > 20
