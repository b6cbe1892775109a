# SPDX-License-Identifier: Apache-2.0
"""Small safetensors files, written and read by hand."""

import importlib.util
import json
import struct
import unittest


def main():
    """Runs the tests of a file; where there is no numpy, those that need it are skipped, and it says so."""
    if importlib.util.find_spec("numpy") is None:
        print("there is no numpy")
    unittest.main()


def flat(values):
    return [x for value in values for x in flat(value)] if isinstance(values, list) else [values]


def shape_of(values):
    if not isinstance(values, list):
        return []
    return [len(values), *shape_of(values[0])] if values else [0]


FORMATS = {"F32": "f", "F64": "d", "I32": "i", "I64": "q", "F16": "e"}


def pack(dtype, values):
    if dtype == "BF16":
        return b"".join(struct.pack("<f", x)[2:] for x in flat(values))
    return struct.pack(f"<{len(flat(values))}{FORMATS[dtype]}", *flat(values))


def write(path, tensors, metadata=None, edit=None):
    header, data = {}, b""
    for name, (dtype, values) in tensors.items():
        packed = pack(dtype, values)
        header[name] = {"dtype": dtype, "shape": shape_of(values), "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    if metadata:
        header["__metadata__"] = metadata
    if edit:
        edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read(path):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    data = raw[8 + size :]
    result = {}
    for name, one in header.items():
        begin, end = one["data_offsets"]
        form = FORMATS.get(one["dtype"], "H")  # BF16 as its bits
        result[name] = (one["shape"], list(struct.unpack(f"<{(end - begin) // struct.calcsize(form)}{form}", data[begin:end])))
    return result


def ragged(result, name="keep"):
    offsets, ordinals = result[name + ".offsets"][1], result[name + ".ordinals"][1]
    return [ordinals[a:b] for a, b in zip(offsets, offsets[1:])]


def write_arrays(path, tensors, metadata=None):
    """As write, of numpy arrays that hold the bytes already: a BF16 one as its bits."""
    header, at = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            file.write(values.tobytes())
