"""UAI files are read as they are meant, written without loss, and refused in one sentence where they are wrong."""

import csv
import math
import os
import random
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrfquant.errors import BadInput
from mrfquant.mrf import Contradiction, FactorGraph
from mrfquant.mrf.uai import (
    read_evidence,
    read_map,
    read_mar,
    read_model,
    read_pr,
    write_map,
    write_mar,
    write_model,
    write_pr,
)

SHARED = Path(os.environ.get("MRFQUANT_UAI", Path(__file__).parents[3] / "shared" / "uai"))
READERS = [read_model, read_evidence, read_map, read_mar, read_pr]

MARKOV = """MARKOV
3
2 1 3
4
1 0
3 2 0 1
0
2 0 2

2
 0.5 2

6
 1 2
 3 4
 5 6

1
 0.25

6
 1 0 2
 3 1e-3 5
"""

BAYES = """BAYES
2
2 3
2
1 0
2 0 1
2 0.25 0.75
6 0.1 0.2 0.7
  0.5 0.5 0.0
"""


@pytest.fixture
def file(tmp_path):
    """A file with the given content."""

    def make(content):
        path = tmp_path / "a.uai"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def score(graph, *labels):
    return graph.score(torch.tensor(labels)).item()


# --- models


def test_markov_potentials_multiply_with_the_last_variable_of_a_scope_fastest(file):
    graph = read_model(file(MARKOV))
    assert graph.cardinalities.tolist() == [2, 1, 3]
    assert graph.num_factors == 3
    assert graph.constant == pytest.approx(math.log(0.25))
    # factor 0 by x0; factor 1 by (x2, x0, x1): entry 2 x2 + x0; factor 3 by (x0, x2): entry 3 x0 + x2
    assert score(graph, 0, 0, 0) == pytest.approx(math.log(0.5 * 1 * 0.25 * 1))
    assert score(graph, 1, 0, 0) == pytest.approx(math.log(2 * 2 * 0.25 * 3))
    assert score(graph, 1, 0, 1) == pytest.approx(math.log(2 * 4 * 0.25 * 1e-3))
    assert score(graph, 0, 0, 2) == pytest.approx(math.log(0.5 * 5 * 0.25 * 2))
    assert score(graph, 1, 0, 2) == pytest.approx(math.log(2 * 6 * 0.25 * 5))
    assert score(graph, 0, 0, 1) == -math.inf


def test_bayes_tables_are_conditional_probabilities_of_the_last_variable(file):
    graph = read_model(file(BAYES))
    joint = [[0.25 * p for p in (0.1, 0.2, 0.7)], [0.75 * p for p in (0.5, 0.5, 0.0)]]
    for a in range(2):
        for b in range(3):
            assert math.exp(score(graph, a, b)) == pytest.approx(joint[a][b])


@pytest.mark.parametrize("between", [" ", "\n", "\r\n", "\t\n \n"])
def test_lines_mean_nothing(file, between):
    graph = read_model(file(between.join(MARKOV.split()) + between))
    assert score(graph, 1, 0, 2) == pytest.approx(math.log(15))


def test_the_order_of_factors_is_irrelevant(file):
    one = read_model(file("MARKOV 2 2 2 2 1 1 2 0 1 2 1 3 4 1 2 3 4"))
    other = read_model(file("MARKOV 2 2 2 2 2 0 1 1 1 4 1 2 3 4 2 1 3"))
    labels = torch.cartesian_prod(torch.arange(2), torch.arange(2))
    assert torch.equal(one.score(labels), other.score(labels))


def test_models_without_factors_or_variables_are_models(file):
    assert score(read_model(file("MARKOV 2 3 4 0")), 2, 3) == 0
    assert score(read_model(file("MARKOV 0 2 0 0 1 2 1 3"))) == pytest.approx(math.log(6))


def test_the_type_is_that_asked_for(file):
    graph = read_model(file(MARKOV), dtype=torch.float32)
    assert all(group.tables.dtype == torch.float32 for group in graph.groups)
    assert score(graph, 1, 0, 2) == pytest.approx(math.log(15), rel=1e-6)


