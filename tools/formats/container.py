"""A minimal safetensors writer and reader that carries dtypes numpy lacks.

A tensor is (dtype name, numpy array); BF16 is held as uint16 bits and F8_E4M3 as uint8 codes.
"""

import json
import math
import pathlib
import struct

import numpy as np

STORAGE = {"F32": np.float32, "BF16": np.uint16, "F8_E4M3": np.uint8, "U8": np.uint8, "I32": np.int32, "I64": np.int64}


def write(path, tensors, metadata=None):
    """Tensors in name order, without gaps; the header is padded with spaces to 8 bytes."""
    header, offset = ({"__metadata__": metadata} if metadata else {}), 0
    for name, (dtype, array) in sorted(tensors.items()):
        assert array.dtype == STORAGE[dtype], (name, dtype, array.dtype)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, (_, array) in sorted(tensors.items()):
            out.write(np.ascontiguousarray(array).tobytes())


def read(path):
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, base, out = json.loads(data[8 : 8 + length]), 8 + length, {}
    for name, entry in header.items():
        if name != "__metadata__":
            count = math.prod(entry["shape"])
            array = np.frombuffer(data, STORAGE[entry["dtype"]], count, base + entry["data_offsets"][0])
            out[name] = (entry["dtype"], array.reshape(entry["shape"]))
    return out
