# SPDX-License-Identifier: Apache-2.0
"""Decisions about arrays of NumPy. They need nothing but NumPy."""

import threading
import time

import numpy as np
import pytest
import reference

import kvpolicy


def model(entries=100, heads=2, group=3, dims=16, sequences=1, layers=1, seed=0):
    random = np.random.default_rng(seed)
    keys = random.standard_normal((layers, sequences, heads, entries, dims), dtype=np.float32)
    values = random.standard_normal((layers, sequences, heads, entries, dims), dtype=np.float32)
    queries = random.standard_normal((layers, sequences, heads * group, entries, dims), dtype=np.float32)
    return keys, values, queries


def test_snapkv_keeps_what_the_papers_equations_keep():
    for entries, window, width, budget in ((100, 8, 7, 30), (33, 32, 5, 33), (64, 16, 1, 17), (31, 32, 7, 10)):
        keys, _, queries = model(entries)
        made = kvpolicy.decide(f"snapkv(window={window}, pool=max:{width}) | budget({budget})", keys=keys[0, 0], queries=queries[0, 0, :, -window:])
        expected = reference.snapkv(keys[0, 0], queries[0, 0], window, width, budget)
        assert [made.lane(head=head).tolist() for head in range(2)] == expected


def test_layers_and_sequences_decide_for_themselves():
    keys, _, queries = model(layers=3, sequences=2)
    made = kvpolicy.decide("snapkv(window=8) | budget(20)", keys=keys, queries=queries)
    assert made.array().shape == (3, 2, 2, 20)
    for layer in range(3):
        for sequence in range(2):
            expected = reference.snapkv(keys[layer, sequence], queries[layer, sequence], 8, 7, 20)
            assert made.array()[layer, sequence].tolist() == expected
    assert (made.counts == 20).all()


def test_a_sequence_may_be_shorter_than_its_array():
    keys, _, queries = model(sequences=2)
    made = kvpolicy.decide("snapkv(window=8) | budget(ratio=0.5)", keys=keys, queries=queries[:, :, :, -8:], lengths=[100, 40])
    assert made.counts.tolist() == [[[50, 50], [20, 20]]]
    assert made.lane(sequence=1).tolist() == reference.snapkv(keys[0, 1, :, 60:], queries[0, 1], 8, 7, 20)[0]


def test_strides_and_lists_are_read_in_place():
    keys, _, queries = model()
    expected = kvpolicy.decide("snapkv(window=8) | budget(20)", keys=keys, queries=queries).array()
    by_token = np.ascontiguousarray(keys.transpose(0, 1, 3, 2, 4)).transpose(0, 1, 3, 2, 4)
    wide = np.zeros((*keys.shape[:-1], 32), np.float32)
    wide[..., ::2] = keys
    assert not by_token.flags.c_contiguous
    for other in (by_token, wide[..., ::2], [keys[0]]):
        made = kvpolicy.decide("snapkv(window=8) | budget(20)", keys=other, queries=queries).array()
        assert (made == expected).all()


def test_half_precision_is_read_as_it_is():
    keys, _, _ = model()
    half = keys.astype(np.float16)
    made = kvpolicy.decide("knorm | budget(10)", keys=half)
    assert [made.lane(head=head).tolist() for head in range(2)] == reference.knorm(half[0, 0], 10)


def test_h2o_reads_every_row():
    keys, _, queries = model()
    made = kvpolicy.decide("h2o(heavy=10, recent=10) | budget(20)", keys=keys, queries=queries)
    mass = reference.probabilities(keys[0, 0], queries[0, 0])
    for head in range(2):
        heavy = reference.top(mass[3 * head : 3 * head + 3].sum(axis=(0, 1))[:90], 10)
        assert made.lane(head=head).tolist() == heavy + list(range(90, 100))


def test_scores_of_the_caller_decide():
    scores = np.random.default_rng(1).standard_normal((1, 1, 2, 50), dtype=np.float32)
    made = kvpolicy.decide("external | budget(5)", scores=scores)
    assert [made.lane(head=head).tolist() for head in range(2)] == [reference.top(scores[0, 0, head], 5) for head in range(2)]
    for fewer in (scores[0], scores[0, 0]):
        assert (kvpolicy.decide("external | budget(5)", scores=fewer).array() == made.array()).all()


