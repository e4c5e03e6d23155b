"""Weights as the checkpoint will hold them, with gradients passed straight through.

The values equal those of formats.codecs exactly; check.py compares the two.
"""

import torch


def _straight(w, q):
    return w + (q - w).detach()



def mxfp4(w):
    """[..., K]: groups of 32 along K, scale 2^(floor(log2(amax)) - 2), E2M1 elements."""
    g = w.detach().unflatten(-1, (-1, 32))
    amax = g.abs().amax(-1, keepdim=True)
    shared = torch.where(amax > 0, torch.frexp(amax)[1] - 3, 0)
    scale = torch.ldexp(torch.ones_like(amax), shared)
    x = g / scale
    a = x.abs().clamp(max=6)
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    q = torch.round(a / step) * step  # half to even is also the even code here
    return _straight(w, (torch.copysign(q, x) * scale).flatten(-2))


def fp8(w):
    """[out, in]: one float32 scale a row, row maximum / 448."""
    d = w.detach()
    scale = d.abs().amax(-1, keepdim=True) / 448
    scale = torch.where(scale > 0, scale, 1.0)
    return _straight(w, (d / scale).to(torch.float8_e4m3fn).float() * scale)


def bf16(w):
    return _straight(w, w.detach().bfloat16().float())
