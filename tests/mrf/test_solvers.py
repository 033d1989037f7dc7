"""What solvers do on fields beyond their contract (tests/testing/test_contracts.py)."""

import functools
import itertools
import math
import time
from pathlib import Path

import networkx as nx
import pytest
import torch

from mrfquant.config.gin_files import Config
from mrfquant.inference import MeanField, MirrorDescent, ProximalICM, ProximalMeanField, SparsemaxPGD
from mrfquant.mrf import (
    ICM,
    BeliefPropagation,
    Enumeration,
    FactorGraph,
    JunctionTree,
    LocalSearch,
    Relaxation,
    SequentialMeanField,
    TreeReweighted,
    ising,
    solve,
    uai,
)
from mrfquant.schedules import Geometric

SHAPES = {
    "grid": nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 3)),
    "full": nx.complete_graph(6),
    "star": nx.star_graph(6),
    "tree": nx.from_edgelist([(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (5, 6)]),
    "chain": nx.path_graph(7),
}
COUPLINGS = ("random", "attractive", "repulsive")
CARDINALITIES = {"2": (2,), "3": (3,), "mixed": (2, 3, 4)}
CASES = list(itertools.product(SHAPES, COUPLINGS, CARDINALITIES))


def field(shape, coupling, cardinalities, seed=0):
    graph = SHAPES[shape]
    random = torch.Generator().manual_seed(seed)
    kinds = CARDINALITIES[cardinalities]
    labels = [kinds[v % len(kinds)] for v in range(len(graph))]

    def draw(*size):
        return torch.randn(*size, generator=random, dtype=torch.float64)

    factors = [([v], draw(labels[v])) for v in range(len(graph))]
    for a, b in graph.edges():
        strength = draw(1).abs().item() * {"random": 0, "attractive": 1, "repulsive": -1}[coupling]
        table = strength * torch.eye(labels[a], labels[b], dtype=torch.float64)
        factors.append(([a, b], table if coupling != "random" else draw(labels[a], labels[b])))
    return FactorGraph(labels, factors)


def all_labellings(graph):
    return torch.tensor(list(itertools.product(*(range(c) for c in graph.cardinalities.tolist()))))


SOLVERS = {
    "enumeration": Enumeration,
    "junction tree": JunctionTree,
    "sum-product": functools.partial(BeliefPropagation, damping=0.3),
    "residual sum-product": functools.partial(BeliefPropagation, schedule="residual"),
    "max-product": functools.partial(BeliefPropagation, mode="max", damping=0.3),
    "tree-reweighted": TreeReweighted,
    "sequential mean-field": SequentialMeanField,
    "annealed mean-field": functools.partial(SequentialMeanField, beta=Geometric(1.2, 1, 100.0, 0.1)),
    "icm": ICM,
    "local search": LocalSearch,
    "mean-field": functools.partial(Relaxation, inference=functools.partial(MeanField, damping=0.5)),
    "pmf": functools.partial(Relaxation, inference=ProximalMeanField),
    "md": functools.partial(Relaxation, inference=MirrorDescent),
    "picm": functools.partial(Relaxation, inference=ProximalICM),
    "pgd": functools.partial(Relaxation, inference=SparsemaxPGD),
}


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_local_search_finds_the_best_labelling_if_one_block_covers_the_field(case):
    graph = field(*case)
    optimum = graph.energy(all_labellings(graph)).min().item()
    assert LocalSearch(graph, seed=1, patience=1).run().energy == pytest.approx(optimum, abs=1e-9)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_both_mean_fields_end_at_fixed_points(case):
    """u = softmax of the fields it makes: the stationary points of the free energy."""
    graph = field(*case)
    for name in ("sequential mean-field", "mean-field"):
        result = SOLVERS[name](graph, seed=2).run(2000, 1e-12, trace=False)
        if result.reason == "converged":  # parallel updates may oscillate
            assert torch.allclose(result.marginals, graph.softmax(graph.fields(result.marginals)), atol=1e-8)
        else:
            assert name == "mean-field"


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_icm_ends_in_a_local_minimum(case):
    graph = field(*case)
    result = ICM(graph, seed=5).run()
    assert result.reason == "converged"
    for v, c in enumerate(graph.cardinalities.tolist()):
        others = result.labels.repeat(c, 1)
        others[:, v] = torch.arange(c)
        assert result.energy <= graph.energy(others).min().item() + 1e-12


