"""What a type checker knows of the public names: mypy, strict, on a user's file."""

import textwrap
from pathlib import Path

import pytest

import mrfquant

api = pytest.importorskip("mypy.api")

ROOT = Path(mrfquant.__file__).parent.parent
# What --strict stands for, of this one file: the packages it imports are then those in the cache of `make test`.
STRICT = """\
# mypy: disallow-any-generics, disallow-subclassing-any, disallow-untyped-calls, disallow-untyped-defs
# mypy: disallow-incomplete-defs, check-untyped-defs, disallow-untyped-decorators, warn-return-any
# mypy: strict-equality, extra-checks, no-implicit-reexport
"""
USE = """
    import functools

    import torch

    import mrfquant as mq


    @mq.configurable
    class Halving(mq.Schedule):
        def __init__(self, start: mq.Positive = 1.0) -> None:
            self.start = start

        def __call__(self, k: int, budget: int | None) -> float:
            return self.start * 0.5**k


    model = torch.nn.Linear(2, 3)
    labelling = mq.Labelling(model, [-1, 1], scale="channel")
    solver = mq.ProximalMeanField(labelling, functools.partial(torch.optim.Adam, lr=1e-3), Halving(2.0))
    model(torch.zeros(1, 2)).sum().backward()
    solver.step()
    bits: float = solver.diagnostics()["entropy"]
    field = mq.FactorGraph([2, 2], [([0, 1], [[0.0, 1.0], [1.0, 0.0]])])
    found: mq.Result = mq.solve(field, mq.BeliefPropagation, iterations=10)
    reveal_type(mq.ProximalMeanField)
    reveal_type(Halving(2.0))
    reveal_type(solver.variables)
"""
MISTAKES = """
    import torch

    import mrfquant as mq

    mq.Labelling(torch.nn.Linear(2, 3), levels=3)
    mq.Labelling(torch.nn.Linear(2, 3), [-1, 1], scale="row")
    mq.ProximalMeanField(torch.nn.Linear(2, 3), torch.optim.Adam)
    mq.Geometric(rho="fast")
    mq.SimulatedAnnealing
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """What mypy says about each of the two files, line by line."""
    folder = tmp_path_factory.mktemp("types")
    for name, text in (("use", USE), ("mistakes", MISTAKES)):
        (folder / f"{name}.py").write_text(STRICT + textwrap.dedent(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("MYPYPATH", str(ROOT))
        out, error, _ = api.run(["--no-error-summary", str(folder / "use.py"), str(folder / "mistakes.py")])
    assert not error
    return {name: [line for line in out.splitlines() if f"{name}.py:" in line] for name in ("use", "mistakes")}


def test_a_strict_file_has_no_error_and_parts_keep_their_types(checked):
    assert not [line for line in checked["use"] if "error:" in line]
    solver, schedule, variables = (line.partition("Revealed type is ")[2] for line in checked["use"])
    assert "labelling: mrfquant.labelling.labelling.Labelling" in solver
    assert solver.endswith('-> mrfquant.inference.proximal.ProximalMeanField"')
    assert schedule == '"use.Halving"'
    assert variables == '"list[torch._tensor.Tensor]"'


def test_every_wrong_call_is_an_error(checked):
    wrong = [number for number, line in enumerate(textwrap.dedent(MISTAKES).splitlines(), 1) if "mq." in line]
    assert [int(line.split(":")[1]) - len(STRICT.splitlines()) for line in checked["mistakes"]] == wrong
