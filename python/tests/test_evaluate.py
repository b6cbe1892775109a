# SPDX-License-Identifier: Apache-2.0
"""kvpolicy.evaluate on small models: what it asks, what it measures, what the page holds, and what it refuses."""

import base64
import json
import os
import re
import stat

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tinylm_model
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import kvpolicy.hf
from kvpolicy import _evaluation, _page, evaluate
from kvpolicy._evaluation import Evaluation, rows_of
from kvpolicy._questions import Tasks, wilson

CONTEXT, LENGTH = 256, 6
WEIGHTS = tinylm_model.ROOT / "examples" / "tinylm" / "weights"
TEXT = "".join(f"Line {index} of a text that says nothing. " for index in range(200))


class Bytes:
    """A tokenizer whose tokens are bytes; every text begins with token 1."""

    def encode(self, text, add_special_tokens=True):
        return [1] * add_special_tokens + list(text.encode())

    def decode(self, tokens):
        return bytes(tokens).decode("latin-1")


def small_model(layers=2, **more):
    config = LlamaConfig(vocab_size=256, hidden_size=32, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
                         max_position_embeddings=2048, initializer_range=0.2, pad_token_id=None, bos_token_id=None, eos_token_id=None, **more)
    torch.manual_seed(0)
    return LlamaForCausalLM._from_config(config, attn_implementation="sdpa").eval()


def evaluated(policies, budgets=("1/8",), model=None, **more):
    model = small_model() if model is None else model
    made = Evaluation(model, Bytes(), rows_of(policies, budgets, CONTEXT), TEXT, context=CONTEXT, **{"questions": 1, "stretches": 1, "length": LENGTH, **more})
    made.run()
    return made


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))