def test_a_factor_may_have_as_many_variables_as_a_tensor_has_room_for(file):
    scope = " ".join(map(str, range(60)))
    graph = read_model(file(f"MARKOV 60 {'1 ' * 60} 1 60 {scope} 1 0.5"))
    assert graph.score(torch.zeros(60, dtype=torch.int64)).item() == pytest.approx(math.log(0.5))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "ends early: the header should follow"),
        ("GRAPH 1 2 0", "begins with 'GRAPH', expected MARKOV or BAYES"),
        ("x" * 10**6, "begins with 'x{37}\\.\\.\\.'"),
        (b"MARKOV 1 2\x00 0", "byte b'.x00' at 10, expected a text"),
        (b"\xff\xfe\x80", "byte b'.xff' at 0"),
        (b"\x1f\x8b\x08\x00junk", "expected a text of words and numbers"),
        ("MARKOV", "ends early: the number of variables"),
        ("MARKOV -1", "'-1' in the number of variables .word 2., expected a whole number of at least 0"),
        ("MARKOV 1.5 2 0", "'1.5' in the number of variables"),
        ("MARKOV two 2 0", "'two' in the number of variables"),
        ("MARKOV 1_0 2 0", "byte b'_' at 8"),
        (
            "MARKOV 999999999999 2 0",
            "ends early: the cardinalities should follow .words expected: 999999999999, left: 2.",
        ),
        (f"MARKOV {'9' * 30} 2 0", "expected a whole number of at least 0 and below 2"),
        (f"MARKOV {'9' * 5000} 2 0", "expected a whole number"),
        ("MARKOV 2 2", "ends early: the cardinalities"),
        ("MARKOV 2 2 0 0", "gives variable 1 0 labels, expected 1 to"),
        ("MARKOV 1 99999999999 0", "gives variable 0 99999999999 labels"),
        ("MARKOV 1 2", "ends early: the number of factors"),
        ("MARKOV 1 2 -4", "'-4' in the number of factors"),
        ("MARKOV 1 2 999999999999 1 0", "999999999999 factors .* at least 2999999999997, left: 2"),
        ("MARKOV 1 2 1 9 0 0 0", "ends early: the scopes should follow"),
        ("MARKOV 1 2 2 5 0 0 0 0 0", "ends early: the number of variables of factor 1"),
        ("MARKOV 1 2 1 x 0 2 1 1", "'x' in the number of variables of factor 0"),
        ("MARKOV 1 2 1 1 x 2 1 1", "'x' in the scopes .word 6."),
        ("MARKOV 1 2 1 1 -1 2 1 1", "'-1' in the scopes"),
        ("MARKOV 1 2 1 1 1 2 1 1", "factor 0 over variables .1., expected numbers below 1"),
        ("MARKOV 0 1 1 0 2 1 1", "expected numbers below 0"),
        ("MARKOV 2 2 2 1 2 1 1 4 1 1 1 1", "factor 0 over variables .1, 1., expected each once"),
        (f"MARKOV 99 {'1 ' * 99} 1 99 {' '.join(map(str, range(99)))} 1 1", "99 variables, expected at most 60"),
        (
            "MARKOV 2 60000 60000 1 2 0 1 4 1 1 1 1",
            "table of factor 0 has 3600000000 entries by its scope .words left: 5.",
        ),
        (f"MARKOV 60 {'65536 ' * 60} 1 60 {' '.join(map(str, range(60)))} 1 1", "ends early: the table of factor 0"),
        ("MARKOV 1 2 1 1 0 3 1 1 1", "'3' for the number of entries of factor 0, expected 2 by its scope"),
        ("MARKOV 1 2 2 1 0 1 0 2 1 1 1 1", "'1' for the number of entries of factor 1, expected 2"),
        ("MARKOV 1 2 2 1 0 1 0 2 1 1 2 1", "table of factor 1 is not whole .words missing: 1."),
        ("MARKOV 1 2 2 1 0 1 0 2 1 1", "table of factor 1 is not whole .words missing: 3."),
        ("MARKOV 1 2 1 1 0 2 1 x", "'x' in the tables .word 9., expected a number"),
        ("MARKOV 1 2 1 1 0 2 1 -1", "potential '-1' in factor 0, expected a finite number of at least 0"),
        ("MARKOV 1 2 2 1 0 1 0 2 1 1 2 1 nan", "potential 'nan' in factor 1"),
        ("MARKOV 1 2 1 1 0 2 1 inf", "potential 'inf' in factor 0"),
        ("MARKOV 1 2 1 1 0 2 1 1e999", "potential '1e999' in factor 0"),
        ("MARKOV 1 2 1 1 0 2 1 1e-999", "potential '1e-999' in factor 0, expected 0 or a number that a float64"),
        ("MARKOV 1 2 1 1 0 2 1 1 7", "has '7' where its end was expected .words left: 1."),
        ("MARKOV 1 2 0 7", "words left: 1"),
    ],
)
def test_unusable_models_are_refused(file, content, complaint):
    path = file(content)
    with pytest.raises(BadInput, match=complaint) as error:
        read_model(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", ["MARKOV 1 2 1 1 0 2 0 0.0", "MARKOV 1 2 2 0 1 0 1 0 2 1 1"])
def test_a_factor_of_zeros_is_a_contradiction_of_the_named_file(file, content):
    path = file(content)
    with pytest.raises(Contradiction, match=f"{path.name}: .* is 0"):
        read_model(path)


@pytest.mark.parametrize("read", READERS)
def test_files_that_cannot_be_read_are_bad_input(tmp_path, read):
    with pytest.raises(BadInput, match=r"cannot read .*missing: No such file"):
        read(tmp_path / "missing")
    with pytest.raises(BadInput, match=r"cannot read .* directory"):
        read(tmp_path)


# --- evidence


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", {}),
        ("\n", {}),
        ("0", {}),
        ("0\n", {}),
        ("1 0", {}),
        ("1 5 2", {5: 2}),
        ("1\n1 5 2", {5: 2}),
        ("2 0 1 3 0", {0: 1, 3: 0}),
        ("1\n2 0 1 3 0\n", {0: 1, 3: 0}),
        ("2 4 1 4 1", {4: 1}),
    ],
)
def test_evidence_is_read_in_both_forms(file, content, expected):
    assert read_evidence(file(content)) == expected


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("2 0 1", "ends early: the 2 pairs of a variable and a label"),
        ("99999999999999 0 1", "ends early"),
        ("1 0 1 2 0 5", "words left: 3"),
        ("0 0", "words left: 1"),
        ("2\n1 3 0\n1 3 0", "words left: 2"),
        ("2 4 1 4 0", "gives variable 4 the label 1 and then 0"),
        ("1\n2 4 1 4 0", "gives variable 4 the label 1 and then 0"),
        ("1 -4 1", "'-4'"),
        ("1 4 -1", "'-1'"),
        ("-1", "'-1' in the number of observations"),
        ("1 4 x", "'x' in the 1 pairs"),
        ("1 4 0.5", "'0.5'"),
        (f"1 4 {'9' * 30}", "below 2"),
        (b"1 \xe9 1", "expected a text"),
    ],
)
def test_unusable_evidence_is_refused(file, content, complaint):
    path = file(content)
    with pytest.raises(BadInput, match=complaint) as error:
        read_evidence(path)
    assert str(path) in str(error.value)


