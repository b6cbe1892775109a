# SPDX-License-Identifier: Apache-2.0
"""Requests in vLLM under a policy, against transformers with the whole cache and what each KV head dropped masked.

Log probabilities of all tokens, over the whole vocabulary: at most 1e-4 from the masked reference, and more than 1 from the
whole cache. Each test says so of another way to run vLLM.
"""

import pytest

pytest.importorskip("vllm")

import engine as e
import torch

from kvpolicy_vllm import decision

SNAPKV = "snapkv(window=16) | budget(128)"


@pytest.fixture
def made():
    """Engines of a test, which end with it."""
    engines = []

    def make(*args, **options):
        engines.append(e.engine(*args, **options))
        return engines[-1]

    yield make
    decision.watchers.clear()
    for one in engines:
        e.close(one)


def watched():
    cuts = []
    decision.watchers.append(cuts.append)
    return cuts


def check(folder, policy, window, budget, prompts, answers, block=32, slack=0, begins=None, unmasked_too=True, between=None):
    """Every answer is the masked reference's, and not the whole cache's."""
    reference = e.Reference(folder, policy, window)
    worst, whole, same, all_of_them = 0.0, 0.0, 0, 0
    for index, (prompt, (tokens, logprobs)) in enumerate(zip(prompts, answers)):
        at = begins[index] if begins else None
        difference, equal = e.differences(reference, prompt, tokens, logprobs, budget, block, slack, at, between[index] if between else ())
        worst, same, all_of_them = max(worst, difference), same + equal, all_of_them + len(tokens)
        if unmasked_too:
            whole = max(whole, e.differences(reference, prompt, tokens, logprobs, 1 << 30, block, 0, at)[0])
    print(f"\n{policy}: masked {worst:.2g}, unmasked {whole:.2g}, tokens equal {same} of {all_of_them}")
    assert worst < 1e-4
    assert same == all_of_them
    assert not unmasked_too or whole > 1


def test_a_batch_of_prompts(made):
    folder, prompts, cuts = e.model_folder(), [e.prompt(n, n) for n in (300, 64, 500)], watched()
    llm = made(folder, "streaming_llm | budget(64)", 0)
    answers = e.generated(llm, prompts, 12)
    assert sorted((one.tokens, one.kept[0].shape[1]) for one in cuts) == [(300, 44), (500, 52)]
    check(folder, "streaming_llm | budget(64)", 0, 64, prompts, answers)


def test_prompts_in_chunks(made):
    folder, prompts = e.model_folder(), [e.prompt(n, n) for n in (1999, 700, 129, 128, 333, 1024)]
    llm = made(folder, SNAPKV, 0, max_num_batched_tokens=256)
    check(folder, SNAPKV, 16, 128, prompts, e.generated(llm, prompts, 40))


def test_large_blocks(made):
    folder, prompts = e.model_folder(), [e.prompt(n, n) for n in (768, 700)]
    llm = made(folder, "knorm | budget(256)", 0, block_size=128)
    check(folder, "knorm | budget(256)", 0, 256, prompts, e.generated(llm, prompts, 20), block=128)


def test_a_shared_head_comes_from_the_prefix_cache(made):
    folder, shared = e.model_folder(), e.prompt(512, 1)
    prompts = [shared + e.prompt(n, n) for n in (250, 300, 180, 400, 188, 230)]
    llm = made(folder, SNAPKV, 0, enable_prefix_caching=True)
    answers, cached = [], []
    steps = e.Steps(llm)
    for index, prompt in enumerate(prompts):
        steps.add(str(index), prompt, 30)
        steps.all()
        answers.append(e.tables_of(steps.done[str(index)]))
        cached.append(steps.done[str(index)].num_cached_tokens)
    assert cached == [0] + [512] * 5
    check(folder, SNAPKV, 16, 128, prompts, answers)


def test_the_same_prompt_again(made):
    """A hit ends before the blocks that receive rows, and leaves the query rows that the policy reads."""
    folder, prompts = e.model_folder(), [e.prompt(640, 3)] * 3
    llm = made(folder, SNAPKV, None, enable_prefix_caching=True)
    answers = [e.generated(llm, [one], 20)[0] for one in prompts]
    check(folder, SNAPKV, 16, 128, prompts, answers, slack=4)