def test_a_scale_and_a_cap_count():
    keys, _, queries = model()
    made = kvpolicy.decide("snapkv(window=8) | budget(20)", keys=keys, queries=queries, scale=0.01)
    assert made.lane().tolist() == reference.snapkv(keys[0, 0], queries[0, 0], 8, 7, 20, scale=0.01)[0]
    capped = kvpolicy.decide("snapkv(window=8) | budget(20)", keys=keys * 20, queries=queries, soft_cap=1.0)
    plain = kvpolicy.decide("snapkv(window=8) | budget(20)", keys=keys * 20, queries=queries)
    assert (capped.array() != plain.array()).any()


def test_a_budget_in_bytes_counts_real_rows():
    keys, values, _ = model(dims=16)  # an entry takes 128 bytes in each of two heads, which share the bytes
    assert (kvpolicy.decide("knorm | budget(bytes=2560)", keys=keys, values=values).counts == 10).all()
    assert (kvpolicy.decide("knorm | budget(bytes=2560)", keys=keys.astype(np.float16)).counts == 20).all()


def test_unequal_lanes_are_lists():
    keys, _, queries = model()
    made = kvpolicy.decide("snapkv(window=8) | budget(20, scope=layer)", keys=keys, queries=queries)
    assert made.counts.sum() == 40
    if len(set(made.counts.ravel().tolist())) > 1:
        with pytest.raises(ValueError, match="array: counts = "):
            made.array()


def test_state_grows_and_moves_with_the_entries():
    """Evicting in the middle of a sequence and growing gives what the same steps give in one large state."""
    keys, _, queries = model(300)
    kept = []
    for capacity in (16, 1000):
        evictor = kvpolicy.Evictor("h2o(heavy=10, recent=10) | budget(20)", layers=1, query_heads=6, kv_heads=2, head_dim=16, capacity=capacity)
        held = np.zeros((1, 2, 0, 16), np.float32)
        for begin in range(0, 300, 50):
            held = np.concatenate((held, keys[0, :, :, begin : begin + 50]), axis=2)
            evictor.append([50])
            evictor.observe(0, np.ascontiguousarray(queries[0, :, :, begin : begin + 50]), held)
            indptr, indices, _ = evictor.decide([held])
            evictor.apply()
            rows = indices.reshape(2, -1)
            held = np.stack([held[0, head, rows[head]] for head in range(2)])[None]
            assert evictor.counts == [20] and evictor.tokens == [begin + 50]
        kept.append(held)
    assert (kept[0] == kept[1]).all()


def test_tokens_can_be_taken_back():
    keys, _, queries = model(60)
    evictor = kvpolicy.Evictor("snapkv(window=8) | budget(20)", layers=1, query_heads=6, kv_heads=2, head_dim=16)
    evictor.append([40])
    evictor.observe(0, queries[0, :, :, 32:40])
    evictor.append([20])
    evictor.remove_last([20])
    _, indices, _ = evictor.decide([keys[0, :, :, :40]])
    assert indices.reshape(2, -1).tolist() == reference.snapkv(keys[0, 0, :, :40], queries[0, 0, :, :40], 8, 7, 20)


def refused(text, **given):
    with pytest.raises(ValueError) as error:
        kvpolicy.decide(**given)
    assert str(error.value) == text


def test_errors_are_one_line_that_names_the_argument():
    keys, _, queries = model()
    snapkv = "snapkv(window=8) | budget(20)"
    refused("parse: column 8 = windw, but snapkv has the fields window, pool, rows and group; did you mean window?", policy="snapkv(windw=3)", keys=keys)
    refused("decide: queries = none, but snapkv reads query rows", policy=snapkv, keys=keys)
    refused("decide: signals = none, but knorm needs signal keys", policy="knorm", entries=5)
    refused("decide: keys.shape = (100, 16), but the axes are [layer, [sequence,]] head, row and channel", policy="knorm", keys=keys[0, 0, 0])
    refused("decide: lengths = 101, but the arrays have 100 rows", policy="knorm", keys=keys, lengths=[101])
    refused("observe: queries.shape = 8 channels, but a row has 16 channels", policy=snapkv, keys=keys, queries=np.ascontiguousarray(queries[..., :8]))
    refused("observe: queries.strides = 8, but the channels of a query row are contiguous", policy=snapkv, keys=keys, queries=np.repeat(queries, 2, axis=4)[..., ::2])
    elements = "but the elements are float32 or float16 or bfloat16, in the machine's byte order"
    refused(f"decide: keys.dtype = float64, {elements}", policy="knorm", keys=keys.astype(np.float64))
    refused(f"decide: keys.dtype = >f4, {elements}", policy="knorm", keys=keys.astype(">f4"))
    refused("decide: keys[0] = list, but it is an array, or a list of the arrays of layers", policy="knorm", keys=keys.tolist())
    refused("decide: keys[1].shape = (100, 16), but the axes are [sequence,] head, row and channel", policy="knorm", keys=[keys[0, 0], keys[0, 0, 0]])
    scores = np.zeros((1, 2, 50), np.float64)
    refused("decide: scores.dtype = float64, but the elements are float32, in the machine's byte order", policy="external", scores=scores)
    refused("decide: scores.shape = (50,), but the axes are [[layer,] sequence,] KV head and entry", policy="external", scores=scores[0, 0].astype(np.float32))
    refused("make_state: shape.query_heads = 3, but it must be a multiple of the KV heads (2)", policy=snapkv, keys=keys, queries=queries[:, :, :3])


