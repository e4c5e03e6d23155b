"""Causal attention, and block-sparse attention with its indexer.

Up to top_blocks * block tokens every block is selected, so short batches take the plain
causal path and leave the indexer alone. On longer ones the indexer is trained by the divergence of
its block-pooled scores from the block-pooled attention of its own KV group; its input is
detached, so nothing else learns from that loss.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .layers import GemmaNorm, Weight, rotate

INDEX_ROWS = 256  # rows of a sequence that the indexer's loss looks at

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
        self.top_blocks = s.top_blocks
        self.select = True  # off: attend to every block, while the indexer is still learning
        self.row_weight = None  # [B, T] weights of the indexer's loss; None: no such loss
        self.index_loss = None
        self.blocks = None  # bool [B, index heads, T, blocks] of the last long forward
        self.measure = False  # keep `mass`: the share of the heads' attention inside the selected blocks, [B, T]
        self.mass = None

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

    def _index_heads(self, x, table):
        """Index queries [B, index heads, T, dim] and keys [B, 1, T, dim]."""
        iq = self._heads(x, self.index_q_proj, self.index_q_norm, self.s.index_heads, table, x.dtype)
        return iq, self._heads(x, self.index_k_proj, self.index_k_norm, 1, table, x.dtype)

    def _sparse(self, x, q, k, v, table):
        s, t = self.s, x.shape[1]
        iq, ik = self._index_heads(x.detach(), table)
        own = torch.arange(t, device=x.device) // s.block  # the block of each row
        if self.row_weight is not None:
            self.index_loss = self._index_loss(iq, ik, q, k, own)
        if not (self.select or self.measure):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        with torch.no_grad():
            score = _block_max(_scores(iq, ik), s.block)
            block = torch.arange(score.shape[-1], device=x.device)
            future = block > own[:, None]
            score = score.masked_fill((block > own[:, None] - s.local_blocks) & ~future, torch.inf)
            score = score.masked_fill(future, -torch.inf)
            chosen = score.topk(min(self.top_blocks, len(block))).indices
            keep = torch.zeros_like(score, dtype=torch.bool).scatter_(-1, chosen, True) & ~future
            self.blocks = keep
            if self.measure:
                p = self._pooled(q, k, torch.arange(t, device=x.device).expand(len(q), -1))
                self.mass = (p * keep).sum(-1).mean(1)  # [B, T]
        if not self.select:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mask = keep.repeat_interleave(s.block, -1)[..., :t] & ~_future(t, x.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.repeat_interleave(s.heads // s.index_heads, 1))

    def _pooled(self, q, k, rows):
        """Attention of the chosen rows [B, R], summed over blocks, mean of the KV group: [B, index heads, R, blocks]."""
        s, t = self.s, k.shape[2]
        logit = (_rows(q, rows) @ k.transpose(-1, -2)).float() * s.head_dim**-0.5
        late = torch.arange(t, device=q.device) > rows[..., None]
        p = F.pad(logit.masked_fill(late[:, None], -torch.inf).softmax(-1), (0, -t % s.block))
        return p.unflatten(-1, (-1, s.block)).sum(-1).unflatten(1, (s.index_heads, -1)).mean(2)

    def _index_loss(self, iq, ik, q, k, own):
        """KL(pooled attention || softmax of block scores) over the earlier, not forced blocks.

        Of each sequence, up to INDEX_ROWS rows of the largest weight (drawn among equals) that have
        at least two such blocks.
        """
        s = self.s
        ahead = (own - s.local_blocks).clamp(min=0)
        weight = self.row_weight * (ahead >= 1)
        rows = (weight + 1e-3 * torch.rand_like(weight)).topk(min(INDEX_ROWS, weight.shape[1])).indices
        weight = weight.gather(1, rows)
        with torch.no_grad():
            p = self._pooled(q, k, rows)
            block = torch.arange(p.shape[-1], device=q.device)
            off = (block > ahead[rows][..., None])[:, None]  # forced or future
            p = p.masked_fill(off, 0)
            p = p / p.sum(-1, keepdim=True).clamp(min=1e-9)
        score = _block_max(_scores(_rows(iq, rows), ik), s.block) * s.index_dim**-0.5
        log_q = score.masked_fill(off, -torch.inf).log_softmax(-1)
        loss = (torch.xlogy(p, p) - p * log_q.masked_fill(p == 0, 0)).sum(-1).mean(1)  # [B, R]
        return (loss * weight).sum() / weight.sum().clamp(min=1e-6)


def _rows(x, rows):
    """x [B, H, T, D] at rows [B, R]."""
    return x.gather(2, rows[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def _scores(iq, ik):
    return iq.float() @ ik.float().transpose(-1, -2)


def _block_max(score, block):
    """[..., T] to [..., blocks]. A block that reaches past a row has no meaning: it is forced or future."""
    return F.pad(score, (0, -score.shape[-1] % block), value=-torch.inf).unflatten(-1, (-1, block)).amax(-1)


def _future(t, device):
    return torch.ones(t, t, dtype=torch.bool, device=device).triu(1)