def test_short_prompts_come_from_the_prefix_cache_as_without_a_policy(made):
    folder, prompt = e.model_folder(), e.prompt(120, 4)
    llm = made(folder, SNAPKV, enable_prefix_caching=True)
    steps = e.Steps(llm)
    for name in ("first", "second"):
        steps.add(name, prompt, 300)
        steps.all()
    assert steps.done["second"].num_cached_tokens == 96
    check(folder, SNAPKV, 16, 128, [prompt] * 2, [e.tables_of(steps.done[name]) for name in ("first", "second")], slack=4)


@pytest.mark.parametrize("policy, window", [("knorm | budget(128)", 0), (SNAPKV, 16)])
def test_a_prompt_continues_an_earlier_answer(made, policy, window):
    """The first request ends with two whole blocks, which the prompt of the second one begins with: it is another request, with cuts of its own."""
    folder, first = e.model_folder(), e.prompt(60, 5)
    llm = made(folder, policy, enable_prefix_caching=True, max_num_batched_tokens=256)
    answers = e.generated(llm, [first], 5)
    prompts = [first + answers[0][0][:4] + e.prompt(n, n) for n in (136, 936)]
    answers += [e.generated(llm, [one], 40)[0] for one in prompts]
    check(folder, policy, window, 128, [first, *prompts], answers, slack=4)


@pytest.mark.parametrize("caching, chunk", [(False, 544), (True, 544), (False, 128), (True, 128)])
def test_a_request_is_preempted(made, caching, chunk):
    """It is computed again from its start, at once or in chunks, and cut again."""
    folder, prompts = e.model_folder(), [e.prompt(n, n) for n in (240, 200)]
    llm = made(folder, SNAPKV, 0, num_gpu_blocks_override=19, max_model_len=544, enable_prefix_caching=caching, max_num_batched_tokens=chunk)
    steps = e.Steps(llm)
    for index, prompt in enumerate(prompts):
        steps.add(str(index), prompt, 290)
    steps.all()
    assert len(steps.preempted) > 0
    begins = [[tokens for name, tokens in steps.preempted if name.split("-")[0] == str(index)] for index in range(2)]
    check(folder, SNAPKV, 16, 128, prompts, [e.tables_of(steps.done[str(index)]) for index in range(2)], begins=begins)


@pytest.mark.parametrize("policy, window", [("streaming_llm | budget(128)", 0), (SNAPKV, 16)])
@pytest.mark.parametrize("caching", [False, True])
def test_requests_are_cut_again_while_they_decode(made, policy, window, caching):
    folder, prompts, cuts = e.model_folder(), [e.prompt(n, n) for n in (600, 90)], watched()
    llm = made(folder, policy, 2, enable_prefix_caching=caching)
    steps, most = e.Steps(llm), []
    for index, prompt in enumerate(prompts):
        steps.add(str(index), prompt, 300)

    def held():
        mine = {name.split("-")[0]: sum(not one.is_null for one in blocks) for name, blocks in steps.manager.req_to_blocks.items()}
        if steps.count > 3:
            most.append(max(mine.values(), default=0))

    steps.all(held)
    assert max(most) == 7  # 4 of the budget, 2 of the slack, and the one that the step writes into
    assert len(cuts) == 9
    check(folder, policy, window, 128, prompts, [e.tables_of(steps.done[str(index)]) for index in range(2)], slack=2)


@pytest.mark.parametrize("caching", [False, True])
def test_prompts_are_cut_between_their_chunks(made, caching):
    """Two prompts of 63 blocks in a pool of 25."""
    folder, prompts, cuts, held = e.model_folder(), [e.prompt(64, 1) + e.prompt(1935, n) for n in (2, 3)], watched(), []
    llm = made(folder, SNAPKV, 2, during_prefill=True, max_num_batched_tokens=256, num_gpu_blocks_override=26, enable_prefix_caching=caching)
    steps = e.Steps(llm)
    for index, prompt in enumerate(prompts):
        steps.add(str(index), prompt, 40)
        steps.all(lambda: held.append(steps.pool.num_gpu_blocks - 1 - steps.pool.get_num_free_blocks()))
    assert len(cuts) == 16 and max(held) <= 4 + 2 + 2 * 8 + 1
    assert steps.done["1"].num_cached_tokens == (64 if caching else 0)
    between = [range(256, 1999, 256), range(64 + 256, 1999, 256) if caching else range(256, 1999, 256)]
    check(folder, SNAPKV, 16, 128, prompts, [e.tables_of(steps.done[str(index)]) for index in range(2)], slack=2, between=between)


