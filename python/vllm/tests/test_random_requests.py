# SPDX-License-Identifier: Apache-2.0
"""2,000 random requests in one run of vLLM: lengths, shared heads, prompts that go on from earlier answers, cancellations and preemptions.

At each step the blocks in use are those of a plain model, none is lost, and attention reads blocks of the row's own request
only. Afterwards the log probability of each new token of each request is the masked reference's.
"""

import random
from collections import Counter

import pytest

pytest.importorskip("vllm")

import engine as e
import torch
from vllm import _custom_ops as ops

POLICY, WINDOW, BUDGET, BLOCK = "snapkv(window=8) | budget(96)", 8, 96, 32


class Model:
    """What each request should hold. It follows lengths only."""

    def __init__(self, slack, during_prefill):
        self.slack, self.during_prefill, self.begins, self.seen, self.step = slack, during_prefill, {}, {}, {}
        self.between = {}  # of each request, by the tokens at which it begins to decode: those between its chunks

    def after(self, running, blocks_of):
        """Checks every running request after a step, and returns how many blocks are in use and how many were given back."""
        owners = Counter()
        gone = 0
        for request in running:
            name, computed = request.request_id, request.num_computed_tokens
            if self.seen.get(name) != computed:
                self.step[name] = self.seen.get(name, 0)  # the tokens at the begin of the step
                self.seen[name] = computed
                between = self.between_of(name, request)
                if self.during_prefill and 0 < self.step[name] < self.begins[name]:
                    between.append(self.step[name])
            begin = self.begins.setdefault(name, request.num_prompt_tokens)
            cuts = [kept_from for at, kept_from in self.heads(begin, computed + 1, self.between_of(name, request)) if at < self.step[name]]
            expected = cuts[-1] if cuts else 0
            blocks = blocks_of[name]
            assert [block.is_null for block in blocks] == [True] * expected + [False] * (-(-computed // BLOCK) - expected)
            owners.update(block.block_id for block in blocks if not block.is_null)
            gone += expected
        for blocks in blocks_of.values():
            for block in blocks:
                assert block.is_null or block.ref_cnt == owners[block.block_id]
        return len(owners), gone

    def between_of(self, name, request):
        return self.between.setdefault(name, {}).setdefault(self.begins.setdefault(name, request.num_prompt_tokens), [])

    def heads(self, begin, end, between):
        return [(at, (at - kept) // BLOCK) for at, kept, _ in e.cuts_by_hand(BUDGET, BLOCK, self.slack, begin, end, between)]

    def of(self, name):
        """What is between the chunks of a request, whose name vLLM makes longer. One that asked for one token ended with its last chunk."""
        longer = next((longer for longer in self.between if longer.split("-")[0] == name), None)
        if longer is None:
            return {}
        last, begin = self.seen[longer], self.begins[longer]
        ended = [last] if self.during_prefill and 0 < last < begin else []
        return self.between[longer] | {begin: self.between[longer][begin] + ended}

    def restarted(self, name, tokens):
        self.begins[name] = tokens
        self.between.setdefault(name, {})[tokens] = []  # it is read again from its start
        self.seen[name] = self.step[name] = 0


@pytest.mark.parametrize("count, caching, slack, blocks, during_prefill", [(2000, True, None, 44, False), (300, False, 1, 30, False), (300, True, 0, 52, False),
                                                                           (300, True, 2, 40, True), (300, False, 1, 30, True)])
def test_random_requests(count, caching, slack, blocks, during_prefill, monkeypatch):
    folder = e.model_folder(layers=2, query_heads=4, kv_heads=2, head_dim=32, width=128)
    llm = e.engine(folder, POLICY, slack, enable_prefix_caching=caching, num_gpu_blocks_override=blocks, max_model_len=448, max_num_seqs=12,
                   max_num_batched_tokens=150 if during_prefill else 300, during_prefill=during_prefill)
    steps, draw, model = e.Steps(llm), random.Random(count), Model(BUDGET // BLOCK if slack is None else slack, during_prefill)
    preempt = steps.scheduler._preempt_request

    def noted(request, *rest, **named):
        model.restarted(request.request_id, request.num_tokens)
        return preempt(request, *rest, **named)

    monkeypatch.setattr(steps.scheduler, "_preempt_request", noted)
    reads, attend = Counter(), ops.cpu_attention_with_kv_cache

    def checked(*, block_table, seq_lens, **others):
        if block_table.any():
            owned = [{block.block_id for block in blocks if not block.is_null} for blocks in steps.manager.req_to_blocks.values()]
            for row, length in enumerate(seq_lens.tolist()):
                read = set(block_table[row, : -(-length // BLOCK)].tolist())
                assert any(read <= mine for mine in owned), "attention reads a block that was given back"
                reads["rows"] += 1
        return attend(block_table=block_table, seq_lens=seq_lens, **others)

    monkeypatch.setattr(ops, "cpu_attention_with_kv_cache", checked)
    heads = [e.prompt(280, seed) for seed in range(4)]
    asked, cancelled, most, cached = {}, set(), 0, 0
    try:
        while len(asked) < count or steps.engine.has_unfinished_requests():
            while len(asked) < count and len(steps.scheduler.waiting) < 4:
                head = draw.choice(heads)[: draw.randrange(280)] if draw.random() < 0.7 else []
                if steps.done and draw.random() < 0.3:  # a further turn
                    name = draw.choice(sorted(steps.done))
                    said = asked[name][0] + list(steps.done[name].outputs[0].token_ids)
                    head = said[: draw.choice((len(said), len(said) // BLOCK * BLOCK))][:300]
                prompt = head + e.prompt(draw.randrange(1, 120), 1000 + len(asked))
                new = draw.randrange(1, min(448 - len(prompt), 120 if draw.random() < 0.9 else 447))
                asked[str(len(asked))] = (prompt, new)
                steps.add(str(len(asked) - 1), prompt, new, logprobs=1)
            steps.step()
            in_use, gone = model.after(steps.scheduler.running, steps.manager.req_to_blocks)
            assert in_use + steps.pool.get_num_free_blocks() == steps.pool.num_gpu_blocks - 1
            most = max(most, gone)
            if draw.random() < 0.02 and steps.scheduler.running:
                name = draw.choice(steps.scheduler.running).request_id.split("-")[0]
                steps.engine.abort_request([name])
                cancelled.add(name)
        assert steps.pool.get_num_free_blocks() == steps.pool.num_gpu_blocks - 1
        assert steps.manager.courses == {} and steps.manager.begins == {}
        begins = {}
        for name, tokens in steps.preempted:
            begins.setdefault(name.split("-")[0], []).append(tokens)
        reference, worst, whole, tokens = e.Reference(folder, POLICY, WINDOW), 0.0, 0.0, 0
        done = [name for name in asked if name in steps.done and len(steps.done[name].outputs[0].token_ids) == asked[name][1]]
        for name in done:
            made = steps.done[name].outputs[0]
            logprobs = torch.tensor([step[token].logprob for token, step in zip(made.token_ids, made.logprobs)])
            difference, _ = e.differences(reference, asked[name][0], list(made.token_ids), logprobs, BUDGET, BLOCK, model.slack, begins.get(name), model.of(name))
            worst, tokens = max(worst, difference), tokens + len(made.token_ids)
            cached += steps.done[name].num_cached_tokens or 0
            assert difference < 1e-4, name
            if int(name) < 50:
                whole = max(whole, e.differences(reference, asked[name][0], list(made.token_ids), logprobs, 1 << 30, BLOCK, 0)[0])
        print(f"\n{count} requests, caching {caching}, slack {slack}, during_prefill {during_prefill}: {steps.count} steps, {len(steps.preempted)} preemptions, {len(cancelled)} cancelled, "
              f"{reads['rows']} rows of attention, at most {most} blocks given back at once, {cached} cached tokens, {tokens} tokens, masked {worst:.2g}, unmasked {whole:.2g}")
        assert len(done) + len(cancelled) >= count and len(cancelled) > 5 and len(steps.preempted) > 5 and most > 10 and whole > 1
        assert (cached > 1000) == caching
    finally:
        monkeypatch.undo()
        e.close(llm)