# --- writing models


@st.composite
def graphs(draw):
    """Mixed cardinalities and arities, hard zeros and potentials of any size; and a few labellings."""
    cardinalities = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    scale = draw(st.sampled_from([1e-3, 1.0, 30.0, 690.0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    factors = []
    for _ in range(draw(st.integers(0, 6))):
        order = torch.randperm(len(cardinalities), generator=generator)
        scope = order[: draw(st.integers(0, 3))].tolist()
        table = (
            torch.rand([cardinalities[v] for v in scope], generator=generator, dtype=torch.float64) * 2 - 1
        ) * scale
        table += draw(st.sampled_from([0.0, 5.0, 800.0, -2000.0]))
        flat = table.view(-1)
        flat[1:][torch.rand(len(flat) - 1, generator=generator) < 0.3] = -math.inf  # never all of them
        factors.append((scope, table))
    graph = FactorGraph(cardinalities, factors, constant=draw(st.sampled_from([0.0, -3.0, 1e4])))
    labels = [torch.randint(0, c, (20,), generator=generator) for c in cardinalities]
    return graph, torch.stack(labels, -1)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(case=graphs())
def test_a_written_model_has_the_energies_of_the_graph(case):
    graph, labels = case
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "a.uai", graph)
        again = read_model(Path(folder) / "a.uai")
    assert again.cardinalities.tolist() == graph.cardinalities.tolist()
    assert again.num_factors == graph.num_factors
    expected, found = graph.score(labels), again.score(labels)
    assert torch.equal(expected.isneginf(), found.isneginf())
    terms = abs(graph.constant) + sum(g.tables[~g.tables.isneginf()].abs().max().item() * len(g) for g in graph.groups)
    allowed = expected.isfinite()
    assert ((expected - found)[allowed].abs() <= 1e-12 * max(1.0, terms)).all()


def test_potentials_that_exp_can_hold_are_written_as_they_are(tmp_path, file):
    write_model(tmp_path / "b.uai", read_model(file(BAYES)))
    words = (tmp_path / "b.uai").read_text().split()
    assert " ".join(words[:10]) == "MARKOV 2 2 3 2 1 0 2 0 1"
    assert [float(w) for w in words[10:]] == pytest.approx([2, 0.25, 0.75, 6, 0.1, 0.2, 0.7, 0.5, 0.5, 0])


def test_what_overflows_goes_to_constant_factors(tmp_path):
    graph = FactorGraph([2], [([0], [5000.0, 4000.0])], constant=-1e5)
    write_model(tmp_path / "a.uai", graph)
    again = read_model(tmp_path / "a.uai")
    for label in range(2):
        assert score(again, label) == pytest.approx(score(graph, label), rel=1e-14)


@pytest.mark.parametrize(
    ("graph", "complaint"),
    [
        (FactorGraph([2, 2], [([1], [0.0, -1500.0])]), r"variables \[1\] are more than 1400 apart"),
        (FactorGraph([2], [([0], [1e308, -1e308])]), "apart"),
        (FactorGraph([2], [([0], [1e308, 1e308])] * 3), "expected an exponent of at most"),
        (FactorGraph([2], constant=-1e300), "expected an exponent of at most"),
    ],
)
def test_what_a_file_cannot_hold_is_refused(tmp_path, graph, complaint):
    with pytest.raises(BadInput, match=complaint) as error:
        write_model(tmp_path / "a.uai", graph)
    assert str(tmp_path / "a.uai") in str(error.value)
    assert not list(tmp_path.iterdir())


def test_models_of_lesser_types_and_expanded_tables_are_written(tmp_path):
    scopes = torch.tensor([[0, 1], [1, 2]])
    table = torch.tensor([[0.5, -1.0], [-math.inf, 2.0]])
    graph = FactorGraph([2, 2, 2], groups=[(scopes, table[..., None].expand(2, 2, 2))], dtype=torch.float32)
    write_model(tmp_path / "a.uai", graph)
    again = read_model(tmp_path / "a.uai")
    assert score(again, 0, 1, 1) == pytest.approx(1.0, rel=1e-12)
    assert score(again, 1, 0, 0) == -math.inf


def test_a_place_that_cannot_be_written_is_bad_input(tmp_path):
    (tmp_path / "file").touch()
    for write in (lambda p: write_model(p, FactorGraph([2])), lambda p: write_map(p, [0]), lambda p: write_pr(p, 0)):
        with pytest.raises(BadInput, match=r"cannot write .*; give another path"):
            write(tmp_path / "file" / "a.uai")


def test_a_long_chain_is_written_and_read(tmp_path):
    n = 100_000
    generator = torch.Generator().manual_seed(0)
    tables = torch.randn(2, 2, n - 1, generator=generator, dtype=torch.float64)
    v = torch.arange(n)
    graph = FactorGraph([2] * n, groups=[(torch.stack([v[:-1], v[1:]], 1), tables)])
    write_model(tmp_path / "a.uai", graph)
    again = read_model(tmp_path / "a.uai")
    assert again.num_factors == n - 1
    labels = torch.randint(0, 2, (n,), generator=generator)
    assert again.energy(labels).item() == pytest.approx(graph.energy(labels).item(), rel=1e-12)


# --- results


def test_results_have_the_layout_of_the_competition(tmp_path):
    path = tmp_path / "a"
    write_mar(path, [[0.25, 0.75], [1.0]])
    assert path.read_text() == "MAR\n2 2 0.25 0.75 1 1.0\n"
    write_map(path, [1, 0, 3])
    assert path.read_text() == "MAP\n3 1 0 3\n"
    write_pr(path, math.log(1000))
    header, value = path.read_text().split()
    assert header == "PR"
    assert float(value) == pytest.approx(3)
    write_pr(path, -math.inf)
    assert path.read_text() == "PR\n-inf\n"


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    rows=st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), max_size=4),
    labels=st.lists(st.integers(0, 9), max_size=5),
    log_z=st.floats(-1e9, 1e9) | st.just(-math.inf),
)
def test_results_are_read_as_they_were_written(rows, labels, log_z):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        write_mar(path, rows)
        assert read_mar(path) == rows
        write_map(path, labels)
        assert read_map(path) == labels
        write_pr(path, log_z)
        assert read_pr(path) == pytest.approx(log_z, rel=1e-14)