def test_a_long_answer(made):
    folder, prompt = e.model_folder(layers=2), e.prompt(256, 5)
    llm = made(folder, "snapkv(window=8) | budget(128)", 2, max_model_len=4288)
    steps, most = e.Steps(llm), []
    steps.add("long", prompt, 4000)
    steps.all(lambda: most.append(steps.pool.num_gpu_blocks - 1 - steps.pool.get_num_free_blocks()) if steps.count > 2 else None)
    assert max(most) <= 7
    check(folder, "snapkv(window=8) | budget(128)", 8, 128, [prompt], [e.tables_of(steps.done["long"])], slack=2)


def test_four_requests_in_a_pool_of_44_blocks(made):
    """Without a policy they take turns. With one they run together."""
    folder, prompts, taken = e.model_folder(), [e.prompt(n, n) for n in (1000, 900, 800, 700)], {}
    for policy in (None, SNAPKV):
        llm = made(folder, policy, 0 if policy else None, num_gpu_blocks_override=45, max_model_len=1120, max_num_batched_tokens=1120)
        steps = e.Steps(llm)
        for index, prompt in enumerate(prompts):
            steps.add(str(index), prompt, 90)
        steps.all()
        taken[policy] = steps.count
        if policy:
            check(folder, SNAPKV, 16, 128, prompts, [e.tables_of(steps.done[str(index)]) for index in range(4)])
        assert steps.pool.get_num_free_blocks() == 44
    print(f"\nsteps: {taken}")
    assert taken[SNAPKV] <= 120 and taken[None] >= 300


def test_blocks_leave_one_step_after_the_cut(made):
    folder = e.model_folder(layers=1, longest=16512)
    llm = made(folder, "snapkv(window=32) | budget(1024)", 0, block_size=128, max_model_len=16384, max_num_batched_tokens=4096, kv_cache_memory_bytes=32 << 20)
    steps, held = e.Steps(llm), []
    steps.add("long", e.prompt(16000, 6), 6)
    steps.all(lambda: held.append(steps.pool.num_gpu_blocks - 1 - steps.pool.get_num_free_blocks()))
    print(f"\nblocks after each step: {held}")
    assert held == [32, 64, 96, 125, 126, 9, 9, 9, 0]


def test_compiled_mode(made):
    folder, prompts = e.model_folder(), [e.prompt(n, n) for n in (400, 650, 200)]
    llm = made(folder, SNAPKV, 1, enforce_eager=False, enable_prefix_caching=True)
    check(folder, SNAPKV, 16, 128, prompts, e.generated(llm, prompts, 60), slack=1)


def test_without_a_policy_nothing_happens(made):
    folder, prompts, cuts = e.model_folder(), [e.prompt(n, n) for n in (300, 900)], watched()
    llm = made(folder)
    assert type(e.Steps(llm).manager).__name__ == "FullAttentionManager"
    check(folder, "knorm | budget(64)", 0, 1 << 30, prompts, e.generated(llm, prompts, 20), unmasked_too=False)
    assert cuts == []


def test_the_variable_asks_for_a_policy(made, monkeypatch):
    monkeypatch.setenv("KVPOLICY_VLLM", '{"policy": "knorm | budget(96)", "slack": 0}')
    folder, prompts = e.model_folder(), [e.prompt(400, 7)]
    llm = made(folder)
    check(folder, "knorm | budget(96)", 0, 96, prompts, e.generated(llm, prompts, 20))


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_engine_in_processes_of_its_own(ranks):
    """One worker, and two that have half of the heads each, decode what the masked reference does."""
    folder, prompts = e.model_folder(), [e.prompt(1000, n) for n in range(3)]
    llm = e.engine(folder, SNAPKV, 0, alone=False, tensor_parallel_size=ranks)
    answers = e.generated(llm, prompts, 42)
    del llm
    check(folder, SNAPKV, 16, 128, prompts, answers)


