# SPDX-License-Identifier: Apache-2.0
"""Small models in vLLM, and the reference: transformers with the whole cache, and what each KV head dropped masked.

The reference decides by itself, about the rows that it computed, by `kvpolicy.decide`, and its arithmetic is written anew.
"""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import torch
import torch.nn.functional as F
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import kvpolicy

VOCABULARY = 512


def model_folder(layers=4, query_heads=8, kv_heads=2, head_dim=64, width=256, seed=0, longest=4608) -> Path:
    """The folder of a random Llama in float32. Its weights are large enough that attention is not uniform."""
    folder = Path(tempfile.gettempdir()) / f"kvpolicy_llama_{layers}_{query_heads}_{kv_heads}_{head_dim}_{width}_{seed}_{longest}"
    if not (folder / "model.safetensors").exists():
        torch.manual_seed(seed)
        config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers, num_attention_heads=query_heads,
                             num_key_value_heads=kv_heads, head_dim=head_dim, max_position_embeddings=longest, tie_word_embeddings=False, initializer_range=0.1,
                             pad_token_id=None, bos_token_id=None, eos_token_id=None)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def prompt(length: int, seed: int) -> list[int]:
    return torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def engine(folder, policy=None, slack=None, *, alone=True, during_prefill=False, **options):
    """An LLM. `alone`: engine and model run in this process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if alone else "1"
    from vllm import LLM

    given = {} if policy is None else {"additional_config": {"kvpolicy": {"policy": policy} | ({} if slack is None else {"slack": slack}) | ({"during_prefill": True} if during_prefill else {})}}
    kept = dict(skip_tokenizer_init=True, dtype="float32", block_size=32, max_model_len=2304, enforce_eager=True, enable_prefix_caching=False,
                kv_cache_memory_bytes=64 << 20, gpu_memory_utilization=0.2, max_logprobs=VOCABULARY, disable_log_stats=True, seed=0)
    return LLM(str(folder), **(kept | given | options))


def generated(llm, prompts, new, logprobs=True):
    """The new tokens of each prompt, and their log probabilities, [token, vocabulary]."""
    from vllm import SamplingParams

    new = [new] * len(prompts) if isinstance(new, int) else new
    asked = [SamplingParams(temperature=0, max_tokens=one, min_tokens=one, ignore_eos=True, detokenize=False, logprobs=VOCABULARY if logprobs else None) for one in new]
    outputs = llm.generate([{"prompt_token_ids": one} for one in prompts], asked, use_tqdm=False)
    return [tables_of(one) for one in outputs]


def pool_of(llm):
    return llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool


# The reference


_running: list[Reference] = []


def _attend(module, query, key, value, attention_mask, scaling=None, **_):
    group = query.shape[1] // key.shape[1]
    dead = _running[-1].seen(module.layer_idx, query, key).repeat_interleave(group, dim=0)[None, :, None]
    keys, values = (one.repeat_interleave(group, dim=1) for one in (key, value))
    logits = query @ keys.transpose(2, 3) * scaling
    if attention_mask is not None:
        logits = logits + attention_mask
    return (logits.masked_fill(dead, float("-inf")).softmax(-1) @ values).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register("kvpolicy_masked", _attend)
ALL_MASK_ATTENTION_FUNCTIONS.register("kvpolicy_masked", eager_mask)


class Reference:
    """A Llama whose dropped entries are masked. `cut(kept, newest)` decides about what is alive."""

    def __init__(self, folder, policy, window):
        self.model = LlamaForCausalLM.from_pretrained(folder, attn_implementation="kvpolicy_masked", dtype=torch.float32).eval()
        self.policy, self.window = policy, window
        self.restart()

    def restart(self):
        self.cache, self.dead, self.queries, self.kept = DynamicCache(config=self.model.config), {}, {}, []

    def seen(self, layer, query, key):
        before = self.dead.get(layer, torch.zeros(key.shape[1], 0, dtype=torch.bool))
        self.dead[layer] = F.pad(before, (0, key.shape[2] - before.shape[1]))
        self.queries[layer] = torch.cat((self.queries.get(layer, query[0, :, :0]), query[0]), dim=1)[:, -max(self.window, 1) :]
        return self.dead[layer]

    @torch.no_grad()
    def read(self, tokens):
        """The log probabilities after each of these tokens."""
        _running.append(self)
        made = self.model(torch.tensor([tokens]), past_key_values=self.cache).logits[0]
        _running.pop()
        return made.log_softmax(-1)

    def cut(self, kept, newest):
        """Every lane keeps `kept` of its entries, the `newest` newest among them."""
        name, scorer = self.policy.split(" | ")[-1], self.policy.rsplit(" | ", 1)[0]
        assert name.startswith("budget(")
        policy = f"{scorer} | budget({kept})" + (f" | recent({newest})" if newest else "")
        made = []
        for layer, held in enumerate(self.cache.layers):
            lanes = []
            for head, dead in enumerate(self.dead[layer]):
                alive = (~dead).nonzero()[:, 0]
                group = self.queries[layer].shape[0] // len(self.dead[layer])
                queries = self.queries[layer][head * group : (head + 1) * group] if self.window else None
                chosen = kvpolicy.decide(policy, keys=held.keys[0, head, alive][None], values=held.values[0, head, alive][None], queries=queries, threads=1)
                lanes.append(alive[torch.as_tensor(chosen.lane(0, 0, 0)).long()])
                self.dead[layer][head] = True
                self.dead[layer][head, lanes[-1]] = False
            made.append(torch.stack(lanes))
        self.kept.append(made)


def cuts_by_hand(budget, block, slack, first, total, between=()):
    """The cuts of a request that begins to decode at `first` tokens and ends with `total`: tokens, kept entries, newest ones.

    `between`: the numbers of tokens between chunks of its prompt, which is cut there, too.
    """
    made, held_from, most = [], 0, max(1, budget // block)
    for tokens in [*between, *range(first, total)]:
        held = tokens - held_from * block
        due = tokens == first or slack > 0 and held >= (most + slack) * block
        if not due or held <= budget:
            continue
        newest = tokens % block
        whole = max((budget - newest) // block, 1)
        kept = whole * block + newest
        if kept >= held:
            continue
        held_from = tokens // block - whole
        made.append((tokens, kept, newest))
    return made


def differences(reference, prompt, tokens, logprobs, budget, block, slack, begins=None, between=()):
    """The largest difference of log probabilities under the reference's own cuts, and the number of tokens that it would choose, too.

    `logprobs` are those of all tokens of the vocabulary, or of the new tokens only. `begins` are the numbers of tokens at which the request began to decode: those of its prompt, and those that it had when it
    was preempted, because then it is computed again from its start without a cut. `between` is as in `cuts_by_hand`, or has
    such numbers for each of `begins`.
    """
    everything, worst, same = prompt + tokens, 0.0, 0
    begins = sorted({len(prompt), *(begins or [])}) + [len(everything)]
    for begin, end in zip(begins, begins[1:]):
        reference.restart()
        cuts = {at: (kept, newest) for at, kept, newest in cuts_by_hand(budget, block, slack, begin, end - 1, between.get(begin, ()) if isinstance(between, dict) else between)}
        at = 0
        for stop in sorted({begin, *cuts, end - 1}):
            if stop > at:
                for index, row in enumerate(reference.read(everything[at:stop]), at):
                    if index >= begin - 1:
                        theirs = logprobs[index + 1 - len(prompt)]
                        mine = row if theirs.ndim else row[everything[index + 1]]
                        worst = max(worst, float((mine - theirs).abs().max()))
                        same += int(row.argmax()) == everything[index + 1]
                at = stop
            if at in cuts:
                reference.cut(*cuts[at])
    return worst, same


def close(llm):
    """Ends an engine, so that another one may begin in this process."""
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    cleanup_dist_env_and_memory()


class Steps:
    """An engine that is driven step by step. `preempted` lists (request, its tokens)."""

    def __init__(self, llm):
        self.engine, self.count, self.done, self.preempted = llm.llm_engine, 0, {}, []
        self.scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.manager = self.scheduler.kv_cache_manager.coordinator.single_type_managers[0]
        preempt = self.scheduler._preempt_request

        def noted(request, *rest, **named):
            self.preempted.append((request.request_id, request.num_tokens))
            return preempt(request, *rest, **named)

        self.scheduler._preempt_request = noted

    def add(self, name, prompt, new, logprobs=VOCABULARY):
        from vllm import SamplingParams

        asked = SamplingParams(temperature=0, max_tokens=new, min_tokens=new, ignore_eos=True, detokenize=False, logprobs=logprobs)
        self.engine.add_request(name, {"prompt_token_ids": prompt}, asked)

    def step(self):
        self.count += 1
        for output in self.engine.step():
            if output.finished:
                self.done[output.request_id] = output

    def all(self, after=lambda: None):
        while self.engine.has_unfinished_requests():
            self.step()
            after()


def tables_of(output):
    """The new tokens of a finished request, and their log probabilities."""
    made = output.outputs[0]
    table = torch.full((len(made.token_ids), VOCABULARY), float("-inf"))
    for index, step in enumerate(made.logprobs or []):
        table[index, list(step)] = torch.tensor([one.logprob for one in step.values()])
    return list(made.token_ids), table
