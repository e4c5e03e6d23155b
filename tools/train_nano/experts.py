"""Dense MLP and mixture of experts.

All experts run on all rows as two wide matrix products, and the router's weights, zero for
the experts not chosen, scale the activations between them: with 16 experts of width 256
that is faster than sorting rows by expert. The shared expert is the last of the stack.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .layers import Weight, clamped_swiglu


class DenseMLP(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s, w, std = s, s.dense_width, s.hidden**-0.5
        self.gate_proj = Weight(w, s.hidden, std=std, kind="BF16")
        self.up_proj = Weight(w, s.hidden, std=std, kind="BF16")
        self.down_proj = Weight(s.hidden, w, std=w**-0.5 * (2 * s.layers) ** -0.5, kind="BF16")
        self.activation = clamped_swiglu

    def forward(self, x):
        gate, up = F.linear(x, self.gate_proj(x.dtype)), F.linear(x, self.up_proj(x.dtype))
        return F.linear(self.activation(gate, up, self.s.alpha, self.s.limit).to(x.dtype), self.down_proj(x.dtype))


def weighted_activation(gate, up, weight, alpha, limit):
    """gate, up [N, experts, width]; weight [N, experts]."""
    return (clamped_swiglu(gate, up, alpha, limit) * weight[..., None]).to(gate.dtype)


class MoE(nn.Module):
    def __init__(self, s):
        super().__init__()
        assert s.shared_width == s.expert_width
        self.s, w, count, std = s, s.expert_width, s.experts + 1, s.hidden**-0.5
        self.gate = Weight(count, w, s.hidden, std=std, kind="MXFP4")
        self.up = Weight(count, w, s.hidden, std=std, kind="MXFP4")
        self.down = Weight(count, s.hidden, w, std=w**-0.5 * (2 * s.layers) ** -0.5, kind="MXFP4")
        self.router = Weight(s.experts, s.hidden, std=std, kind="F32")
        self.register_buffer("bias", torch.zeros(s.experts))  # e_score_correction_bias
        self.register_buffer("load", torch.zeros(s.experts))  # rows sent to each expert since the last balance()
        self.activation = weighted_activation

    def route(self, x):
        """Weights [N, experts]: 2.0 * s_e / sum over the chosen, zero elsewhere."""
        s = self.s
        score = torch.sigmoid(x.float() @ self.router(torch.float32).T)
        with torch.no_grad():
            chosen = (score + self.bias).topk(s.top_experts).indices
            mask = torch.zeros_like(score).scatter_(1, chosen, 1.0)
            if self.training:
                self.load += mask.sum(0)
        weight = score * mask
        return s.routed_scale * weight / weight.sum(-1, keepdim=True)

    @torch.no_grad()
    def balance(self, rate):
        """Raise the bias of experts with less than the mean load, lower the others'; no auxiliary loss."""
        self.bias += rate * torch.sign(self.load.mean() - self.load)
        self.bias -= self.bias.mean()
        self.load.zero_()

    def forward(self, x):
        shape, x, s = x.shape, x.flatten(0, -2), self.s
        weight = F.pad(self.route(x), (0, 1), value=1.0)
        gate = F.linear(x, self.gate(x.dtype).flatten(0, 1)).unflatten(-1, (s.experts + 1, -1))
        up = F.linear(x, self.up(x.dtype).flatten(0, 1)).unflatten(-1, (s.experts + 1, -1))
        act = self.activation(gate, up, weight, s.alpha, s.limit)
        down = self.down(x.dtype).transpose(0, 1).flatten(1)  # [hidden, experts * width]
        return F.linear(act.flatten(1), down).view(shape)
