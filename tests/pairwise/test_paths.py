"""The best path through a trellis is the one that enumeration finds, compiled or by torch, with free or pinned ends."""

import itertools

import pytest
import torch

import mrfquant as mq
from mrfquant.pairwise import paths

CASES = [(1, 2, 6), (1, 4, 5), (2, 3, 4), (2, 4, 3), (2, 6, 3), (3, 4, 2), (3, 5, 3), (4, 5, 2)]


def every_path(levels, length):
    """All paths of a length, as states (length, paths)."""
    streams = torch.arange(2 ** (levels.memory + levels.bits * (length - 1)))
    shifts = torch.arange(levels.bits * (length - 1), -1, -levels.bits)
    return streams >> shifts[:, None] & (len(levels) - 1)


def problem(length, chains, seed=0):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(length, chains, generator=random)
    return x, torch.rand(length, chains, generator=random) + 0.1


def cost(levels, states, x, factor):
    return (factor.double() * (x - levels.table[states]).double().square()).sum(0)


def by_compiled(*arguments):
    pytest.importorskip("numba")
    return paths.by_loops(*arguments)


@pytest.mark.parametrize("find", [by_compiled, paths.by_torch])
@pytest.mark.parametrize(("bits", "memory", "length"), CASES)
def test_the_best_path_is_that_of_enumeration(find, bits, memory, length):
    levels, chains = mq.Trellis(bits, memory), 4
    x, factor = problem(length, chains)
    known = every_path(levels, length)
    starts, ends = known[0] >> bits, known[-1] & (levels.shared - 1)
    for first, last in itertools.product((-1, 0, levels.shared - 1), (-1, 1)):
        allowed = ((first < 0) | (starts == first)) & ((last < 0) | (ends == last))
        if not allowed.any():
            continue
        pinned = [torch.full((chains,), end) for end in (first, last)]
        found = find(x, factor, levels.table, bits, *pinned)
        assert levels.follows(found).all()
        for c in range(chains):
            costs = cost(levels, known[:, allowed], x[:, c, None], factor[:, c, None])
            assert (known[:, allowed] == found[:, c, None]).all(0).any()
            assert cost(levels, found[:, c], x[:, c], factor[:, c]) == pytest.approx(costs.min().item(), rel=1e-5)


@pytest.mark.parametrize(("bits", "memory"), [(1, 8), (2, 9), (3, 8), (2, 12)])
def test_compiled_and_torch_find_paths_of_the_same_cost(bits, memory):
    levels = mq.Trellis(bits, memory)
    x, factor = problem(500, 3)
    free = torch.full((3,), -1)
    one, two = (cost(levels, find(x, factor, levels.table, bits, free, free), x, factor)
                for find in (by_compiled, paths.by_torch))  # fmt: skip
    torch.testing.assert_close(one, two, rtol=1e-5, atol=0)


def test_many_weights_do_not_lose_precision():
    levels, (x, factor) = mq.Trellis(2, 6), problem(20_000, 1)
    exact = paths.best_paths(x.double(), factor.double(), levels.table, 2)
    found = paths.best_paths(x, factor, levels.table, 2)
    assert cost(levels, found, x, factor) == pytest.approx(cost(levels, exact, x, factor).item(), rel=1e-6)


@pytest.mark.parametrize(("bits", "memory", "least", "most"), [(2, 6, 0.08, 0.09), (2, 8, 0.072, 0.08),
                                                               (2, 10, 0.069, 0.075), (1, 8, 0.28, 0.30)])  # fmt: skip
def test_the_error_of_normal_numbers_is_below_that_of_the_best_levels(bits, memory, least, most):
    """Rate-distortion theory allows 4^-bits; the best scalar levels leave 0.1175 at 2 bits and 0.363 at 1."""
    levels, (x, _) = mq.Trellis(bits, memory), problem(4096, 8)
    states = paths.best_paths(x, torch.ones_like(x), levels.table, bits)
    assert 4.0**-bits < least < (x - levels.table[states]).square().mean() < most


def test_weights_without_cost_leave_their_labels_to_the_others():
    levels, (x, factor) = mq.Trellis(2, 4), problem(6, 1)
    factor[2:4] = 0
    states = paths.best_paths(x, factor, levels.table, 2)
    known = every_path(levels, 6)
    best = cost(levels, known, x, factor).min().item()
    assert cost(levels, states, x, factor) == pytest.approx(best, rel=1e-5)
