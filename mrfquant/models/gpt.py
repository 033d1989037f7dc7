"""GPT: a decoder of pre-norm blocks that predicts the next token of a text."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from mrfquant.config.settings import Count, Fraction
from mrfquant.errors import BadInput, BadSetting
from mrfquant.models.registry import network

ROTARY_BASE = 10_000.0
Cache = list[tuple[Tensor, Tensor]]  # keys and values of the tokens so far, for each block


@network
class GPT(nn.Module):
    """Token embeddings, blocks of causal attention and a four times as wide MLP, and a head tied to the embeddings.

    Weights start at N(0, 0.02²), those that write to the residual stream divided by the root of their number, as in
    GPT-2. The linear layers have no biases.

    Args:
        shape: (context,): how many tokens a window has.
        classes: how many tokens there are to tell apart.
        layers: blocks.
        width: of the residual stream.
        heads: of attention.
        positions: 'rotary', by turning queries and keys, or 'learned', an embedding of each place.
        dropout: on the embeddings and on what each block adds.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: Count,
        layers: Count = 4,
        width: Count = 128,
        heads: Count = 4,
        positions: Literal["rotary", "learned"] = "rotary",
        dropout: Fraction = 0.0,
    ) -> None:
        super().__init__()
        if len(shape) != 1:
            raise BadInput(f"GPT reads windows of tokens, the data set has inputs of shape {tuple(shape)}")
        if width % (2 * heads):
            raise BadSetting("GPT.width", width, f"a multiple of {2 * heads}, twice the number of heads")
        self.name = f"gpt{layers}x{width}"
        (self.context,) = shape
        self.token = nn.Embedding(classes, width)
        self.position = nn.Embedding(self.context, width) if positions == "learned" else None
        self.dropout = nn.Dropout(dropout)
        rotary = positions == "rotary"
        self.blocks = nn.ModuleList(Decoder(width, heads, rotary, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02 / (2 * layers) ** 0.5 if name.endswith("out.weight") else 0.02)

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Map token numbers (b, t) to logits (b, t, classes).

        Args:
            cache: [] at first; is filled with what later calls, with the tokens that follow, need of these.
        """
        past = cache[0][0].shape[2] if cache else 0
        if past + tokens.shape[1] > self.context:
            raise BadInput(f"{past + tokens.shape[1]} tokens, GPT was built for windows of {self.context} at most")
        x = self.token(tokens)
        if self.position is not None:
            x = x + self.position.weight[past : past + tokens.shape[1]]
        x = self.dropout(x)
        for index, block in enumerate(self.blocks):
            x = block(x, cache, index)
        return functional.linear(self.norm(x), self.token.weight)

    @torch.no_grad()
    def generate(
        self, tokens: Tensor, count: int, temperature: float = 1.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """Continue token numbers (t,) by `count` more, drawn one after the other: (t + count,).

        At the context's end, its later half is read again as the beginning of a new window.
        """
        cache: Cache = []
        fresh = tokens[-self.context :]
        for _ in range(count):
            if cache and cache[0][0].shape[2] == self.context:
                cache, fresh = [], tokens[-(self.context // 2 or 1) :]
            logits = self(fresh[None], cache)[0, -1].float() / temperature
            fresh = torch.multinomial(logits.softmax(0), 1, generator=generator)
            tokens = torch.cat([tokens, fresh])
        return tokens


class Decoder(nn.Module):
    """A block: what attention finds in the tokens before, then an MLP, each added to the stream."""

    def __init__(self, width: int, heads: int, rotary: bool, dropout: float) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, heads, rotary)
        self.mlp = MLP(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, cache: Cache | None, index: int) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), cache, index))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class MLP(nn.Module):
    """Four times as wide within, with GELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into = nn.Linear(width, 4 * width, bias=False)
        self.out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(functional.gelu(self.into(x)))


class Attention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self, width: int, heads: int, rotary: bool) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, cache: Cache | None, index: int) -> Tensor:
        b, t, width = x.shape
        q, k, v = (
            layer(x).view(b, t, self.heads, width // self.heads).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        past = cache[index][0].shape[2] if cache is not None and index < len(cache) else 0
        if self.rotary:
            q, k = rotate(q, past), rotate(k, past)
        if cache is not None:
            if past:
                k, v = torch.cat([cache[index][0], k], 2), torch.cat([cache[index][1], v], 2)
                cache[index] = (k, v)
            else:
                cache.append((k, v))
        # Rows are the new tokens: each sees all of the past and itself.
        mask = None if past == 0 else torch.ones(t, past + t, dtype=torch.bool, device=x.device).tril(past)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.out(y.transpose(1, 2).reshape(b, t, width))


def rotate(x: Tensor, first: int) -> Tensor:
    """Turn the pair (x_i, x_{i+h}) of heads (b, heads, t, 2h) at place p by p / base^(i/h) (Su et al., 2021)."""
    half = x.shape[-1] // 2
    places = torch.arange(first, first + x.shape[2], device=x.device, dtype=torch.float32)
    rates = ROTARY_BASE ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = places[:, None] * rates
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
