"""Weights whose rows do not lie along their first dimension are labelled, rounded and packed as nn.Linear's are."""

import copy

import pytest
import torch
from torch import nn

import mrfquant as mq
from mrfquant.packing.layers import pack_layers
from tests.labelling.test_selection import Conv1D, Experts

INPUTS, OUTPUTS = 12, 6


def conv1d():
    return Conv1D(INPUTS, OUTPUTS)


LAYERS = {  # with the weights of nn.Linear that they have
    "Conv1D": (conv1d, lambda w: [w.T]),
    "experts": (lambda: Experts(False, INPUTS, OUTPUTS), list),
    "turned experts": (lambda: Experts(True, INPUTS, OUTPUTS), lambda w: [part.T for part in w]),
}


def network(name):
    torch.manual_seed(0)
    return nn.Sequential(LAYERS[name][0](), nn.ReLU(), nn.Linear(OUTPUTS, 2))


def weight(model):
    return next(p for p in model[0].parameters() if p.dim() > 1)


def linear_layers(name, model):
    """Networks with the same weights in nn.Linear, one for each expert."""
    found = []
    for w in LAYERS[name][1](weight(model).detach()):
        found.append(nn.Sequential(nn.Linear(INPUTS, OUTPUTS), nn.ReLU(), nn.Linear(OUTPUTS, 2)))
        found[-1][0].weight.data.copy_(w)
    return found


def together(name, weights):
    """Weights of nn.Linear as the layer has them."""
    if name == "Conv1D":
        return weights[0].T
    return torch.stack([w.T for w in weights] if name == "turned experts" else weights)


@pytest.mark.parametrize("scale", ["channel", "group"])
@pytest.mark.parametrize("name", LAYERS)
def test_scales_follow_the_outputs(name, scale):
    model, settings = network(name), {"which": "weights", "scale": scale, "group_size": 5}
    plain = linear_layers(name, model)
    labelling = mq.Labelling(model, [-1, 0, 1], **settings)
    of_plain = [mq.Labelling(each, [-1, 0, 1], **settings).scale_of("0.weight") for each in plain]
    torch.testing.assert_close(labelling.scale_of(next(iter(labelling.labelled.spans))), together(name, of_plain))


@pytest.mark.parametrize("learn_scale", [False, True])
@pytest.mark.parametrize("name", ["Conv1D", "experts"])
def test_training_takes_the_steps_that_it_takes_with_linear_layers(name, learn_scale):
    model = network(name)
    plain = linear_layers(name, model)
    for each in plain:
        each[0].bias.data.copy_(model[0].bias.data if name == "Conv1D" else torch.zeros(OUTPUTS))
        each[2].load_state_dict(model[2].state_dict())
    form = "line" if learn_scale else "wells"
    solvers = []
    for each in (model, *plain):
        labelling = mq.Labelling(each, [-1, 0, 1], which="weights", scale="channel", exclude=["2.*"])
        sgd = lambda p: torch.optim.SGD(p, lr=0.5)  # noqa: E731 - without a state that depends on sizes
        solvers.append(mq.ProximalMeanField(labelling, sgd, start="weights", learn_scale=learn_scale, form=form))
        solvers[-1].prepare(4)
        for p in (*each[2].parameters(), each[0].up_proj_bias if name == "experts" and each is model else each[0].bias):
            p.requires_grad_(False)
    x = torch.randn(12, INPUTS)
    for _ in range(4):
        model(x).square().sum().backward()
        for each, part in zip(plain, x.chunk(len(plain)), strict=True):
            each(part).square().sum().backward()
        for solver in solvers:
            solver.step()
    for solver in solvers:
        solver.finalize()
    expected = together(name, [each[0].weight.detach() for each in plain])
    torch.testing.assert_close(weight(model).detach(), expected)
    assert weight(model).is_contiguous()


def test_a_state_dict_has_them_contiguous_while_training():
    """As transformers needs them to save a checkpoint."""
    model = network("Conv1D")
    before = weight(model).detach().clone()
    labelling = mq.Labelling(model, [-1, 0, 1], which="weights", scale="channel")
    mq.Labelling(model, [-1, 0, 1], which="weights", scale="channel")
    assert not weight(model).is_contiguous()
    for network_, prefix in ((model, ""), (copy.deepcopy(nn.Sequential(model)), "0.")):
        state = network_.state_dict()
        assert state[prefix + "0.weight"].is_contiguous()
        assert torch.equal(state[prefix + "0.weight"], before)
    assert len(model[0]._state_dict_hooks) == 1
    assert len(labelling) == before.numel() + 2 * OUTPUTS


@pytest.mark.parametrize("settings", [{}, {"group_size": 5, "zero_point": True}])
@pytest.mark.parametrize("name", LAYERS)
def test_rounding_finds_the_labels_that_it_finds_for_linear_layers(name, settings):
    model = network(name)
    plain, x = linear_layers(name, model), torch.randn(90, INPUTS)
    settings = {"exclude": ["2"], "progress": False, **settings}
    mq.round_network(model, [x], 2, **settings)
    for each, part in zip(plain, x.chunk(len(plain)), strict=True):
        mq.round_network(each, [part], 2, **settings)
    torch.testing.assert_close(weight(model), together(name, [each[0].weight for each in plain]))


@pytest.mark.parametrize("way", ["labelled", "rounded", "rounded in groups"])
@pytest.mark.parametrize("name", LAYERS)
def test_files_keep_them_to_the_bit_and_packed_layers_compute_the_same(name, way, tmp_path):
    model, x, path = network(name), torch.randn(90, INPUTS), tmp_path / "x.safetensors"
    if way == "labelled":
        labelling = mq.Labelling(model, [-1, 0, 1], which="weights", scale="channel")
        mq.StraightThrough(labelling, lambda p: torch.optim.Adam(p, lr=0.01), start="weights").finalize()
        mq.pack_model(model, labelling).write(path)
    else:
        size = 5 if way == "rounded in groups" else None
        mq.round_network(model, [x], 2, solver="nearest", group_size=size, progress=False).save(path)
    loaded = mq.load(path, network(name))
    packed = loaded.packed_network.parameters
    assert len(packed) == 2
    assert next(iter(packed.values())).labels().shape == weight(model).shape
    with torch.no_grad():
        assert torch.equal(loaded(x), model.eval()(x))
        torch.testing.assert_close(pack_layers(loaded, packed)[0](x), model[0](x))


def test_onnx_runtime_computes_the_same_as_a_turned_layer(tmp_path):
    pytest.importorskip("onnxruntime")
    from mrfquant.packing.onnx_export import to_onnx
    from mrfquant.packing.runtime import RuntimeNetwork

    model, x = network("Conv1D"), torch.randn(90, INPUTS)
    rounded = mq.round_network(model, [x], 2, solver="nearest", group_size=5, progress=False)
    exported = to_onnx(model.eval(), rounded.pack().parameters, (x,), {})
    with torch.no_grad():
        torch.testing.assert_close(RuntimeNetwork(exported.data)(x), model(x), rtol=1e-5, atol=1e-5)