def test_the_number_of_samples_may_follow_the_header(file):
    assert read_mar(file("MAR\n1\n2 2 0.5 0.5 1 1")) == [[0.5, 0.5], [1]]
    assert read_mar(file("MAR\n1 2 0.5 0.5")) == [[0.5, 0.5]]
    assert read_mar(file("MAR\n1\n1 2 0.5 0.5")) == [[0.5, 0.5]]
    assert read_mar(file("MAR 1 1 1")) == [[1]]
    assert read_map(file("MAP\n1\n3 1 0 1")) == [1, 0, 1]
    assert read_map(file("MAP\n1 7")) == [7]
    assert read_map(file("MPE\n1\n1 7")) == [7]
    assert read_pr(file("PR\n1\n2.5")) == pytest.approx(2.5 * math.log(10))
    assert read_pr(file("PR\n1\n")) == pytest.approx(math.log(10))


@pytest.mark.parametrize(
    ("read", "content", "complaint"),
    [
        (read_mar, "", "the header should follow"),
        (read_mar, "PR 1", "begins with 'PR', expected MAR"),
        (read_mar, "MAR", "the number of variables"),
        (read_mar, "MAR 99999999999 2 0.5 0.5", "99999999999 variables should follow"),
        (read_mar, "MAR 2 2 0.5 0.5", "ends early"),
        (
            read_mar,
            "MAR 2 2 0.5 0.5 99999999999 1",
            "the marginals of variable 1 should follow .words expected: 99999999999",
        ),
        (read_mar, "MAR 2 2 0.5 0.5 1 x", "'x' in the marginals of variable 1"),
        (
            read_mar,
            "MAR 2 2 -0.5 0.5 1 1",
            "'-0.5 0.5' for the marginals of variable 0, expected numbers of at least 0",
        ),
        (read_mar, "MAR 2 1 nan 1 1", "'nan' for the marginals of variable 0"),
        (read_mar, "MAR 2 0 2 1 1", "marginals of variable 0"),
        (read_mar, "MAR 2 1 1 1 1 1", "words left: 1"),
        (read_map, "MAR 1 1", "begins with 'MAR', expected MAP or MPE"),
        (read_map, "MAP 3 0 0", "ends early: the labels should follow .words expected: 3, left: 2."),
        (read_map, "MAP 1 0 0", "words left: 1"),
        (read_map, "MAP 2 0 -1", "'-1' in the labels"),
        (read_pr, "PR", "the logarithm of Z should follow"),
        (read_pr, "PR x", "'x' in the logarithm of Z"),
        (read_pr, "PR nan", "nan for the logarithm of Z, expected a finite number or -inf"),
        (read_pr, "PR inf", "inf for the logarithm of Z"),
        (read_pr, "PR 2 3", "words left: 1"),
    ],
)
def test_unusable_results_are_refused(file, read, content, complaint):
    path = file(content)
    with pytest.raises(BadInput, match=complaint) as error:
        read(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("write", "value"),
    [
        (write_mar, [[0.5, math.nan]]),
        (write_mar, [[-0.5, 1.5]]),
        (write_mar, [[math.inf]]),
        (write_mar, [[1.0], []]),
        (write_map, [0, -1]),
        (write_pr, math.nan),
        (write_pr, math.inf),
    ],
)
def test_results_that_mean_nothing_are_not_written(tmp_path, write, value):
    with pytest.raises(BadInput, match="cannot write"):
        write(tmp_path / "a", value)
    assert not list(tmp_path.iterdir())


