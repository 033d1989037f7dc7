"""The least energy: bounds that hold at every moment, proofs, cuts and moves; against enumeration and peers."""

import functools
import itertools
import math
import time

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from mrfquant.errors import BadInput
from mrfquant.kernels.max_flow import SOURCE, max_flow
from mrfquant.mrf import (
    ICM,
    AlphaExpansion,
    Annealing,
    BeliefPropagation,
    BranchAndBound,
    Contradiction,
    DualAscent,
    Enumeration,
    FactorGraph,
    IteratedDescent,
    JunctionTree,
    LocalSearch,
    Portfolio,
    Toulbar2,
    TreeReweighted,
    ising,
    portfolio,
    potts,
    solve,
    toulbar2,
)
from mrfquant.mrf.arrays import arrays_of, possible_labels
from mrfquant.mrf.from_layer import quadratic_field
from mrfquant.mrf.graph_cut import suits_expansion
from mrfquant.mrf.quadratic import nearest_plane, quadratic_form
from mrfquant.mrf.solving import restrict


@st.composite
def fields(draw, arity=3):
    """Small fields of any structure; one labelling is always allowed."""
    cards = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    allowed = [draw(st.integers(0, c - 1)) for c in cards]
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    factors = []
    for _ in range(draw(st.integers(0, 9))):
        scope = draw(st.permutations(range(len(cards))))[: draw(st.integers(1, min(arity, len(cards))))]
        table = torch.randn([cards[v] for v in scope], generator=random, dtype=torch.float64).mul_(2)
        forbidden = torch.rand(table.shape, generator=random) < draw(st.sampled_from([0.0, 0.0, 0.3, 0.6]))
        forbidden[tuple(allowed[v] for v in scope)] = False
        factors.append((scope, table.masked_fill_(forbidden, -math.inf)))
    return FactorGraph(cards, factors, constant=0.3)


def truth(graph):
    labels = torch.tensor(list(itertools.product(*(range(c) for c in graph.cardinalities.tolist()))))
    return labels, graph.score(labels)


@given(fields())
@settings(max_examples=150, deadline=None)
def test_the_dual_bound_holds_and_rises_in_every_iteration(graph):
    optimum = -truth(graph)[1].max().item()
    bounds = [row.bound for row in DualAscent(graph).run(20, -1.0, trace=True).trace]
    assert max(bounds) <= optimum + 1e-9
    assert bounds == sorted(bounds)