def held(text, row, step):
    """[lane, entry]: what a row of the page's data holds after a step, read by hand."""
    of = text["rows"][row]
    bits = np.frombuffer(base64.b64decode(of["kept"]), np.uint8).reshape(-1, -(-text["length"] // 8))
    made = np.unpackbits(bits, axis=1, bitorder="little")[:, : text["length"]].astype(bool)
    for lane, entry in np.frombuffer(base64.b64decode(of["gone"]), "<u4").reshape(-1, 2)[: of["ends"][step]]:
        assert made[lane, entry]
        made[lane, entry] = False
    made[:, text["arrived"][step] :] = False
    return made


def test_intervals_are_wilsons():
    for right, of, low, high in ((0, 6, 0, 39), (6, 6, 61, 100), (40, 40, 91, 100), (35, 40, 74, 95), (0, 40, 0, 9)):  # of docs/demo.md and 0 of 6
        assert [round(100 * one) for one in wilson(right, of)] == [low, high]


def test_a_policy_has_a_row_for_each_budget_or_its_own():
    rows = rows_of(["snapkv(window=8)", "knorm | budget(20)", "h2o | sinks(2)", "admit: carried(name=x) | window(8) | at_least(0)"], ["1/8", "0.25", "100"], 1000)
    assert [(row.text, row.budget, row.tokens, row.when) for row in rows] == [
        ("", "all", 0, "prefill"),
        ("snapkv(window=8) | budget(125)", "1/8", 125, "prefill"), ("snapkv(window=8) | budget(250)", "0.25", 250, "prefill"),
        ("snapkv(window=8) | budget(100)", "100", 100, "prefill"),
        ("knorm | budget(20)", "own", 0, "prefill"),
        ("h2o | sinks(2) | budget(125)", "1/8", 125, "forward"), ("h2o | sinks(2) | budget(250)", "0.25", 250, "forward"),
        ("h2o | sinks(2) | budget(100)", "100", 100, "forward"),
        ("admit: carried(name=x) | window(8) | at_least(0)", "own", 0, "forward")]
    for wrong in ("0", "-1", "x", "1000", "1/0", "1.5", ""):
        with pytest.raises(ValueError, match=f"budgets = {wrong}, but a budget is a number of entries below the context of 1000"):
            rows_of(["knorm"], [wrong], 1000)


def test_a_question_is_about_a_fact_of_its_prompt():
    tasks = Tasks(Bytes(), TEXT, seed=3)
    for asked in range(6):
        one = tasks.question(asked, CONTEXT)
        whole = bytes(one.asked).decode()
        assert len(one.asked) == CONTEXT and one.asked[0] == 1
        facts = [span for span in one.spans if span["kind"] != "question"]
        assert [span["kind"] for span in facts] == ["asked" if index == asked else "fact" for index in range(6)]
        for span in facts:
            assert re.fullmatch(r"set [a-z0-9]{4}=[a-z0-9]{6}", whole[span["begin"] : span["end"]])
        begin, end = facts[asked]["value"]
        assert whole[begin:end] == one.answer
        assert whole[slice(one.spans[-1]["begin"], None)] == "get " + whole[begin - 5 : begin]
    with pytest.raises(ValueError, match="six facts and a question take 1"):
        tasks.question(0, 120)


def test_a_history_is_what_was_looked_at():
    random = np.random.default_rng(5)
    for lanes, first, steps in ((1, 1, 3), (3, 17, 9), (4, 8, 0)):
        made, now, known = _page.History(lanes, first + steps), random.random((lanes, first)) < 0.7, []
        for step in range(steps + 1):
            now = now if step == 0 else np.pad(now & (random.random(now.shape) < 0.8), ((0, 0), (0, 1)), constant_values=True)
            made.look([np.flatnonzero(lane) for lane in now], now.shape[1])
            known.append(now)
        text = {"length": first + steps, "arrived": made.arrived, "rows": [made.json()]}
        for step, one in enumerate(known):
            assert (held(text, 0, step)[:, : one.shape[1]] == one).all() and held(text, 0, step).sum() == one.sum()


def test_the_page_holds_what_the_policies_kept():
    made = evaluated(["snapkv(window=8)", "streaming_llm"])
    data, model, question = data_of(made.page()), small_model(), made.questions[0]
    assert (data["layers"], data["heads"], [row["policy"] for row in data["rows"]]) == (2, 2, ["full", "snapkv(window=8)", "streaming_llm"])
    inside, later, stretch = data["texts"]
    assert [len(text["arrived"]) for text in (inside, later, stretch)] == [8, 8 + len(question.question), 1 + LENGTH]
    assert inside["words"] == [chr(one) for one in question.asked]
    for text, prompt in ((inside, question.asked), (later, question.prompt)):
        assert text["arrived"][0] == len(prompt)
        with kvpolicy.hf.evict(model, "snapkv(window=8) | budget(32)") as eviction:
            model(input_ids=torch.tensor([prompt]), past_key_values=DynamicCache(config=model.config))
        lanes = [eviction.kept.lane(layer, 0, head).tolist() for layer in range(2) for head in range(2)]
        assert [np.flatnonzero(lane).tolist() for lane in held(text, 1, 0)] == lanes
    for step, arrived in enumerate(stretch["arrived"]):
        assert (held(stretch, 0, step).sum(axis=1) == arrived).all()
        assert (held(stretch, 1, step).sum(axis=1) == 32 + step).all()
        expected = [*range(4), *range(arrived - 28, arrived)]  # StreamingLLM decides after every forward
        assert all(np.flatnonzero(lane).tolist() == expected for lane in held(stretch, 2, step))


def test_bits_and_memory_are_those_of_the_model():
    made, model = evaluated(["snapkv(window=8)"], questions=0), small_model()
    prompt, follows = made.stretches[0]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + follows])).logits[0].double().log_softmax(dim=-1)
    bits = -sum(float(logits[len(prompt) - 1 + index, token]) for index, token in enumerate(follows)) / np.log(2)
    full, cut = made.rows
    assert full.bits == pytest.approx(bits, rel=1e-4) and full.bytes == len(follows)
    assert cut.bits != pytest.approx(bits, rel=1e-4)
    of_entries = lambda entries: 2 * 2 * 2 * entries * 8 * 4  # layers, keys and values, heads, entries, channels, float32
    assert full.memory == [of_entries(CONTEXT + LENGTH)] and cut.memory == [of_entries(32 + LENGTH)]
    assert len(full.decode) == len(cut.decode) == LENGTH and min(full.prefill + cut.prefill) > 0


def test_positions_are_known_of_caches_that_the_block_has_read():
    model, cache = small_model(), DynamicCache(config=small_model().config)
    with kvpolicy.hf.evict(model, "knorm | budget(20)") as eviction:
        with pytest.raises(ValueError, match="hf.evict: cache = one without a record"):
            eviction.positions(cache)
        model(input_ids=torch.arange(50)[None], past_key_values=cache)
        assert [one.tolist() for one in eviction.positions(cache)] == [eviction.kept.lane(layer, 0, head).tolist() for layer in range(2) for head in range(2)]
        model(input_ids=torch.tensor([[7]]), past_key_values=cache)
        assert all(len(one) == 21 and one[-1] == 50 for one in eviction.positions(cache))
    with kvpolicy.hf.evict(model, "knorm | budget(20, scope=layer)") as eviction:  # lanes of unequal lengths
        model(input_ids=torch.arange(50)[None], past_key_values=(cache := DynamicCache(config=model.config)))
        lanes = [eviction.kept.lane(layer, 0, head).tolist() for layer in range(2) for head in range(2)]
        assert len({len(one) for one in lanes}) > 1 and [one.tolist() for one in eviction.positions(cache)] == lanes