def test_higher_order_factors_and_constants():
    random = torch.Generator().manual_seed(0)
    tables = [([0, 1, 2], (2, 3, 2)), ([2, 3, 4], (2, 2, 3)), ([1, 4], (3, 3)), ([3], (2,)), ([], ())]
    factors = [(scope, torch.randn(shape, generator=random, dtype=torch.float64)) for scope, shape in tables]
    graph = FactorGraph([2, 3, 2, 2, 3], factors)
    log_z = graph.score(all_labellings(graph)).logsumexp(0).item()
    assert TreeReweighted(graph).run(2000, 1e-10).log_z >= log_z - 1e-7
    assert SequentialMeanField(graph).run().log_z <= log_z
    # Without the factor that closes the loop it is a tree of factors, where belief propagation is exact.
    tree = FactorGraph([2, 3, 2, 2, 3], [f for f in factors if f[0] != [1, 4]])
    log_z = tree.score(all_labellings(tree)).logsumexp(0).item()
    for solver in (BeliefPropagation(tree), TreeReweighted(tree), JunctionTree(tree)):
        assert solver.run(500, 1e-11).log_z == pytest.approx(log_z, abs=1e-8)


def test_hard_constraints_give_no_nan_and_allowed_labellings():
    never = -math.inf
    equal = torch.tensor([[0.0, never], [never, 0.5]])
    graph = FactorGraph([2, 2, 2], [([0], torch.tensor([0.3, 0.0])), ([0, 1], equal), ([1, 2], equal)])
    log_z = graph.score(all_labellings(graph)).logsumexp(0).item()
    for name, make in SOLVERS.items():
        result = make(graph, seed=0).run(300, 1e-9)
        assert not result.marginals.isnan().any(), name
        assert result.energy in (pytest.approx(-0.3), pytest.approx(-1.0)), name
        if result.direction == "lower bound":
            assert result.log_z <= log_z + 1e-9, name
        elif name != "tree-reweighted" and result.log_z is not None:
            assert result.log_z == pytest.approx(log_z, abs=1e-6), name


def test_restarts_warm_starts_evidence_and_single_labels():
    graph = field("grid", "random", "mixed")
    best = min(ICM(graph, seed=s).run().energy for s in range(4))
    several = solve(graph, ICM, restarts=4)
    assert several.energy == pytest.approx(best)
    exact = JunctionTree(graph).run()
    assert ICM(graph, start=graph.one_hot(exact.labels)).run().energy == pytest.approx(exact.energy)

    wide = FactorGraph([2, 1, 3], [([0, 1, 2], torch.arange(6.0).view(2, 1, 3)), ([2], torch.tensor([0.0, 1.0, 5.0]))])
    result = solve(wide, JunctionTree, evidence={2: 1})
    p = torch.tensor([1.0, 4.0]).softmax(0).tolist()
    assert wide.per_variable(result.marginals) == [pytest.approx(p), [1.0], [0.0, 1.0, 0.0]]
    assert result.labels.tolist() == [1, 0, 1]
    assert result.log_z == pytest.approx(math.log(math.exp(2) + math.exp(5)))


def test_many_labels_beside_few():
    """Ten labels: as text, 10 sorts before 2."""
    graph = FactorGraph([2, 10, 3], [([0], [0.0, 3.0]), ([1], torch.arange(10.0)), ([0, 2], torch.eye(2, 3))])
    for name, make in SOLVERS.items():
        result = solve(graph, make, restarts=3)  # PGD stops at a vertex that the start is near to
        assert [len(row) for row in graph.per_variable(result.marginals)] == [2, 10, 3], name
        assert result.labels[:2].tolist() == [1, 9], name


def test_nothing_to_decide():
    graph = FactorGraph([2, 1], [([0], [0.0, 3.0]), ([0, 1], torch.ones(2, 1))])
    alone = FactorGraph([3], [([0], [0.0, 1.0, 0.5])])
    for name, make in SOLVERS.items():
        result = solve(graph, make, evidence={0: 1})
        assert (result.log_z, result.energy) == (4.0, -4.0), name
        assert result.labels.tolist() == [1, 0]
        assert solve(alone, make).labels.tolist() == [1], name


def test_annealing_goes_on_until_beta_rests():
    spins = ising(nx.grid_2d_graph(6, 6), 0.0, -1.0)  # without a field, a hot u is uniform
    result = SequentialMeanField(spins, seed=0, beta=Geometric(1.05, 1, 100.0, 0.05)).run()
    assert result.energy == pytest.approx(-60)
    pmf = functools.partial(ProximalMeanField, beta=Geometric(1.1, 1, 100.0, 0.05))
    assert Relaxation(spins, seed=0, inference=pmf).run(200).iterations > 75


def test_forbidden_labellings_are_never_preferred():
    never = -math.inf
    factors = [([0], [-999.0, 0.0])] * 3 + [([0, 1], torch.tensor([[0.0, 0.0], [never, never]]))]
    graph = FactorGraph([2, 2], factors)
    assert JunctionTree(graph).run().energy == pytest.approx(2997)
    assert LocalSearch(graph).run().energy == pytest.approx(2997)
    assert ICM(graph, seed=0).run().energy == pytest.approx(2997)


