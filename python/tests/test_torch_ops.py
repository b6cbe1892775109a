# SPDX-License-Identifier: Apache-2.0
"""The operator of PyTorch: it is sound by PyTorch's own checks, and a compiled function with it gives what an eager one does."""

import pytest

torch = pytest.importorskip("torch")

import kvpolicy
import kvpolicy.torch_ops

POLICY = "snapkv(window=4) | budget(12)"


def tensors(layers=2, rows=40):
    torch.manual_seed(0)
    return torch.randn(layers, 3, 2, rows, 16), torch.randn(layers, 3, 2, rows, 16), torch.randn(layers, 3, 4, 8, 16)


def test_the_operator_keeps_what_decide_keeps():
    keys, values, queries = tensors()
    rows = torch.ops.kvpolicy.kept(POLICY, keys, values, queries)
    wanted = kvpolicy.decide(POLICY, keys=keys, values=values, queries=queries).array()
    assert rows.dtype == torch.int64 and rows.shape == (2, 3, 2, 12)
    assert (rows.numpy() == wanted).all()


def test_pytorch_finds_the_operator_sound():
    keys, values, queries = tensors()
    for given in ((keys, values, queries), (keys[0], None, queries[0]), (keys[0, 0], None, queries[0, 0])):
        torch.library.opcheck(kvpolicy.torch_ops.kept, (POLICY, *given), test_utils=("test_schema", "test_faketensor"))


def test_a_function_with_it_is_compiled_as_one_graph():
    def cut(keys, values, queries):
        rows = torch.ops.kvpolicy.kept(POLICY, keys, values, queries)[..., None].expand(-1, -1, -1, -1, keys.shape[-1])
        return keys.gather(3, rows) * 2, values.gather(3, rows)

    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    compiled = torch.compile(cut, fullgraph=True, backend="aot_eager")
    for rows in (40, 50):
        given = tensors(rows=rows)
        for eager, made in zip(cut(*given), compiled(*given)):
            assert torch.equal(eager, made)


def test_a_mistake_is_the_error_of_decide():
    keys, values, queries = tensors()
    with pytest.raises(ValueError, match="queries = none, but snapkv reads query rows"):
        torch.ops.kvpolicy.kept(POLICY, keys)
    with pytest.raises(ValueError, match="an array has equally many entries in all lanes"):
        torch.ops.kvpolicy.kept("knorm | budget(7, scope=layer)", keys)


def test_the_rows_of_a_device_are_those_of_the_host():
    import numpy as np

    from kvpolicy._rows import kept_rows

    random = np.random.default_rng(0)
    for even in (False, True):
        before = random.integers(9, 20, (3, 4, 2))
        kept = np.full_like(before, 5) if even else random.integers(0, 9, before.shape)
        kept[..., 0] += kept.max() == 0
        indptr = np.concatenate(([0], kept.ravel().cumsum()))
        indices = random.integers(0, 9, indptr[-1]).astype(np.int32)
        rows = [20, 21, 22, 23]
        host, device = (kept_rows(indptr, one, kept, before, rows) for one in (indices, torch.from_numpy(indices)))
        assert all(torch.equal(a, b) for a, b in zip(host, device))