def test_layers_that_are_not_cut_count_in_memory_only():
    """Of a model with sliding windows the page shows the full layers; lanes of unequal lengths and admissions are shown, too."""
    torch.manual_seed(0)
    config = transformers.Gemma3TextConfig(vocab_size=256, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=16,
                                           layer_types=["sliding_attention", "full_attention", "full_attention"], intermediate_size=48, max_position_embeddings=2048,
                                           pad_token_id=0, bos_token_id=1, eos_token_id=None)
    model = transformers.Gemma3ForCausalLM._from_config(config, attn_implementation="sdpa").eval()
    numbers = lambda fresh: fresh.keys.float().sum(dim=-1)
    rows = rows_of(["snapkv(window=8) | budget(64, scope=layer)", "admit: carried(name=sum) | window(8) | at_least(0)"], ["1/8"], CONTEXT, {"carried": numbers})
    made = Evaluation(model, Bytes(), rows, TEXT, context=CONTEXT, questions=1, stretches=1, length=LENGTH)
    made.run()
    data = data_of(made.page())
    assert (data["layers"], data["heads"], [row["budget"] for row in data["rows"]]) == (2, 2, ["all", "own", "own"])
    text = data["texts"][0]
    counts = held(text, 1, 0).sum(axis=1)
    assert counts[:2].sum() == counts[2:].sum() == 2 * 64 and len(set(counts)) > 1
    for lane in held(text, 2, len(text["arrived"]) - 1):  # the window, and some of the older ones
        assert lane[-8:].all() and 0 < lane[:-8].sum() < len(lane) - 8
    assert made.rows[0].memory == [2 * 2 * 8 * 4 * (2 * (CONTEXT + LENGTH) + 15)]  # keys and values, heads, channels, float32; a window keeps one less
    assert made.rows[1].memory[0] < made.rows[0].memory[0]


def test_what_it_advises_follows_from_the_intervals():
    rows = rows_of(["snapkv", "streaming_llm"], ["1/8"], CONTEXT)
    made = Evaluation(small_model(), Bytes(), rows, TEXT, context=CONTEXT, questions=0, stretches=0, length=LENGTH)
    for row, inside, later, memory in zip(rows, (12, 12, 0), (12, 0, 0), (100, 20, 10)):
        row.inside, row.later, row.memory = [index < inside for index in range(12)], [index < later for index in range(12)], [memory]
    assert made.advice() == ["If questions come with the prompt, the smallest cache whose interval contains the full cache's recall is snapkv at 1/8.",
                             "If questions come later, too, no row's interval contains the full cache's recall."]
    rows[0].inside = [False] * 12
    assert made.advice() == ["The model itself answers 0 of 12 questions with its whole cache, so recall says little about its policies."]


class WithGrams(LlamaForCausalLM):
    """tinylm, whose embedding of a byte reaches back to the bytes before: the cache remembers them."""

    def forward(self, input_ids=None, past_key_values=None, **more):
        before = getattr(past_key_values, "read", [])
        past_key_values.read = before + input_ids[0].tolist()
        return super().forward(inputs_embeds=self.whole[0].embedded(past_key_values.read, len(before)), past_key_values=past_key_values, **more)


