#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write tinylm's weights, and what a C++ reader must reproduce from them, as the files of examples/tinylm/weights.

    python3 tools/export_tinylm.py build/tinylm.pt examples/tinylm/weights

weights.safetensors   matrices in 16 bits (f16 or bf16, whichever is nearer to the checkpoint), norms in f32, and the
                      configuration as metadata
golden.safetensors    token ids of two prompts and the f32 logits that PyTorch computes from the *rounded* weights
held_out.txt          Python text that the model never saw, whole files joined
held_out.md           where that text comes from
"""
import argparse
import hashlib
import json
import pathlib
import random
import subprocess

import torch
import torch.nn.functional as F
import train_tinylm
from replace_file import replace_file

GOLDEN_POSITIONS = 256
HELD_OUT_BYTES = 300_000
DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.uint8: "U8"}


def write_safetensors(path: pathlib.Path, tensors: dict, metadata: dict):
    """The format of safetensors: header length as u64, JSON, then the tensors' bytes without gaps."""
    header, data = {"__metadata__": metadata}, bytearray()
    for name, tensor in tensors.items():
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        header[name] = dict(dtype=DTYPES[tensor.dtype], shape=list(tensor.shape), data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replace_file(path) as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def our_names(state: dict):
    """(our name, tensor): blocks.0.attention_norm.weight, blocks.0.wq.weight, ..., ngrams.0.weight."""
    for name, tensor in state.items():
        yield (name.replace("ngrams.tables.", "ngrams.") + ".weight" if "tables" in name else name), name, tensor.float()


def rounding_error(state: dict, dtype) -> float:
    """Root mean square of the relative error of all matrices."""
    matrices = [t.float() for t in state.values() if t.ndim == 2]
    lost = sum(((t.to(dtype).float() - t).square().sum() / t.square().sum()).item() for t in matrices)
    return (lost / len(matrices)) ** 0.5


def recall_prompt(held: bytes) -> bytes:
    """Facts among text, a question about the first, and its answer: GOLDEN_POSITIONS bytes."""
    stream = train_tinylm.Stream.__new__(train_tinylm.Stream)
    stream.random = random.Random(7)
    facts = [(stream.word(4), stream.word(6)) for _ in range(5)]
    question = b"\nget " + facts[0][0] + b"=" + facts[0][1] + b"\n"
    gap = (GOLDEN_POSITIONS - len(question)) // len(facts) - 17
    prompt = b""
    for i, (key, value) in enumerate(facts):
        prompt += held[1000 * i:1000 * i + gap] + b"\nset " + key + b"=" + value + b"\n"
    prompt += held[9000:9000 + GOLDEN_POSITIONS - len(prompt) - len(question)]
    return prompt + question


def held_out_files():
    """The held-out files, in the order of corpus(), until they hold HELD_OUT_BYTES."""
    texts = iter(train_tinylm.corpus(held_out=True)[0])
    names = {p.read_bytes(): p for p in sorted(train_tinylm.PYTHON_ROOT.rglob("*.py")) if p.is_file() and train_tinylm.is_held_out(p)}
    chosen, size = [], 0
    while size < HELD_OUT_BYTES:
        text = next(texts)
        chosen.append((names[text].relative_to(train_tinylm.PYTHON_ROOT), text))
        size += len(text)
    return chosen


def write_held_out(out: pathlib.Path):
    files = held_out_files()
    text = b"".join(t for _, t in files)
    (out / "held_out.txt").write_bytes(text)
    package = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "libpython3.11-stdlib"], capture_output=True, text=True).stdout
    rows = "\n".join(f"| `{name}` | {len(t):,} | `{hashlib.sha256(t).hexdigest()}` |" for name, t in files)
    (out / "held_out.md").write_text(f"""# held_out.txt

{len(text):,} bytes of Python that tinylm was not trained on: whole files of Debian's package `libpython3.11-stdlib`
(Python 3.11.2; package version {package or "unknown"}), joined without separators in the order below. They are among the
one file in twenty-four that `tools/train_tinylm.py` holds out by the hash of its name.

sha256 of held_out.txt: `{hashlib.sha256(text).hexdigest()}`

| file | bytes | sha256 |
| --- | --- | --- |
{rows}

Python's standard library is copyright (c) 2001-2023 Python Software Foundation, all rights reserved, and distributed under
the [PSF License Agreement](https://docs.python.org/3.11/license.html), which permits this redistribution; notices of
other holders stand in the files themselves.
""")
    print(f"held_out.txt: {len(text):,} bytes of {len(files)} files")
    return text


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    saved = torch.load(arguments.checkpoint, weights_only=False, map_location="cpu")
    state = saved["model"]

    errors = {dtype: rounding_error(state, dtype) for dtype in (torch.float16, torch.bfloat16)}
    best = min(errors, key=errors.get)
    print("relative rounding error:", ", ".join(f"{DTYPES[d]} {e:.2e}" for d, e in errors.items()), "->", DTYPES[best])
    tensors, rounded = {}, {}
    for ours, theirs, tensor in our_names(state):
        tensors[ours] = tensor.to(best) if tensor.ndim == 2 else tensor
        rounded[theirs] = tensors[ours].float()
    metadata = {"format": "tinylm", "seen_bytes": str(saved["seen"]), **{k: str(v) for k, v in train_tinylm.CONFIG.items()}}
    write_safetensors(arguments.out / "weights.safetensors", tensors, metadata)

    held = write_held_out(arguments.out)
    model = train_tinylm.TinyLM()
    model.load_state_dict(rounded)
    golden = {}
    for name, prompt in (("text", held[100_000:100_000 + GOLDEN_POSITIONS]), ("recall", recall_prompt(held))):
        ids = torch.tensor(list(prompt))
        logits = model(ids[None])[0]
        bits = F.cross_entropy(logits[:-1], ids[1:]).item() / 0.6931471805599453
        print(f"golden {name}: {len(prompt)} positions, {bits:.3f} bits per byte, largest logit {logits.abs().max():.1f}")
        golden[name + ".ids"], golden[name + ".logits"] = ids.to(torch.uint8), logits
    write_safetensors(arguments.out / "golden.safetensors", golden, {"format": "tinylm golden logits"})


if __name__ == "__main__":
    main()
