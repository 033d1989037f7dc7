"""A conditional random field as the last layer of a network: digits are told from the noise around them.

A small convolutional network gives each pixel a score for ink and for paper; the layer, belief propagation on the grid
of pixels, makes neighbours agree as far as it has learned to. Both are trained by the same gradient, the network with
the layer and the same network without it, on few pictures with much noise.

Expected output, in half a minute:

    without the layer   pixels right 88.7 %
    with the layer      pixels right 93.3 %   smoothness 0.00 -> 1.15
"""

import torch
from torch import nn

import mrfquant as mq
from mrfquant.data import digits

PICTURES, NOISE, STEPS, SIZE = 200, 1.0, 150, 28
EDGES = mq.grid_edges(SIZE, SIZE)


class Segmenter(nn.Module):
    """Scores of each pixel, and with `crf` marginals of the field that they are the unary terms of."""

    def __init__(self, crf: bool) -> None:
        super().__init__()
        self.scores = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))
        self.smoothness = nn.Parameter(torch.zeros(())) if crf else None

    def forward(self, noisy: torch.Tensor) -> torch.Tensor:
        unary = self.scores(noisy).flatten(2).transpose(1, 2)  # (batch, pixels, labels)
        if self.smoothness is None:
            return unary.softmax(-1)
        return mq.crf_belief_propagation(unary, EDGES, self.smoothness * torch.eye(2), iterations=6)


def pictures(split, seed: int) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[no-untyped-def]
    """Noisy pictures, and which pixels are ink."""
    ink = (split.images[:PICTURES] > 127).squeeze(1)
    noise = torch.randn(ink.shape, generator=torch.Generator().manual_seed(seed))
    return (ink + NOISE * noise)[:, None], ink.flatten(1).long()


def train(crf: bool) -> tuple[float, float]:
    """Train one; return the per cent of test pixels that are right, and the smoothness."""
    torch.manual_seed(0)
    data, model = digits(), Segmenter(crf)
    (noisy, ink), (others, truth) = pictures(data.train, 1), pictures(data.test, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(STEPS):
        batch = torch.randint(PICTURES, (16,))
        chosen = model(noisy[batch]).gather(2, ink[batch][..., None])
        optimizer.zero_grad()
        (-chosen.clamp(min=1e-6).log().mean()).backward()
        optimizer.step()
    with torch.no_grad():
        right = 100 * (model(others).argmax(-1) == truth).float().mean().item()
    return right, 0.0 if model.smoothness is None else model.smoothness.item()


if __name__ == "__main__":
    print(f"without the layer   pixels right {train(False)[0]:.1f} %")
    right, smoothness = train(True)
    print(f"with the layer      pixels right {right:.1f} %   smoothness 0.00 -> {smoothness:.2f}")
