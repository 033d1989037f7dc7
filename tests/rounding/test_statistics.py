"""Targets and statistics against least squares on stacked data and direct computation."""

import copy

import torch
from torch import nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.rounding.layer_statistics import LayerStatistics, RowStatistics
from mrfquant.rounding.solvers import LayerSolver, RoundGPTQ, RoundNearest


class Spy(LayerSolver):
    """Nearest levels; remembers the weights that it was to round."""

    name = "spy"

    def __init__(self):
        self.targets = []

    def solve(self, problem):
        self.targets.append(problem.w.T)
        return RoundNearest().solve(problem)


class Residual(nn.Module):
    """A convolution with batch norm beside a shortcut."""

    def __init__(self, channels):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        nn.init.uniform_(self.norm.weight, 0.5, 2)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        return functional.relu(self.norm(self.conv(x)) + x)


def inputs_and_outputs(model, layer, x):
    """Of a layer, while the model computes x."""
    found = []
    hook = layer.register_forward_hook(lambda _, given, out: found.append((given[0], out)))
    with torch.no_grad():
        model.eval()(x)
    hook.remove()
    return found[0]


def test_targets_are_the_least_squares_solution():
    generator = torch.Generator().manual_seed(0)
    x, y, w = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((50, 6), (50, 3), (3, 6)))
    rows = RowStatistics(x.T @ x, y.T @ x, 50)
    found = rows.targets(w, rows.curvature(0.2))
    # Damping is as many further inputs along the axes, on which the outputs are the trained weights'.
    ridge = (0.2 * rows.a.diagonal().mean()).sqrt() * torch.eye(6, dtype=torch.float64)
    expected = torch.linalg.lstsq(torch.cat([x, ridge]), torch.cat([y, ridge @ w.T])).solution.T
    torch.testing.assert_close(found, expected)


def test_targets_are_those_of_the_float_network_less_the_shortcuts_error():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), Residual(4), Residual(4)).double()
    trained, x, spy = copy.deepcopy(model), torch.randn(60, 2, 6, 6, dtype=torch.float64), Spy()
    mq.round_network(model, [x[:30], x[30:]], bits=1, solver=spy, damping=1e-9, progress=False)
    for block in (1, 2):
        _, y = inputs_and_outputs(trained, trained[block].conv, x)
        x_q, _ = inputs_and_outputs(model, model[block].conv, x)
        (shortcut, _), (shortcut_q, _) = (inputs_and_outputs(net, net[block], x) for net in (trained, model))
        norm = trained[block].norm
        gain = (norm.weight / (norm.running_var + norm.eps).sqrt()).view(1, -1, 1, 1)
        wanted = (shortcut - shortcut_q) / gain + y - trained[block].conv.bias.view(1, -1, 1, 1)
        columns = functional.unfold(x_q, 3, padding=1).transpose(1, 2).flatten(0, 1)
        expected = torch.linalg.lstsq(columns, wanted.flatten(2).transpose(1, 2).flatten(0, 1)).solution.T
        torch.testing.assert_close(spy.targets[block], expected.detach(), rtol=1e-4, atol=1e-4)


def test_a_pre_norm_transformers_sums_are_found():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True).double()
    model = nn.Sequential(nn.Linear(4, 8).double(), layer)
    trained, x, spy = copy.deepcopy(model), torch.randn(80, 5, 4, dtype=torch.float64), Spy()
    mq.round_network(model, [x], bits=1, solver=spy, damping=1e-9, progress=False)
    # The last product of the block: its sum with the stream is the block's output.
    with torch.no_grad():
        wanted = trained.eval()(x)
    x_q, y_q = inputs_and_outputs(model, model[1].linear2, x)
    with torch.no_grad():
        wanted = wanted - (model.eval()(x) - y_q) - model[1].linear2.bias
    expected = torch.linalg.lstsq(x_q.flatten(0, 1), wanted.flatten(0, 1)).solution
    torch.testing.assert_close(x_q @ spy.targets[-1].T, x_q @ expected, rtol=1e-3, atol=1e-3)


def test_rows_that_no_input_reaches_keep_their_weights_as_targets():
    w = torch.randn(4, 3)
    ((rows, sums),) = LayerStatistics("expert", w, 1, torch.Generator()).parts()
    assert rows == slice(0, 4)
    torch.testing.assert_close(sums.targets(w, sums.curvature(0.1)), w)