@given(fields(), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_branch_and_bound_proves_the_optimum(graph, sweeps):
    result = BranchAndBound(graph, budget=20, sweeps=sweeps).run(200)
    assert result.optimal
    assert result.energy == pytest.approx(-truth(graph)[1].max().item(), abs=1e-9)


@given(fields())
@settings(max_examples=100, deadline=None)
def test_the_upper_bound_on_log_z_holds_in_every_iteration(graph):
    """At any messages: without damping they may be far from a fixed point."""
    log_z = truth(graph)[1].logsumexp(0).item()
    solver = TreeReweighted(graph, damping=0.0, noise=1.0)
    assert -solver.run(15, -1.0, trace=True).trace[0].free_energy >= log_z - 1e-9
    assert solver.log_z() >= log_z - 1e-9


@given(fields())
@settings(max_examples=60, deadline=None)
def test_messages_stay_finite_where_labels_are_possible(graph):
    solver = BeliefPropagation(graph, noise=0.1)
    solver.run(30, -1.0)
    marginals = solver.marginals()
    assert marginals.isfinite().all()
    exact = Enumeration(graph).marginals()
    assert (marginals[~possible_labels(graph)] == 0).all()
    assert (exact[~possible_labels(graph)] == 0).all()


@given(fields())
@settings(max_examples=60, deadline=None)
def test_pruned_labels_change_nothing(graph):
    small, places = restrict(graph, possible_labels(graph))
    (_, scores), (_, few) = truth(graph), truth(small)
    assert few.logsumexp(0).item() == pytest.approx(scores.logsumexp(0).item(), abs=1e-9)
    assert torch.allclose(Enumeration(graph).marginals()[places], Enumeration(small).marginals(), atol=1e-9)
    result = solve(graph, Enumeration)
    assert torch.allclose(result.marginals, Enumeration(graph).marginals(), atol=1e-9)
    assert result.energy == pytest.approx(-scores.max().item(), abs=1e-9)


@given(st.integers(2, 8), st.floats(0, 1), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_the_maximum_flow_is_scipys(nodes, density, seed):
    rng = np.random.default_rng(seed)
    pairs = [(a, b) for a, b in itertools.combinations(range(nodes), 2) if rng.random() < density]
    there, back = rng.integers(0, 9, len(pairs)), rng.integers(0, 9, len(pairs))
    terminal = rng.integers(-9, 10, nodes)
    dense = np.zeros((nodes + 2, nodes + 2), np.int32)
    for (a, b), c, d in zip(pairs, there, back, strict=True):
        dense[a, b], dense[b, a] = c, d
    dense[nodes, :nodes], dense[:nodes, nodes + 1] = np.maximum(terminal, 0), np.maximum(-terminal, 0)
    both = [(a, b, c, d) for (a, b), c, d in zip(pairs, there, back, strict=True)]
    arcs = sorted([(a, b, c) for a, b, c, _ in both] + [(b, a, d) for a, b, _, d in both])
    place = {(a, b): i for i, (a, b, _) in enumerate(arcs)}
    first = np.array([sum(a < i for a, _, _ in arcs) for i in range(nodes + 1)])
    head = np.array([b for _, b, _ in arcs], np.int64)
    sister = np.array([place[b, a] for a, b, _ in arcs], np.int64)
    rest, tree = np.array([float(c) for _, _, c in arcs]), np.zeros(nodes, np.int64)
    flow = max_flow(first, head, sister, rest, terminal.astype(float), tree)
    assert flow == maximum_flow(csr_array(dense), nodes, nodes + 1).flow_value
    source = np.append(tree == SOURCE, [True, False])
    assert dense[np.ix_(source, ~source)].sum() == flow  # the least cut


def test_two_labels_and_attraction_are_solved_by_one_cut():
    for seed in range(5):
        random = torch.Generator().manual_seed(seed)
        grid = nx.grid_2d_graph(3, 4)
        coupling = torch.rand(grid.number_of_edges(), generator=random)
        graph = ising(grid, torch.randn(12, generator=random), coupling)
        result = AlphaExpansion(graph).run()
        assert result.optimal
        assert result.energy == pytest.approx(Enumeration(graph).run().energy, abs=1e-9)


def test_expansion_moves_end_where_no_move_helps():
    random = torch.Generator().manual_seed(0)
    graph = potts(nx.grid_2d_graph(3, 3), torch.randn(9, 3, generator=random, dtype=torch.float64), 0.7)
    result = AlphaExpansion(graph).run()
    for alpha in range(3):
        for moved in itertools.product([False, True], repeat=9):
            other = torch.where(torch.tensor(moved), alpha, result.labels)
            assert graph.energy(other).item() >= result.energy - 1e-9


def test_expansion_refuses_larger_factors():
    with pytest.raises(BadInput, match="at most two variables, one has 3"):
        AlphaExpansion(FactorGraph([2] * 3, [([0, 1, 2], torch.zeros(2, 2, 2))]))


def test_a_contradiction_is_found():
    different = torch.tensor([[-math.inf, 0.0], [0.0, -math.inf]])
    graph = FactorGraph([2, 2, 2], [(scope, different) for scope in [(0, 1), (1, 2), (0, 2)]])
    with pytest.raises(Contradiction):
        BranchAndBound(graph).run(50)


def hard_field(nodes, seed):
    """A chain of copies with noise: nearly all labellings are forbidden."""
    random = torch.Generator().manual_seed(seed)
    rule = torch.full((3, 3, 3), -math.inf, dtype=torch.float64)
    for a, b in itertools.product(range(3), repeat=2):
        rule[a, b, (a + b) % 3] = torch.randn(1, generator=random).item()
    scopes = [[*torch.randperm(v, generator=random)[:2].tolist(), v] for v in range(2, nodes)]
    unary = [([v], torch.randn(3, generator=random, dtype=torch.float64)) for v in range(nodes)]
    return FactorGraph([3] * nodes, [*unary, *((scope, rule) for scope in scopes)])


def test_local_search_and_the_portfolio_are_not_worse_than_what_they_contain():
    for seed in range(3):
        graph = hard_field(12, seed)
        others = [ICM(graph, seed).run().energy, BeliefPropagation(graph, seed, mode="max", damping=0.5).run().energy]
        for part in (LocalSearch, Portfolio):
            assert part(graph, seed).run(40).energy <= min(others) + 1e-9
        assert Portfolio(graph).run(40).optimal


def test_mean_field_bounds_are_finite_under_hard_constraints():
    from mrfquant.mrf import Relaxation, SequentialMeanField

    graph = hard_field(9, 0)
    log_z = truth(graph)[1].logsumexp(0).item()
    result = SequentialMeanField(graph).run(trace=True)
    assert -math.inf < result.log_z <= log_z
    free = [row.free_energy for row in result.trace]
    assert free == sorted(free, reverse=True)
    assert Relaxation(graph, start=result.marginals).run(20).log_z <= log_z


@pytest.mark.parametrize("part", [LocalSearch, Portfolio, BranchAndBound, DualAscent, AlphaExpansion])
def test_time_limits_hold_inside_an_iteration(part):
    random = torch.Generator().manual_seed(0)
    grid = nx.grid_2d_graph(30, 30)
    graph = potts(grid, torch.randn(900, 4, generator=random), torch.randn(grid.number_of_edges(), generator=random))
    part(graph).run(10**6, -1.0, seconds=0.3)  # compiled
    solver, begun = part(graph), time.perf_counter()
    result = solver.run(10**6, -1.0, seconds=0.3)
    assert result.reason == "time"
    assert time.perf_counter() - begun < 2


@pytest.mark.parametrize("shape", ["chain", "dense"])
def test_time_limits_hold_for_large_tables(shape):
    """The tables have 15 to 30 million entries; those of the chain are one in memory."""
    if shape == "chain":
        steps = torch.arange(1000.0)
        table = -(steps[:, None] - steps).abs().clamp(max=50)[..., None] / 10
        graph = chain(30, 1000, table.expand(-1, -1, 29))
    else:
        pairs = torch.combinations(torch.arange(260))
        tables = torch.eye(21)[..., None] * torch.rand(len(pairs))
        unary = (torch.arange(260)[:, None], 3 * torch.randn(21, 260))
        graph = FactorGraph([21] * 260, groups=[unary, (pairs, tables)])
    solve(graph, Portfolio, seconds=0.5)  # compiled
    began = time.perf_counter()
    result = solve(graph, Portfolio, seconds=2.0, iterations=10**6)
    assert time.perf_counter() - began < 5.0  # on a machine that does other things, too
    assert result.energy < graph.energy(graph.argmax(graph.unary())).item() - 1


def test_the_portfolio_seeks_no_proof_of_larger_fields_whose_gap_is_wide():
    spins = FactorGraph([2] * 300, groups=[(torch.tensor([[0, 1]]), torch.eye(2)[..., None])])
    for field, bound, hopeless in ((spins, -120.0, False), (spins, -140.0, True), (hard_field(200, 0), -140.0, False)):
        solver = Portfolio(field)
        solver.energy, solver._bound = -100.0, bound
        assert solver._proof_is_hopeless() == hopeless


def test_where_arrays_are_dear_a_junction_tree_comes_first(monkeypatch):
    monkeypatch.setattr(portfolio, "SECONDS_PER_ENTRY", 1e-3)
    random = torch.Generator().manual_seed(0)
    graph = chain(5, 20, torch.randn(20, 20, 4, generator=random))
    assert Portfolio(graph).run(10, seconds=10.0).optimal
    assert graph.compiled is None


def chain(nodes, labels, tables):
    random = torch.Generator().manual_seed(0)
    edges = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)], 1)
    unary = (torch.arange(nodes)[:, None], torch.randn(labels, nodes, generator=random))
    return FactorGraph([labels] * nodes, groups=[unary, (edges, tables)])


