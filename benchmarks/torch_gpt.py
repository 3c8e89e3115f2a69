"""A plain GPT in PyTorch, the reference that a training step is measured against.

Pre-LN, learned positions, tanh GELU, biases, tied embeddings, one product for queries, keys and
values, scaled_dot_product_attention: what a researcher would write today.
"""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        shape = rows, length, self.heads, width // self.heads
        q, k, v = (
            part.view(shape).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, 2)
        )
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocab: int, length: int, width: int, layers: int, heads: int):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


def make_step(model: nn.Module, forward, ids: torch.Tensor, targets: torch.Tensor):
    """A closure that makes one AdamW update, clipped to norm 1, and returns the loss."""
    try:
        tx = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    except RuntimeError:
        tx = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    def step() -> float:
        tx.zero_grad(set_to_none=True)
        logits = forward(ids)
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        tx.step()
        return loss.item()

    return step