def test_python_runs_while_the_library_decides():
    """A thread counts while a decision is made in another one, which it cannot if the decision holds the lock."""
    keys = np.random.default_rng(0).standard_normal((8, 1, 8, 20000, 64), dtype=np.float32)
    queries = np.ascontiguousarray(keys[:, :, :, -64:])
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)

    evictor = kvpolicy.Evictor("snapkv(window=64) | budget(100)", layers=8, query_heads=8, kv_heads=8, head_dim=64, capacity=20000)
    evictor.append([20000])
    for layer in range(8):
        evictor.observe(layer, queries[layer])
    layers = list(keys)
    thread = threading.Thread(target=count)
    thread.start()
    while counted[0] == 0:
        time.sleep(0.001)
    before = counted[0]
    evictor.decide(layers)
    during = counted[0] - before
    stop.set()
    thread.join()
    assert during > 100


def test_sequences_may_receive_different_numbers_of_tokens():
    """Rows in front of a sequence's new tokens are padding."""
    keys, _, queries = model(48, sequences=2)
    evictor = kvpolicy.Evictor("snapkv(window=8) | budget(20)", layers=1, query_heads=6, kv_heads=2, head_dim=16, sequences=2)
    evictor.append([40, 40])
    evictor.observe(0, queries[0, :, :, :40])
    evictor.append([8, 3])
    newest = queries[0, :, :, 40:48].copy()
    newest[1, :, 5:] = queries[0, 1, :, 40:43]
    newest[1, :, :5] = 1e9
    evictor.observe(0, newest)
    held = keys[0].copy()
    held[1, :, 5:] = keys[0, 1, :, :43]
    indptr, indices, _ = evictor.decide([held])
    kept = [indices[indptr[lane] : indptr[lane + 1]].tolist() for lane in range(4)]
    assert kept[:2] == reference.snapkv(keys[0, 0], queries[0, 0], 8, 7, 20)
    assert kept[2:] == reference.snapkv(keys[0, 1, :, :43], queries[0, 1, :, :43], 8, 7, 20)


def test_h2o_sums_over_steps_and_evictions():
    keys, _, queries = model(120)
    evictor = kvpolicy.Evictor("h2o(heavy=10, recent=10) | budget(20)", layers=1, query_heads=6, kv_heads=2, head_dim=16)
    alive, mass = [[], []], [np.zeros(0), np.zeros(0)]
    for begin in range(0, 120, 15):
        new = list(range(begin, begin + 15))
        alive = [one + new for one in alive]
        held = np.stack([keys[0, 0, head, alive[head]] for head in range(2)])[None]
        evictor.append([15])
        evictor.observe(0, np.ascontiguousarray(queries[0, :, :, new[0] : new[-1] + 1]), held)
        _, indices, report = evictor.decide([held])
        evictor.apply()
        assert report["unobserved"] == 0
        for head in range(2):
            seen = reference.probabilities(held[0, head][None], queries[0, 0, 3 * head : 3 * head + 3][:, new])
            mass[head] = np.concatenate((mass[head], np.zeros(15))) + seen.sum(axis=(0, 1))
            count = len(alive[head])
            kept = reference.top(mass[head][: count - 10], 10) + list(range(count - 10, count)) if count > 20 else list(range(count))
            assert indices.reshape(2, -1)[head].tolist() == kept
            alive[head] = [alive[head][at] for at in kept]
            mass[head] = mass[head][kept]


def test_a_selection_reads_the_pages_of_the_equations():
    random = np.random.default_rng(3)
    keys = random.standard_normal((2, 3, 2, 70, 8)).astype(np.float32)
    queries = random.standard_normal((2, 3, 4, 5, 8)).astype(np.float32)
    made = kvpolicy.decide("select: quest(page=16) | budget(48) | dense(0)", keys=keys, queries=queries)
    for layer in range(2):
        for sequence in range(3):
            wanted = reference.quest(keys[layer, sequence], queries[layer, sequence], 16, 48)
            assert [list(made.lane(layer, sequence, head)) for head in range(2)] == wanted
    with pytest.raises(ValueError, match="queries = none, but a selection reads keys and the newest query rows"):
        kvpolicy.decide("select: quest(page=16) | budget(48)", keys=keys)


