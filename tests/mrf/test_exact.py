"""Exact solvers: enumeration against a loop, the junction tree against enumeration and the results of competitions."""

import csv
import itertools
import math
import random
from pathlib import Path

import gin
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrfquant.errors import BadInput, BadSetting
from mrfquant.mrf import Contradiction, FactorGraph
from mrfquant.mrf.clique_tree import CliqueTree
from mrfquant.mrf.exact import Enumeration, JunctionTree, TooWide
from mrfquant.mrf.uai import read_evidence, read_map, read_mar, read_model, read_pr

SCOPES = {
    "grid": [(i, i + 1) for i in range(9) if i % 3 < 2] + [(i, i + 3) for i in range(6)],
    "full": list(itertools.combinations(range(6), 2)),
    "star": [(0, i) for i in range(1, 8)],
    "tree": [(i, (i - 1) // 2) for i in range(1, 9)],
    "chain": [(i, i + 1) for i in range(8)],
    "cycle": [(i, (i + 1) % 8) for i in range(8)],
    "disconnected": [(0, 1), (1, 2), (4, 5), (5, 6), (6, 4)],  # and 3 and 7 alone
    "higher-order": [(0, 1, 2), (4, 2, 3), (3, 5), (6, 0, 5, 1)],
}
CARDINALITIES = {"2": [2] * 9, "3": [3] * 9, "mixed": [2, 1, 3, 4, 2, 1, 3, 2, 2]}
UAI = Path(__file__).parents[3] / "shared" / "uai"


def normal(*shape, seed, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(kind, labels, seed=0, hard=0.0, scale=1.0, dtype=torch.float64):
    """A field of random potentials, part of which forbid; the labelling of zeros remains allowed."""
    rng = random.Random(seed)
    n = 9 if kind in ("grid", "tree", "chain") else 8
    cards = CARDINALITIES[labels][:n]
    factors = []
    for scope in [*SCOPES[kind], *((v,) for v in range(0, n, 2)), SCOPES[kind][0]]:  # the last repeats the first
        scope = rng.sample(scope, len(scope))
        table = normal(*(cards[v] for v in scope), seed=rng.randrange(2**30), scale=scale)
        forbidden = torch.tensor([rng.random() < hard for _ in range(table.numel())]).view(table.shape)
        forbidden[(0,) * len(scope)] = False
        factors.append((scope, table.masked_fill(forbidden, -math.inf)))
    return FactorGraph(cards, factors, constant=0.7, dtype=dtype)


def assert_agree(graph, accuracy=1e-8):
    """The junction tree and enumeration, the latter in double precision."""
    truth, tree = Enumeration(graph.to(torch.float64)), JunctionTree(graph)
    assert tree.log_z() == pytest.approx(truth.log_z(), abs=accuracy)
    assert tree.marginals().dtype == graph.dtype
    torch.testing.assert_close(tree.marginals().double(), truth.marginals(), rtol=0, atol=accuracy)
    best, found = (truth.graph.energy(solver.labels()).item() for solver in (truth, tree))
    assert found == pytest.approx(best, abs=accuracy)


every_kind = pytest.mark.parametrize("kind", SCOPES)
every_cardinality = pytest.mark.parametrize("labels", CARDINALITIES)


# --- enumeration


def test_enumeration_is_what_a_loop_finds():
    cards = [2, 3, 1, 2]
    tables = {(0, 1): normal(2, 3, seed=0), (3, 1, 2): normal(2, 3, 1, seed=1), (3,): normal(2, seed=2)}
    tables[0, 1][1, 2] = -math.inf
    graph = FactorGraph(cards, tables.items(), constant=-1.5)
    weights = {
        labels: math.exp(-1.5 + sum(table[tuple(labels[v] for v in scope)].item() for scope, table in tables.items()))
        for labels in itertools.product(*map(range, cards))
    }
    z = sum(weights.values())
    rows = [
        [sum(w for x, w in weights.items() if x[v] == label) / z for label in range(c)] for v, c in enumerate(cards)
    ]
    solver = Enumeration(graph)
    assert solver.log_z() == pytest.approx(math.log(z), abs=1e-12)
    torch.testing.assert_close(solver.marginals(), graph.flat(rows), rtol=0, atol=1e-12)
    assert tuple(solver.labels().tolist()) == max(weights, key=weights.get)


def test_enumeration_takes_several_chunks():
    coupling = torch.tensor([[0.4, 0.0], [0.0, 0.4]], dtype=torch.float64)
    graph = FactorGraph([2] * 14, [((v, v + 1), coupling) for v in range(13)])
    z = 2 * (1 + math.exp(0.4)) ** 13
    assert Enumeration(graph).log_z() == pytest.approx(math.log(z), abs=1e-12)


def test_enumeration_refuses_too_many_labellings():
    with pytest.raises(BadInput, match=r"2\^21.0 labellings.*Enumeration.limit"):
        Enumeration(FactorGraph([2] * 21))
    with pytest.raises(BadInput, match=r"2\^5000.0 labellings"):
        Enumeration(FactorGraph([2] * 5000))
    assert Enumeration(FactorGraph([3]), limit=3).log_z() == pytest.approx(math.log(3))


# --- the junction tree against enumeration


@every_kind
@every_cardinality
def test_junction_tree_is_exact(kind, labels):
    for seed in range(3):
        assert_agree(build(kind, labels, seed))


@every_kind
@every_cardinality
def test_hard_constraints(kind, labels):
    for seed in range(3):
        assert_agree(build(kind, labels, seed, hard=0.4))


@every_kind
@every_cardinality
def test_single_precision(kind, labels):
    assert_agree(build(kind, labels, hard=0.2, dtype=torch.float32), accuracy=1e-4)


@pytest.mark.parametrize("scale", [100.0, 1e5])
def test_strong_potentials(scale):
    assert_agree(build("grid", "mixed", scale=scale, hard=0.2), accuracy=1e-8)


@st.composite
def fields(draw):
    """Small fields of any structure, with few values, so that ties and contradictions are common."""
    cards = draw(st.lists(st.integers(1, 3), max_size=6))
    value = st.sampled_from([0.0, 0.0, 1.0, -2.5, -math.inf])
    factors = []
    for _ in range(draw(st.integers(0, 8))):
        scope = draw(st.permutations(range(len(cards))))[: draw(st.integers(0, min(4, len(cards))))]
        shape = [cards[v] for v in scope]
        count = math.prod(shape)
        values = draw(st.lists(value, min_size=count, max_size=count))
        if any(v > -math.inf for v in values):
            factors.append((scope, torch.tensor(values, dtype=torch.float64).view(shape)))
    return FactorGraph(cards, factors)


@given(fields())
@settings(max_examples=100, deadline=None)
def test_any_small_field(graph):
    try:
        Enumeration(graph).log_z()
    except Contradiction:
        with pytest.raises(Contradiction):
            JunctionTree(graph).log_z()
        with pytest.raises(Contradiction):
            JunctionTree(graph).labels()
    else:
        assert_agree(graph)


@pytest.mark.parametrize("solver", [Enumeration, JunctionTree])
@pytest.mark.parametrize("cards", [[], [2, 3], [1, 1], [1] * 100, [1, 2, 1, 4]])
def test_without_factors_everything_is_uniform(solver, cards):
    graph = FactorGraph(cards, constant=0.25)
    result = solver(graph).run()
    assert result.log_z == pytest.approx(0.25 + math.log(math.prod(cards)), abs=1e-12)
    torch.testing.assert_close(result.marginals, graph.uniform())
    assert result.labels.shape == (len(cards),)


@pytest.mark.parametrize("solver", [Enumeration, JunctionTree])
def test_factors_of_variables_with_one_label_are_constants(solver):
    graph = FactorGraph([1, 1, 2], [((0, 1), [[0.5]]), ((1,), [0.25]), ((2, 0), [[1.0], [-math.inf]])])
    result = solver(graph).run()
    assert result.log_z == pytest.approx(1.75)
    assert graph.per_variable(result.marginals) == [[1.0], [1.0], [1.0, 0.0]]


@pytest.mark.parametrize("solver", [Enumeration, JunctionTree])
@pytest.mark.parametrize("method", ["log_z", "marginals", "labels", "run"])
def test_a_contradiction_is_said(solver, method):
    """Three variables of two labels that must all differ."""
    different = torch.tensor([[-math.inf, 0.0], [0.0, -math.inf]])
    graph = FactorGraph([2, 2, 2], [(scope, different) for scope in [(0, 1), (1, 2), (0, 2)]])
    with pytest.raises(Contradiction, match="no labelling has a probability above 0"):
        getattr(solver(graph), method)()


# --- how they behave as solvers


@pytest.mark.parametrize("solver", [Enumeration, JunctionTree])
def test_one_step_is_the_whole_run(solver):
    graph = build("grid", "2")
    result = solver(graph).run()
    assert (result.direction, result.reason, result.iterations) == ("exact", "converged", 1)
    assert result.energy == pytest.approx(graph.energy(result.labels).item())
    assert result.trace[0].free_energy == -result.log_z
    assert result.trace[0].residual == 0


def test_each_pass_runs_once_and_when_needed(monkeypatch):
    passes = []
    collect = CliqueTree.collect
    monkeypatch.setattr(CliqueTree, "collect", lambda *args, **kept: passes.append(1) or collect(*args, **kept))
    solver = JunctionTree(build("grid", "2"))
    assert len(passes) == 0
    solver.labels()
    assert len(passes) == 1
    solver.run()
    assert len(passes) == 2


# --- the width


@pytest.mark.parametrize(
    ("kind", "labels", "width"),
    [("chain", "2", 2), ("tree", "3", 2 * math.log2(3)), ("full", "2", 6), ("cycle", "2", 3), ("grid", "2", 4)],
)
def test_width(kind, labels, width):
    assert JunctionTree(build(kind, labels)).width == pytest.approx(width)


def test_variables_with_one_label_have_no_width():
    cards = [1] * 40 + [2, 4]
    graph = FactorGraph(cards, [((i, j), torch.zeros(cards[i], cards[j])) for i in range(42) for j in range(i)])
    assert JunctionTree(graph, width_limit=3).width == 3


def test_a_graph_that_is_too_wide_is_refused_at_once():
    pairs = torch.tensor(list(itertools.combinations(range(80), 2)))
    graph = FactorGraph([2] * 80, groups=[(pairs, torch.zeros(2, 2, len(pairs)))])
    with pytest.raises(
        TooWide, match=r"2\^80.0 entries or more, the limit is 2\^25: raise JunctionTree.width_limit.*Belief"
    ):
        JunctionTree(graph)
    assert issubclass(TooWide, BadInput)


def test_the_limits_are_settings():
    graph = build("full", "2")
    gin.parse_config("JunctionTree.width_limit = 5\nEnumeration.limit = 255")
    with pytest.raises(TooWide):
        JunctionTree(graph)
    with pytest.raises(BadInput, match="labellings"):
        Enumeration(graph)
    with pytest.raises(BadSetting, match=r"JunctionTree\.width_limit"):
        JunctionTree(graph, width_limit=0)
    assert JunctionTree(graph, width_limit=6).width == 6


# --- networks of the UAI competitions, whose results are printed with six digits

QUICK = ["CSP_12", "Grids_12", "Pedigree_12", "Promedus_26", "Promedus_35", "Segmentation_11", "Segmentation_12"]
SLOW = ["Alchemy_11", "DBN_11", "DBN_14", "Grids_11", "Grids_15", "ObjectDetection_11"]
TOO_WIDE = ["linkage_16"]
with_networks = pytest.mark.skipif(not UAI.is_dir(), reason="the networks of the UAI competitions are not there")


def assert_printed(value, printed):
    """Equal up to the rounding of the sixth digit."""
    digit = 10.0 ** (math.floor(math.log10(abs(printed))) - 5) if printed else 1e-12
    assert value == pytest.approx(printed, rel=0, abs=0.51 * digit)


def proved_optimal(network):
    """Whether the MAP file of the network is known to hold an optimum."""
    with open(UAI / "MANIFEST.tsv") as file:
        gaps = {row[0]: row[-1] for row in csv.reader(file, delimiter="\t")}
    return gaps[f"{network}.uai"] == "0"


@with_networks
@pytest.mark.parametrize("network", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_results_of_the_uai_competitions(network):
    path = str(UAI / f"{network}.uai")
    model, evidence = read_model(path), read_evidence(path + ".evid")
    graph, kept = model.condition(evidence)
    solver = JunctionTree(graph)

    assert_printed(solver.log_z() / math.log(10), read_pr(path + ".PR") / math.log(10))
    expected = read_mar(path + ".MAR")
    for v, row in zip(kept.tolist(), graph.per_variable(solver.marginals()), strict=True):
        for p, printed in zip(row, expected[v], strict=True):
            assert_printed(p, printed)
    for v, label in evidence.items():
        assert expected[v][label] == 1

    if proved_optimal(network):
        labels = torch.tensor(read_map(path + ".MAP"))
        assert all(labels[v] == label for v, label in evidence.items())
        best = model.energy(labels).item()
        labels[kept] = solver.labels()
        assert model.energy(labels).item() == pytest.approx(best, rel=1e-12, abs=1e-9)


@with_networks
@pytest.mark.parametrize("network", TOO_WIDE)
def test_wide_networks_are_refused(network):
    with pytest.raises(TooWide, match="an approximate solver"):
        JunctionTree(read_model(UAI / f"{network}.uai"))
