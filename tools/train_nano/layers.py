"""The parts of the model that every layer shares: weights, norm, rotary embedding, activation."""

import torch
import torch.nn.functional as F
from torch import nn

from . import fake_quant


class Weight(nn.Module):
    """A float32 master weight, seen as its stored format when `quantise` is on, in dtype `compute`."""

    def __init__(self, *shape, std, kind):
        super().__init__()
        self.master = nn.Parameter(torch.randn(*shape) * std)
        self.view_as = {"MXFP4": fake_quant.mxfp4, "FP8": fake_quant.fp8, "BF16": fake_quant.bf16}.get(kind)
        self.quantise = False

    def forward(self, compute):
        w = self.master
        if self.quantise and self.view_as:
            w = self.view_as(w)
        return w.to(compute)


class GemmaNorm(nn.Module):
    """x * rsqrt(mean(x^2) + eps) * (1 + w), in float32, rounded once to `compute`."""

    def __init__(self, n, eps):
        super().__init__()
        self.weight, self.eps = Weight(n, std=0.0, kind="BF16"), eps

    def forward(self, x, compute):
        return F.rms_norm(x.float(), x.shape[-1:], 1 + self.weight(torch.float32), self.eps).to(compute)


def rotary_table(positions, rotary, theta):
    """cos, sin [T, rotary/2] in float32."""
    half = torch.arange(rotary // 2, device=positions.device, dtype=torch.float32)
    angle = positions[:, None].float() * theta ** (-half / (rotary // 2))
    return angle.cos(), angle.sin()


def rotate(x, table):
    """x [B, T, heads, dim]: the first `rotary` dims as halves (i, i + rotary/2), the rest unchanged."""
    cos, sin = (t[None, :, None] for t in table)
    half = cos.shape[-1]
    a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


def clamped_swiglu(gate, up, alpha, limit):
    gate, up = gate.float().clamp(max=limit), up.float().clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)
