"""A random checkpoint of nano's exact shape and formats, for work that needs no sense in the text.

Every MX group and every FP8 row gets its own magnitude, so that a reader that mixes up
scales gets visibly wrong values.

    python3 -m train_nano.untrained OUT_DIR
"""

import pathlib
import sys

import numpy as np

from .config import NANO
from .export import format_of, shapes, write

SEED = 20


def weights(s=NANO) -> dict:
    rng, out = np.random.default_rng(SEED), {}
    for name, shape in shapes(s).items():
        w = rng.standard_normal(shape)
        kind = format_of(name)
        if name.endswith("norm.weight"):
            w *= 0.1
        elif name.endswith("e_score_correction_bias"):
            w *= 0.05
        elif "embed_tokens" not in name:
            w /= np.sqrt(shape[-1])
        if kind == "MXFP4":
            w = w.reshape(shape[0], -1, 32) * np.exp2(rng.integers(-3, 2, (shape[0], shape[1] // 32, 1)))
        elif kind == "FP8":
            w *= np.exp2(rng.uniform(-2, 1, (shape[0], 1)))
        out[name] = w.reshape(shape).astype(np.float32)
    return out


if __name__ == "__main__":
    print(write(pathlib.Path(sys.argv[1]), NANO, weights()), "bytes in the folder")