def test_the_marginals_of_restarts_belong_to_the_best_labelling():
    graph = field("full", "random", "mixed", seed=4)
    result = solve(graph, ICM, restarts=8)
    assert torch.equal(graph.argmax(result.marginals), result.labels)
    assert ICM(ising(nx.path_graph(2), 0.0, -1.0), start=torch.full((4,), 0.5)).run().energy == pytest.approx(-1)


def test_a_hundred_thousand_variables():
    n = 100_000
    random = torch.Generator().manual_seed(0)
    scopes = torch.stack([torch.arange(n - 1), torch.arange(1, n)], 1)
    groups = [
        (torch.arange(n)[:, None], torch.randn(2, n, generator=random)),
        (scopes, torch.randn(2, 2, n - 1, generator=random)),
    ]
    graph = FactorGraph([2] * n, groups=groups)
    assert BeliefPropagation(graph).run(100, 1e-6, trace=False).reason == "converged"
    assert SequentialMeanField(graph).run(5, trace=False).iterations == 5


SHARED = Path(__file__).parents[3] / "shared" / "uai"


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the networks of the UAI competitions are not here")
def test_local_search_reaches_every_proved_optimum():
    found = sorted(SHARED.glob("*.uai.MAP"))
    assert found
    for reference in found:
        model = reference.with_suffix("")
        graph, evidence = uai.read_model(model), uai.read_evidence(f"{model}.evid")
        optimum = graph.energy(torch.tensor(uai.read_map(reference))).item()
        Config("mrf/local_search.gin")
        assert solve(graph, evidence=evidence).energy == pytest.approx(optimum, abs=1e-6), model.name


def test_a_width_that_not_even_one_variable_keeps_is_no_trap():
    graph = FactorGraph([4, 4], [([0, 1], torch.eye(4))])
    solver = LocalSearch(graph, width_limit=1.0)
    solver.run(20)
    assert graph.energy(solver.labels()).item() == pytest.approx(-1.0)


def test_the_last_look_is_within_the_time_limit():
    class Slow(ICM):
        def step(self):
            super().step()
            time.sleep(0.02)
            return 1.0

        def log_z(self):
            time.sleep(0.3)

    began = time.perf_counter()
    result = Slow(field("chain", "random", "2")).run(1000, seconds=1.0)
    assert result.reason == "time"
    assert time.perf_counter() - began < 1.15


def test_sums_that_underflow_are_those_of_logarithms():
    """The factors prefer labels that their variables all but exclude, by more than a float64 can hold."""
    far = torch.tensor([[0.0, -2000.0], [-2000.0, -3000.0]], dtype=torch.float64)
    unary = torch.tensor([-1800.0, 0.0], dtype=torch.float64)
    factors = [((0, 1), far), ((1, 2), far.t()), ((0, 1, 3), far[..., None] + torch.tensor([0.0, -900.0]))]
    for scopes in (factors[:2], factors[1:]):
        graph = FactorGraph([2] * 4, [*scopes, *(((v,), unary) for v in range(4))])
        exact = JunctionTree(graph).run()
        for part in (BeliefPropagation, TreeReweighted):
            result = part(graph).run(300, 1e-10)
            assert torch.allclose(result.marginals, exact.marginals, atol=1e-8)
            assert result.log_z == pytest.approx(exact.log_z, abs=1e-6)


def test_messages_of_a_table_that_factors_share_are_those_of_copies():
    random = torch.Generator().manual_seed(0)
    table, triple = torch.randn(4, 4, 1, generator=random), torch.randn(4, 4, 4, 1, generator=random)
    pairs, triples = torch.tensor([(0, 1), (1, 2), (2, 3), (3, 0)]), torch.tensor([(0, 2, 4), (1, 3, 4)])
    unary = (torch.arange(5)[:, None], torch.randn(4, 5, generator=random))
    shared = FactorGraph(
        [4] * 5, groups=[unary, (pairs, table.expand(-1, -1, 4)), (triples, triple.expand(4, 4, 4, 2))]
    )
    copies = FactorGraph([4] * 5, groups=[unary, (pairs, table.repeat(1, 1, 4)), (triples, triple.repeat(1, 1, 1, 2))])
    for part in (BeliefPropagation, TreeReweighted, SequentialMeanField):
        one, two = (part(graph).run(20, -1.0) for graph in (shared, copies))
        assert torch.allclose(one.marginals, two.marginals)
        assert one.log_z == pytest.approx(two.log_z)