def test_a_table_that_factors_share_is_stored_once_by_all():
    table = -(torch.arange(50.0)[:, None] - torch.arange(50.0)).abs()[..., None]
    shared, dense = (chain(40, 50, t) for t in (table.expand(-1, -1, 39), table.repeat(1, 1, 39)))
    for graph in (shared, shared.condition({3: 0})[0], shared.to(torch.float32), shared.without_hard_constraints()):
        assert (
            max(group.tables.untyped_storage().nbytes() for group in graph.couplings if len(group.shape) > 1) <= 20000
        )
    assert arrays_of(shared).layout.values.size == 2500
    assert arrays_of(chain(500, 50, table.repeat(1, 1, 499))).layout.values.size == 2500  # found to be equal
    assert JunctionTree(shared).log_z() == pytest.approx(JunctionTree(dense).log_z())
    for part in (DualAscent, AlphaExpansion, Annealing, functools.partial(BeliefPropagation, mode="max")):
        one, two = (part(graph).run(5) for graph in (shared, dense))
        assert torch.equal(one.labels, two.labels), part
        assert one.energy == pytest.approx(two.energy)


@given(fields(), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_annealing_ends_where_no_variable_can_improve_alone(graph, seed):
    solver = Annealing(graph, seed, sweeps=5)
    assert solver.run(3, -1.0).energy == graph.energy(solver.labels()).item()
    soft = graph.without_hard_constraints(graph.widest)
    for v, c in enumerate(graph.cardinalities.tolist()):
        for label in range(c):
            other = torch.tensor(solver._present).clone()
            other[v] = label
            assert soft.energy(other).item() >= soft.energy(torch.tensor(solver._present)).item() - 1e-9


def test_annealing_finds_the_ground_state_of_a_spin_glass():
    grid = nx.convert_node_labels_to_integers(nx.grid_graph((4, 4, 4), periodic=True))
    signs = torch.randint(0, 2, (grid.number_of_edges(),), generator=torch.Generator().manual_seed(1)) * 2.0 - 1
    gauge = torch.randint(0, 2, (64,), generator=torch.Generator().manual_seed(2)) * 2.0 - 1
    ends = torch.tensor(list(grid.edges()))
    hidden = ising(grid, 0.0, gauge[ends[:, 0]] * gauge[ends[:, 1]])  # no frustration: all couplings can be content
    assert Annealing(hidden).run(20, -1.0).energy == -grid.number_of_edges()
    frustrated = ising(grid, 0.0, signs)
    assert len({Annealing(frustrated, seed, sweeps=400).run(9, -1.0).energy for seed in range(3)}) == 1


def stiff_field(nodes, labels, seed=0):
    """Weights of few levels behind inputs that hang together: a single change costs more than good answers differ."""
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(4 * nodes, 3, generator=random) @ torch.randn(3, nodes, generator=random)
    inputs += 0.1 * torch.randn(4 * nodes, nodes, generator=random)
    levels = torch.linspace(-1, 1, labels)[:, None].expand(-1, nodes)
    return quadratic_field(inputs.t() @ inputs / nodes, 0.5 * torch.randn(nodes, generator=random), levels)


def test_kicks_find_the_optimum_of_stiff_fields():
    for seed in range(3):
        graph = stiff_field(8, 4, seed)
        optimum = Enumeration(graph).run().energy
        assert ICM(graph, seed).run().energy > optimum + 1e-9
        assert IteratedDescent(graph, seed).run(20, -1.0).energy == pytest.approx(optimum, abs=1e-9)


@given(fields(), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_kicks_leave_the_costs_as_they_are_of_the_labels(graph, seed):
    """Also after those that were undone."""
    solver = IteratedDescent(graph, seed)
    solver.run(1, -1.0)
    kept = solver._local.copy()
    solver._begin(torch.tensor(solver._present))
    assert np.allclose(kept, solver._local, atol=1e-9)


def test_expansion_suits_metrics_of_pairs_only():
    steps = torch.arange(5.0)
    linear = (steps[:, None] - steps).abs().clamp(max=2)[..., None]
    assert suits_expansion(chain(4, 5, -linear.repeat(1, 1, 3)))
    assert not suits_expansion(chain(4, 5, linear.repeat(1, 1, 3)))
    assert not suits_expansion(hard_field(5, 0))


needs_toulbar2 = pytest.mark.skipif(not toulbar2.available(), reason="needs pytoulbar2")


@needs_toulbar2
@given(fields())
@settings(max_examples=10, deadline=None)
def test_toulbar2_proves_the_optimum(graph):
    result = Toulbar2(graph).run(1)
    assert type(result.bound) is float
    assert result.energy == pytest.approx(-truth(graph)[1].max().item(), abs=1e-9)
    assert result.optimal


@needs_toulbar2
def test_the_portfolio_takes_the_proof_of_toulbar2(monkeypatch):
    monkeypatch.setattr(portfolio, "TREE_WIDTH", 0.5)  # no junction tree
    graph = hard_field(40, 0)
    result = Portfolio(graph).run(10**6, seconds=20)
    assert result.optimal
    assert result.energy == pytest.approx(JunctionTree(graph).run().energy)


@needs_toulbar2
def test_toulbar2_keeps_the_time_and_ends_its_process():
    random = torch.Generator().manual_seed(0)
    pairs = torch.combinations(torch.arange(40))
    graph = FactorGraph([8] * 40, groups=[(pairs, torch.randn(8, 8, len(pairs), generator=random))])
    solver, began = Toulbar2(graph), time.perf_counter()
    result = solver.run(1, seconds=1.5)
    assert time.perf_counter() - began < 2.5
    assert solver._process is None
    assert not result.optimal


def test_toulbar2_says_what_to_install(monkeypatch):
    monkeypatch.setattr(toulbar2, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="pip install 'mrfquant\\[exact\\]'"):
        Toulbar2(FactorGraph([2]))


def test_quadratic_fields_are_found_and_rounded_by_the_nearest_plane():
    for labels in (2, 4):
        graph = stiff_field(7, labels)
        a, b, values = quadratic_form(graph)
        every, scores = truth(graph)
        v = values[every, torch.arange(7)]
        energy = ((v @ a) * v).sum(1) / 2 + v @ b
        assert torch.allclose(energy - energy[0], scores[0] - scores, atol=1e-4)
        found = graph.energy(nearest_plane(graph))
        assert -scores.max() <= found < -scores.quantile(0.9)
    alone = FactorGraph([4] * 2, [((v,), -((torch.arange(4.0) - 1.3 * v) ** 2)) for v in range(2)])
    weak = FactorGraph([4] * 2, groups=[*((g.scopes, g.tables) for g in alone.groups), pair_of(1e-3)])
    assert nearest_plane(weak).tolist() == [0, 1]
    assert nearest_plane(hard_field(5, 0)) is None
    assert nearest_plane(FactorGraph([3, 3], [((0, 1), torch.rand(3, 3))])) is None


def pair_of(strength):
    steps = torch.arange(4.0)
    return torch.tensor([[0, 1]]), strength * (steps[:, None] * steps)[..., None]