def test_a_decision_that_fails_leaves_the_newest_blocks(made, monkeypatch):
    folder, prompts = e.model_folder(), [e.prompt(400, 8)]
    llm = made(folder, SNAPKV, 0)
    import kvpolicy_vllm.builder as builder

    def fails(*_):
        raise ValueError("no")

    monkeypatch.setattr(builder, "decide", fails)
    check(folder, "streaming_llm(sinks=0) | budget(128)", 0, 128, prompts, e.generated(llm, prompts, 20))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("channels, block", [(64, 32), (64, 128), (128, 32), (80, 32)])
def test_rows_lie_where_vllm_writes_them(dtype, channels, block):
    """The fingerprint of each layout that this processor has: numbers that vLLM's kernel writes are read by our views."""
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    from kvpolicy_vllm.layout import LAYOUTS, at, rows_of

    isa = _get_attn_isa(dtype, block, channels, "auto")
    if isa not in LAYOUTS:
        pytest.skip(f"{isa} is refused")
    heads, blocks, tokens = 3, 5, 2 * block + 7
    cache = torch.zeros(blocks, heads, block, 2 * channels, dtype=dtype)
    key, value = (torch.randn(tokens, heads, channels).to(dtype) for _ in range(2))
    slots = torch.randperm(blocks * block)
    keys, values = cache.view(blocks, heads, 2 * block, channels).chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(key, value, keys, values, slots[:tokens], isa)
    for rows, written in zip(rows_of(cache, isa), (key, value)):
        found = rows[at(rows, torch.arange(blocks), slots.expand(heads, -1))].flatten(2)
        assert torch.equal(found[:, :tokens], written.transpose(0, 1))
        assert not found[:, tokens:].any()


def test_a_version_that_was_not_tested_is_warned_about(made, monkeypatch):
    import vllm

    from kvpolicy_vllm import backend

    warnings = []
    monkeypatch.setattr(vllm, "__version__", "0.99.1")
    monkeypatch.setattr(backend.logger, "warning_once", warnings.append)
    made(e.model_folder(), "knorm | budget(64)", 0)
    assert set(warnings) == {"kvpolicy: vLLM is 0.99.1, but the plugin was tested with 0.32.0"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_of_16_bits_are_decided_about(made, dtype, monkeypatch):
    """Attention of 16 bits rounds too much for the reference's tolerance, so this test reads what was kept."""
    import numpy as np

    import kvpolicy
    from kvpolicy_vllm import builder
    from kvpolicy_vllm.layout import copied, rows_of

    folder, cuts, shown, warnings = e.model_folder(), watched(), [], []
    decide = builder.decide

    def seen(settings, cut, layers, windows, block, threads):
        rows = [copied(rows_of(layer.cache, layer.layout)[0], torch.from_numpy(cut.held).long(), cut.entries)[0] for layer in layers]
        shown.extend((keys, windows.rows(layer.name, cut.slot, cut.tokens, cut.rows)[0]) for keys, layer in zip(rows, layers))
        return decide(settings, cut, layers, windows, block, threads)

    monkeypatch.setattr(builder, "decide", seen)
    monkeypatch.setattr(builder.logger, "warning_once", lambda *given: warnings.append(given))
    llm = made(folder, "snapkv(window=16) | budget(128)", 0, dtype=dtype)
    e.generated(llm, [e.prompt(410, 9)], 8)
    assert warnings == [] and len(cuts) == 1 and len(shown) == 4
    for kept, (keys, queries) in zip(cuts[0].kept, shown):
        assert keys.dtype == getattr(torch, dtype) and keys.float().std() > 0.1
        of_floats = kvpolicy.decide("snapkv(window=16) | budget(122) | recent(26)", keys=keys.float(), queries=queries.float())
        assert np.array_equal(of_floats.array()[0, 0], kept.numpy())
