"""Causal attention, and block-sparse attention with its indexer.

Up to top_blocks * block tokens every block is selected, so short batches take the plain
causal path and leave the indexer alone. On longer ones the indexer is trained by a
cross-entropy between its block-pooled scores and the block-pooled attention of its own KV
group; its input is detached, so nothing else learns from that loss.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .layers import GemmaNorm, Weight, rotate


class Attention(nn.Module):
    def __init__(self, s, sparse):
        super().__init__()
        self.s, self.sparse = s, sparse
        q, kv, std = s.heads * s.head_dim, s.kv_heads * s.head_dim, s.hidden**-0.5
        self.q_proj = Weight(q, s.hidden, std=std, kind="FP8")
        self.k_proj = Weight(kv, s.hidden, std=std, kind="FP8")
        self.v_proj = Weight(kv, s.hidden, std=std, kind="FP8")
        self.o_proj = Weight(s.hidden, q, std=q**-0.5 * (2 * s.layers) ** -0.5, kind="FP8")
        self.q_norm, self.k_norm = GemmaNorm(s.head_dim, s.eps), GemmaNorm(s.head_dim, s.eps)
        if sparse:
            self.index_q_proj = Weight(s.index_heads * s.index_dim, s.hidden, std=std, kind="FP8")
            self.index_k_proj = Weight(s.index_dim, s.hidden, std=std, kind="FP8")
            self.index_q_norm, self.index_k_norm = GemmaNorm(s.index_dim, s.eps), GemmaNorm(s.index_dim, s.eps)
        self.select = True  # off: attend to every block, while the indexer is still learning
        self.row_weight = None  # [B, T] weights of the indexer's loss; None: no such loss
        self.index_loss = None
        self.blocks = None  # bool [B, index heads, T, blocks] of the last long forward

    def _heads(self, x, proj, norm, heads, table, dtype):
        y = F.linear(x, proj(dtype)).unflatten(-1, (heads, -1))
        return rotate(norm(y, dtype), table).transpose(1, 2)

    def forward(self, x, table):
        """x [B, T, hidden], already normed; returns [B, T, hidden]."""
        s, dtype = self.s, x.dtype
        q = self._heads(x, self.q_proj, self.q_norm, s.heads, table, dtype)
        k = self._heads(x, self.k_proj, self.k_norm, s.kv_heads, table, dtype)
        v = F.linear(x, self.v_proj(dtype)).unflatten(-1, (s.kv_heads, -1)).transpose(1, 2)
        k, v = (t.repeat_interleave(s.heads // s.kv_heads, 1) for t in (k, v))
        self.index_loss = None
        if not self.sparse or x.shape[1] <= s.top_blocks * s.block:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = self._sparse(x, q, k, v, table)
        return F.linear(y.transpose(1, 2).flatten(2), self.o_proj(dtype))

    def _block_scores(self, x, table):
        """float32 [B, index heads, T, blocks]; -inf for blocks that lie in the future."""
        s, t, dtype = self.s, x.shape[1], x.dtype
        iq = self._heads(x, self.index_q_proj, self.index_q_norm, s.index_heads, table, dtype)
        ik = self._heads(x, self.index_k_proj, self.index_k_norm, 1, table, dtype)
        score = (iq.float() @ ik.float().transpose(-1, -2)).masked_fill(_future(t, x.device), -torch.inf)
        score = F.pad(score, (0, -t % s.block), value=-torch.inf)
        return score.unflatten(-1, (-1, s.block)).amax(-1)

    def _sparse(self, x, q, k, v, table):
        s, t = self.s, x.shape[1]
        score = self._block_scores(x.detach(), table)
        own = torch.arange(t, device=x.device) // s.block  # the block of each row
        block = torch.arange(score.shape[-1], device=x.device)
        local = (block > own[:, None] - s.local_blocks) & (block <= own[:, None])
        with torch.no_grad():
            chosen = score.masked_fill(local, torch.inf).topk(min(s.top_blocks, len(block))).indices
            keep = torch.zeros_like(score, dtype=torch.bool).scatter_(-1, chosen, True) & (block <= own[:, None])
            self.blocks = keep
        if self.row_weight is not None:
            self.index_loss = self._index_loss(score, q, k, local, own)
        if not self.select:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mask = keep.repeat_interleave(s.block, -1)[..., :t] & ~_future(t, x.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.repeat_interleave(s.heads // s.index_heads, 1))

    def _index_loss(self, score, q, k, local, own):
        """Cross-entropy over the earlier, not forced blocks, of rows that have at least two of them."""
        s, t = self.s, q.shape[2]
        with torch.no_grad():
            logit = (q @ k.transpose(-1, -2)).float() * s.head_dim**-0.5
            p = logit.masked_fill_(_future(t, q.device), -torch.inf).softmax(-1)
            p = F.pad(p, (0, -t % s.block)).unflatten(-1, (-1, s.block)).sum(-1)
            p = p.unflatten(1, (s.index_heads, -1)).mean(2).masked_fill(local, 0)
            p = p / p.sum(-1, keepdim=True).clamp(min=1e-9)
        log_q = (score * s.index_dim**-0.5).masked_fill(local, -torch.inf)
        rows = self.row_weight * (own >= s.local_blocks + 1)
        log_q = log_q.masked_fill((own < s.local_blocks)[:, None], 0).log_softmax(-1)
        loss = -(p * log_q.masked_fill(p == 0, 0)).sum(-1).mean(1)  # mean over index heads: [B, T]
        return (loss * rows).sum() / rows.sum().clamp(min=1e-6)


def _future(t, device):
    return torch.ones(t, t, dtype=torch.bool, device=device).triu(1)