def test_an_admission_keeps_its_window_and_what_the_gate_admits():
    gates = np.random.default_rng(4).random((2, 3, 40)).astype(np.float32)
    made = kvpolicy.decide("admit: write_gate | window(8) | sinks(2) | at_least(0.6)", birth_score=gates)
    for sequence in range(2):
        for head in range(3):
            wanted = [j for j in range(40) if j < 2 or j >= 32 or gates[sequence, head, j] >= np.float32(0.6)]
            assert list(made.lane(0, sequence, head)) == wanted
    with pytest.raises(ValueError, match="decide: policy = admit: .*, but one section is served"):
        kvpolicy.decide("admit: write_gate | window(8); evict: knorm | budget(4)", birth_score=gates)
    with pytest.raises(ValueError, match="column 21 = windw"):
        kvpolicy.decide("admit: write_gate | windw(8)", birth_score=gates)


@pytest.mark.parametrize("spec", ["snapkv(window=8) | budget(24)", "knorm | budget(30, block=16)", "tova | budget(9)"])
def test_entries_in_the_blocks_of_a_pool_are_those_of_an_array(spec):
    """Pools as vLLM's: keys transposed within a block, values not."""
    random = np.random.default_rng(5)
    layers, sequences, heads, size, dims, counts = 2, 2, 2, 16, 8, [70, 33]
    keys, values = (random.standard_normal((layers, sequences, heads, 80, dims)).astype(np.float32) for _ in range(2))
    queries = random.standard_normal((layers, sequences, 4, 8, dims)).astype(np.float32)
    blocks = np.array([[9, 2, 5, 11, 0], [7, 3, 4, 1, 6]], np.int32)
    pools = [(np.zeros((12, heads, dims, size), np.float32), np.zeros((12, heads, size, dims), np.float32)) for _ in range(layers)]
    for layer, (of_keys, of_values) in enumerate(pools):
        for sequence in range(sequences):
            for at, block in enumerate(blocks[sequence]):
                rows = slice(at * size, at * size + size)
                of_keys[block] = keys[layer, sequence, :, rows].transpose(0, 2, 1)
                of_values[block] = values[layer, sequence, :, rows]

    def decided(decide):
        evictor = kvpolicy.Evictor(spec, layers=layers, query_heads=4, kv_heads=heads, head_dim=dims, sequences=sequences)
        evictor.append(counts)
        for layer in range(layers):
            evictor.observe(layer, queries[layer])
        return decide(evictor)

    first = lambda all_rows: [np.stack([np.roll(one, 80 - count, axis=1) for one, count in zip(of_layer, counts)]) for of_layer in all_rows]
    indptr, indices, _ = decided(lambda evictor: evictor.decide(first(keys), first(values)))
    in_pool = [of_keys.transpose(0, 3, 1, 2) for of_keys, _ in pools], [of_values.transpose(0, 2, 1, 3) for _, of_values in pools]
    again, listed, _ = decided(lambda evictor: evictor.decide(*in_pool, blocks=blocks))
    assert (indptr == again).all() and (indices == listed).all()
    blocks[0, 4] = 12
    with pytest.raises(ValueError, match="decide: blocks = 12, but the pool has 12 blocks"):
        decided(lambda evictor: evictor.decide(*in_pool, blocks=blocks))
    with pytest.raises(ValueError, match="blocks.shape = 4 blocks, but sequence 0 has 70 entries"):
        decided(lambda evictor: evictor.decide(*in_pool, blocks=blocks[:, :4]))


@pytest.mark.parametrize("given, text", [
    ({"query_square": np.zeros((1, 1, 2, 8, 8), np.float32)}, "decide: query_square = an array (1, 1, 2, 8, 8), but it is read with query_mean, and none is given"),
    ({"frequencies": [1.0, 0.1]}, "decide: frequencies = of 2 pairs of channels, but they are read with query_mean, and none is given"),
], ids=["square", "frequencies"])
def test_what_goes_with_a_mean_is_refused_without_it(given, text):
    evictor = kvpolicy.Evictor("knorm | budget(20)", layers=1, query_heads=2, kv_heads=2, head_dim=8)
    evictor.append([30])
    with pytest.raises(ValueError) as error:
        evictor.decide([np.ones((1, 2, 30, 8), np.float32)], **given)
    assert str(error.value) == text