def test_what_is_written_to_later_is_seen_as_it_was():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 6), nn.Linear(6, 4, bias=False)

        def forward(self, x):
            x = self.before(x)
            x += self.two(self.one(x).relu_())
            return x.relu_()

    torch.manual_seed(0)
    model, spy, x = InPlace().double(), Spy(), torch.randn(80, 4, dtype=torch.float64)
    trained = copy.deepcopy(model)
    mq.round_network(model, [x], bits=1, solver=spy, damping=1e-9, progress=False)
    with torch.no_grad():
        stream, exact = model.before(x), trained.before(x)
        one = torch.linalg.pinv(stream) @ (trained.one(exact) - trained.one.bias)
        torch.testing.assert_close(stream @ spy.targets[1].T, stream @ one, rtol=1e-4, atol=1e-4)
        hidden = model.one(stream).relu()
        wanted = exact + trained.two(trained.one(exact).relu()) - stream
        two = torch.linalg.pinv(hidden) @ wanted
    torch.testing.assert_close(hidden @ spy.targets[2].T, hidden @ two, rtol=1e-3, atol=1e-3)


def test_a_scaled_branch_is_followed():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.branch = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)

        def forward(self, x):
            x = self.before(x)
            return x + 0.5 * self.branch(torch.tanh(x)).transpose(0, 1).contiguous().transpose(0, 1)

    torch.manual_seed(0)
    model, spy, x = Scaled().double(), Spy(), torch.randn(50, 4, dtype=torch.float64)
    trained = copy.deepcopy(model)
    mq.round_network(model, [x], bits=1, solver=spy, damping=1e-9, progress=False)
    with torch.no_grad():
        shortcut = model.before(x)
        x_q = torch.tanh(shortcut)
        expected = torch.linalg.pinv(x_q) @ ((trained(x) - shortcut) / 0.5)
    torch.testing.assert_close(x_q @ spy.targets[1].T, x_q @ expected, rtol=1e-4, atol=1e-4)


def test_a_sum_with_what_is_rounded_later_is_no_target():
    """The error of a branch that is not rounded yet will change."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.one, self.two = (nn.Linear(4, 4, bias=False) for _ in range(3))

        def forward(self, x):
            x = self.before(x)
            return self.one(x) + self.two(x)

    torch.manual_seed(0)
    model, spy, x = Two().double(), Spy(), torch.randn(50, 4, dtype=torch.float64)
    trained = copy.deepcopy(model)
    mq.round_network(model, [x], bits=1, solver=spy, damping=1e-9, progress=False)
    with torch.no_grad():
        x_q, x_f = model.before(x), trained.before(x)
        expected = torch.linalg.pinv(x_q) @ trained.one(x_f)
    torch.testing.assert_close(x_q @ spy.targets[1].T, x_q @ expected, rtol=1e-4, atol=1e-4)


def test_statistics_of_norms_follow_the_rounding():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), Residual(4)).double()
    model[1].running_mean.normal_()
    trained, x = copy.deepcopy(model), torch.randn(60, 2, 6, 6, dtype=torch.float64)
    mq.round_network(model, [x[:25], x[25:]], bits=1, solver="gptq", progress=False)
    for name in ("1", "3.norm"):
        before, after = trained.get_submodule(name), model.get_submodule(name)
        float_x, _ = inputs_and_outputs(trained, before, x)
        rounded_x, _ = inputs_and_outputs(model, after, x)
        over = (0, 2, 3)
        k = (rounded_x.var(over, correction=0) / float_x.var(over, correction=0)).sqrt()
        mean = before.running_mean * k + rounded_x.mean(over) - float_x.mean(over) * k
        torch.testing.assert_close(after.running_mean, mean)
        torch.testing.assert_close(after.running_var, before.running_var * k**2)


def test_eight_bits_change_next_to_nothing_where_statistics_are_not_the_batches():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), Residual(8), Residual(8))
    x = torch.randn(50, 3, 8, 8) + 1
    with torch.no_grad():
        before = model.eval()(x)
        mq.round_network(model, [x], bits=8, solver=RoundGPTQ(), progress=False)
        error = (model(x) - before).square().mean() / before.var()
    assert error < 1e-4