# --- damaged files

SOUND = [MARKOV, BAYES, "2 0 1 3 0", "1\n2 0 1 3 0", "MAR\n2 2 0.25 0.75 1 1.0\n", "MAP\n3 1 0 3\n", "PR\n3.5\n"]
WORDS = ["0", "1", "2", "-1", "3.5", "nan", "-inf", "1e400", "1e-400", "9" * 11, "9" * 20, "x", "MARKOV", "1_0", "+1"]


def damaged(content, chance):
    """The content with a few bytes or words deleted, inserted, replaced or cut off."""
    for _ in range(chance.randint(1, 3)):
        kind, by_words = chance.choice(["delete", "insert", "replace", "truncate"]), chance.random() < 0.6
        parts = content.split() if by_words else [bytes([b]) for b in content]
        new = (
            chance.choice(WORDS).encode() if by_words else bytes([chance.choice([chance.randrange(256), *b"0123 -."])])
        )
        at = chance.randrange(len(parts) + 1)
        if kind == "truncate":
            parts = parts[:at]
        elif kind == "insert":
            parts.insert(at, new)
        else:
            parts[at : at + 1] = [new] if kind == "replace" else []
        content = (b" " if by_words else b"").join(parts)
    return content


def outcome(read, path):
    """What was read, or the message of the refusal."""
    try:
        return read(path), None
    except BadInput as error:
        return None, str(error)


