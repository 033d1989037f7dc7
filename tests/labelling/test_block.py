"""A block's weights and labels agree with plain sums and searches."""

import numpy as np
import pytest
import torch

from mrfquant.labelling import Block, LevelSet
from mrfquant.labelling.scales import RunScales

RANDOM = np.random.default_rng(0)
PAIRS = [(-1, 1), (0, 1), (-2, 2), (-0.3, 1.1), (3, 4), *(tuple(RANDOM.normal(size=2)) for _ in range(3))]
MORE = [(-1, 0, 1), (-2, -1, 1, 2), (0, 1, 4), *(tuple(RANDOM.normal(size=d)) for d in (3, 4, 7))]


def block(levels, m, scale=False, dtype=torch.float64, sizes=()):
    """A block in the middle of a longer vector, as in a labelling."""
    w, g = torch.full((m + 7,), 99.0, dtype=dtype), torch.zeros(m + 7, dtype=dtype)
    scales = RunScales(torch.linspace(0.3, 2.0, m, dtype=dtype), torch.arange(4, m + 4), 3, m) if scale else None
    return Block(LevelSet(levels), 3, w[3 : m + 3], g[3 : m + 3], scales, parameter_sizes=sizes)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("levels", PAIRS + MORE)
def test_written_labels_are_exactly_levels_times_scale(levels, dtype, scale):
    b = block(levels, 40, scale, dtype)
    labels = torch.arange(40, dtype=torch.int32) % b.d
    b.write_labels(labels)
    q = torch.tensor(sorted(levels), dtype=dtype)
    expected = torch.stack([q[label] if b.scale is None else q[label] * b.scale[j] for j, label in enumerate(labels)])
    assert torch.equal(b.w, expected)


@pytest.mark.parametrize("levels", [*PAIRS, *MORE, (-1, -0.25, 0.5, 0.75)])
def test_the_nearest_label_is_the_lower_of_the_closest_levels(levels):
    q = np.sort(np.array(levels, dtype=np.float64))
    values = np.concatenate([np.random.default_rng(2).normal(scale=3, size=200), q, [-1e3, 1e3]])
    if (q * 8 == (q * 8).round()).all():  # ties that arithmetic keeps exact
        values = np.concatenate([values, (q[1:] + q[:-1]) / 2])
    truth = np.abs(values[:, None] - q).argmin(1)  # the first of the smallest
    nearest = block(levels, 1).nearest(torch.as_tensor(values))
    assert nearest.tolist() == truth.tolist()
    assert nearest.dtype == torch.int32


def test_a_narrow_block_is_a_view_of_some_of_the_weights():
    b = block((-1, 0, 1), 20, True, sizes=(15, 5))
    part = b.narrow(8, 14)  # the block begins at 3
    part.w.fill_(7.0)
    assert (part.start, part.m, part.d, part.parameter_sizes) == (8, 6, 3, (6,))
    assert (b.w == 7).nonzero().flatten().tolist() == list(range(5, 11))
    assert torch.equal(part.scale, b.scale[5:11])
    part.apply_scale()
    assert torch.equal(b.w[5:11], 7 * b.scale[5:11])
    assert part.unscaled_weights().numpy() == pytest.approx(np.full(6, 7.0))


@pytest.mark.parametrize("sizes", [(), (4, 0, 2)])
def test_what_parameters_have_is_repeated_for_their_weights(sizes):
    b = block((-1, 1), 6, sizes=sizes)
    values = torch.arange(2 * max(1, len(sizes))).view(2, -1)
    expected = [[row[i] for i, size in enumerate(sizes or (6,)) for _ in range(size)] for row in values.tolist()]
    assert b.repeat_per_weight(values).tolist() == expected
