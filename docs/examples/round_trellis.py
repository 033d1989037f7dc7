"""Two bits a weight as a path through a trellis: a smaller error than any four levels can have.

Expected output, in seconds (the errors are shares of the variance; theory allows 0.0625 at two bits):

    four levels 0.1220, a path with memory 8 0.0772, with memory 12 0.0727
    2.16 bits a weight, scales and all
"""

import torch
from torch import nn

import mrfquant as mq
from mrfquant.pairwise.paths import best_paths

x = torch.randn(4096, 4, generator=torch.Generator().manual_seed(0))
even = mq.uniform(2, limit=1.4935)  # the best even levels for normal numbers
errors = [(x[:, :, None] - torch.tensor(even.values)).square().amin(-1).mean()]
for memory in (8, 12):
    levels = mq.Trellis(bits=2, memory=memory)
    states = best_paths(x, torch.ones_like(x), levels.table, levels.bits)
    errors.append((x - levels.table[states]).square().mean())
print("four levels {:.4f}, a path with memory 8 {:.4f}, with memory 12 {:.4f}".format(*errors))

model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 128))
result = mq.round_network(model, [torch.randn(1024, 256)], mq.Trellis(bits=2, memory=12), progress=False)
result.save("trellis.safetensors")
packed = mq.load("trellis.safetensors", model).packed_network.parameters.values()
print(f"{8 * sum(p.nbytes for p in packed) / sum(p.numel for p in packed):.2f} bits a weight, scales and all")