@pytest.mark.skipif(not WEIGHTS.exists(), reason="only a checkout has the weights")
def test_recall_is_what_the_demo_finds():
    whole = tinylm_model.Tinylm(WEIGHTS)
    model = whole.llama
    model.__class__, model.whole = WithGrams, [whole]  # in a list, for otherwise it would be a module of the model

    class Plain(Bytes):
        def encode(self, text, add_special_tokens=True):
            return super().encode(text, False)

    rows = rows_of(["snapkv(window=16, pool=max:15)", "streaming_llm"], ["1/16"], 1024)
    text = (WEIGHTS / "held_out.txt").read_text(errors="replace")
    made = Evaluation(model, Plain(), rows, text, questions=3, stretches=0)
    made.run()
    full, snapkv, streaming = rows
    assert sum(full.inside) + sum(full.later) == 6
    assert sum(snapkv.inside) >= 2 and sum(snapkv.later) <= 1
    assert sum(streaming.inside) + sum(streaming.later) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model and a tokenizer as transformers saves them, and a text."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tmp_path_factory.mktemp("model")
    small_model().save_pretrained(made)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({one: index for index, one in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(made)
    (made / "text.txt").write_text(TEXT)
    return made


def run(folder, *arguments, text=True):
    return evaluate.main([str(folder), "--context", str(CONTEXT), "--length", "4", "--device", "cpu", *(["--text", str(folder / "text.txt")] if text else []), *map(str, arguments)])


def test_the_program_prints_a_table_and_writes_the_page(folder, tmp_path, capfd):
    page = tmp_path / "kept.html"
    page.write_text("old")
    page.chmod(0o640)
    assert run(folder, "--questions", 1, "--stretches", 1, "--policies", "snapkv(window=8)", "knorm | budget(40)", "--budgets", "1/8", "64", "--html", page) == 0
    said = capfd.readouterr()
    table = said.out.splitlines()
    assert [line.split("  ")[0] for line in table[2:6]] == ["full", "snapkv(window=8)", "snapkv(window=8)", "knorm | budget(40)"]
    assert "8/8" in said.err  # the bar
    data = data_of(page.read_text())
    assert [(row["budget"], row["tokens"]) for row in data["rows"]] == [("all", 0), ("1/8", 32), ("64", 64), ("own", 0)]
    assert stat.S_IMODE(page.stat().st_mode) == 0o640 and list(tmp_path.iterdir()) == [page]
    for part in ("text.txt", "docs/evaluate.md", "machine: "):
        assert part in page.read_text()


def test_without_a_text_prompts_are_made_of_pythons_documentation(folder, capfd):
    assert run(folder, "--questions", 0, "--stretches", 1, "--policies", "knorm", "--budgets", "64", text=False) == 0
    assert capfd.readouterr().out.splitlines()[3].startswith("knorm")


def test_what_is_refused_is_one_line_and_writes_nothing(folder, tmp_path, capfd):
    page, link, fifo = tmp_path / "kept.html", tmp_path / "link.html", tmp_path / "fifo.html"
    link.symlink_to("nothing")
    os.mkfifo(fifo)
    short = tmp_path / "short.txt"
    short.write_text("short")
    cases = [
        (["--html", tmp_path], f"--html = {tmp_path}, but it cannot be written: it is a directory"),
        (["--html", link], f"--html = {link}, but it cannot be written: it is a symbolic link"),
        (["--html", fifo], f"--html = {fifo}, but it cannot be written: it is a FIFO"),
        (["--html", tmp_path / "none" / "kept.html"], "none/kept.html, but it cannot be written: No such file or directory"),
        (["--html", ""], "--html = , but it cannot be written: a file has a name"),
        (["--html", "/proc/kept.html"], "--html = /proc/kept.html, but it cannot be written: "),
        (["--html", folder / "text.txt"], f"--html = {folder}/text.txt, but this run reads it"),
        (["--policies", "snapkv(windw=8)"], "column 8 = windw, but snapkv has the fields window"),
        (["--policies", "trim_kv"], "hf.evict: gates = None, but trim_kv reads the log_beta of a gate"),
        (["--policies", "knorm", "--gates", "knorm"], "--gates = knorm, but it is SCORER=FILE"),
        (["--budgets", "0"], "budgets = 0, but a budget is a number of entries below the context of 256"),
        (["--text", short], "text = short.txt, but it has 5 tokens, and a prompt with what follows it has 260"),
        (["--text", tmp_path / "none.txt"], "none.txt, but it cannot be read: No such file or directory"),
        (["--context", "100"], "context = 100, but six facts and a question take 112 of its tokens"),
        (["--context", "4096"], "context = 4096, but with 4 tokens that follow, the model has positions for 2048"),
        (["--questions", "-1"], "--questions = -1, but it is at least 0"),
        (["--questions", "0", "--stretches", "0"], "--questions = 0, but without stretches nothing is measured"),
        (["--dtype", "float7"], "--dtype = float7, but it is auto or a type of PyTorch"),
        (["--what"], "unrecognized arguments: --what"),
        (["--seed", "x"], "argument --seed: invalid int value: 'x'"),
    ]
    for arguments, text in cases:
        more = [] if "--html" in arguments else ["--html", page]
        status, said = run(folder, *arguments, *more), capfd.readouterr()
        assert (status, said.out, said.err.count("\n")) == (2, "", 1), (arguments, said)
        assert said.err.startswith("kvpolicy.evaluate: ") and text in said.err, (arguments, said.err)
    assert run(tmp_path / "no model", "--html", page, "--text", short, text=False) == 2
    assert "no model, but it cannot be loaded: " in capfd.readouterr().err
    assert {one.name for one in tmp_path.iterdir()} == {"link.html", "fifo.html", "short.txt"} and (folder / "text.txt").read_text() == TEXT


def test_a_run_that_fails_writes_nothing(folder, tmp_path, capfd, monkeypatch):
    def fail(self, advance):
        raise RuntimeError("planted\nmore")

    monkeypatch.setattr(_evaluation.Evaluation, "run", fail)
    assert run(folder, "--html", tmp_path / "kept.html") == 1
    assert capfd.readouterr().err.splitlines()[-1] == "kvpolicy.evaluate: RuntimeError: planted"
    assert list(tmp_path.iterdir()) == []