@pytest.mark.parametrize("seed", range(10))
def test_damaged_files_are_read_or_refused(file, seed):
    chance = random.Random(seed)
    for _ in range(100):
        path = file(damaged(chance.choice(SOUND).encode(), chance))
        for read in READERS:
            found, message = outcome(read, path)
            if message:
                assert str(path) in message
                assert "\n" not in message
                assert len(message) < len(str(path)) + 200
            elif read is read_model:
                assert found.size < 10**6
                assert not math.isnan(score(found, *[0] * len(found)))


# --- the problems of the competitions


@pytest.mark.skipif(not (SHARED / "MANIFEST.tsv").is_file(), reason="the competition's files are not here")
def test_the_files_of_the_competitions_are_read(tmp_path):
    with open(SHARED / "MANIFEST.tsv", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert rows
    for row in rows:
        path = SHARED / row["file"]
        graph, evidence = read_model(path), read_evidence(f"{path}.evid")
        counts = {
            "vars": len(graph),
            "maxcard": int(graph.cardinalities.max()),
            "factors": graph.num_factors,
            "maxarity": max(len(group.shape) for group in graph.groups),
            "maxtable": max(math.prod(group.shape) for group in graph.groups),
            "evid": len(evidence),
        }
        assert counts == {name: int(row[name]) for name in counts}, path
        graph.condition(evidence)
        if "MAR" in row["solutions"]:
            marginals = read_mar(f"{path}.MAR")
            assert [len(m) for m in marginals] == graph.cardinalities.tolist()
            assert [sum(m) for m in marginals] == pytest.approx([1] * len(graph), abs=1e-4)
        if "MAP" in row["solutions"]:
            labels = torch.tensor(read_map(f"{path}.MAP"))
            assert math.isfinite(graph.energy(labels).item())
            assert all(labels[v] == label for v, label in evidence.items())
        if row["exact_log10Z_checked"]:
            log_z = float(row["exact_log10Z_checked"]) * math.log(10)
            assert read_pr(f"{path}.PR") == pytest.approx(log_z, rel=1e-5)
        write_model(tmp_path / "again.uai", graph)
        again = read_model(tmp_path / "again.uai")
        labels = torch.zeros(len(graph), dtype=torch.int64)
        assert again.energy(labels).item() == pytest.approx(graph.energy(labels).item(), rel=1e-12)
