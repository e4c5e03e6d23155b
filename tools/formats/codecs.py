"""BF16, E4M3, MXFP4 and MXFP8 encoders and decoders.

Encoding rounds to nearest, ties to the even code, and saturates. Arrays are float32 on
the decoded side.
"""

import numpy as np

GROUP = 32  # elements that share one E8M0 scale


def to_bf16(x):
    """float32 -> uint16 bit patterns, round to nearest even (finite input)."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _e4m3_positive():
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))


E4M3 = _e4m3_positive().astype(np.float32)  # codes 0..126; 127 is NaN
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def _nearest_code(magnitude, table):
    """Index of the nearest table entry; a tie goes to the even index; above the last, the last."""
    middle = (table[1:] + table[:-1]) / 2  # exact in float32 for both tables
    low = np.searchsorted(middle, magnitude, side="left")  # ties: the lower index
    tied = (low < len(middle)) & (np.take(middle, np.minimum(low, len(middle) - 1)) == magnitude)
    return np.where(tied & (low % 2 == 1), low + 1, low).astype(np.uint8)


def to_e4m3(x):
    return _nearest_code(np.abs(x), E4M3) | (np.signbit(x).astype(np.uint8) << 7)


def from_e4m3(code):
    value = E4M3[np.minimum(code & 127, 126)]
    return np.where(code & 128, -value, value).astype(np.float32)


def to_e2m1(x):
    return _nearest_code(np.abs(x), E2M1) | (np.signbit(x).astype(np.uint8) << 3)


def from_e2m1(code):
    value = E2M1[code & 7]
    return np.where(code & 8, -value, value).astype(np.float32)


def _mx_scale(w, largest_exponent):
    """OCP rule: E8M0 byte [out, in/32] with exponent floor(log2(amax)) - largest_exponent; a zero group gets 1.0."""
    amax = np.abs(w.reshape(w.shape[0], -1, GROUP)).max(-1)
    _, exponent = np.frexp(amax)  # amax = m * 2^exponent, m in [0.5, 1)
    shared = np.where(amax > 0, exponent - 1 - largest_exponent, 0)
    return (np.clip(shared, -127, 127) + 127).astype(np.uint8)


def e8m0_value(scale):
    return np.ldexp(np.float32(1), scale.astype(np.int32) - 127).astype(np.float32)


def to_mxfp4(w):
    """[out, in] -> packed [out, in/2] (element 2k in the low nibble), E8M0 scales [out, in/32]."""
    scale = _mx_scale(w, 2)
    code = to_e2m1(w / np.repeat(e8m0_value(scale), GROUP, axis=1))
    return code[:, 0::2] | (code[:, 1::2] << 4), scale


def from_mxfp4(packed, scale):
    code = np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)
    return from_e2m1(code) * np.repeat(e8m0_value(scale), GROUP, axis=1)


def to_mxfp8(w):
    """[out, in] -> E4M3 codes [out, in], E8M0 scales [out, in/32]."""
    scale = _mx_scale(w, 8)
    return to_e4m3(w / np.repeat(e8m0_value(scale), GROUP, axis=1)), scale


def from_mxfp8(code, scale):
    return from_e4m3(code) * np.repeat(e8m0_value(scale), GROUP, axis=1)


def to_fp8_per_channel(w):
    """[out, in] -> E4M3 codes [out, in], float32 scales [out, 1] = row maximum / 448."""
    scale = (np.abs(w).max(1, keepdims=True) / np.float32(448)).astype(np.float32)
    scale = np.where(scale > 0, scale, np.float32(1))
    return to_e4m3((w / scale).astype(np.float32)), scale


def from_fp8_per_channel(code, scale):
    return from_e4m3(code) * scale
