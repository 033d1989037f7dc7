"""Which layers are labelled and rounded, by one rule, and what is said of the others."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, weight_norm

import mrfquant as mq
from mrfquant.packing.runs import size_report


class Conv1D(nn.Module):
    """A linear layer with transposed weights, as GPT-2 of transformers has it."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.nx, self.nf = inputs, outputs
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight)


class Experts(nn.Module):
    """Weights of several experts in one tensor, as transformers 5 has them; each takes its share of the inputs."""

    def __init__(self, turned, inputs=8, outputs=8):
        super().__init__()
        self.is_transposed = turned
        self.up_proj = nn.Parameter(torch.randn(3, inputs, outputs) if turned else torch.randn(3, outputs, inputs))
        self.up_proj_bias = nn.Parameter(torch.randn(3, outputs))

    def forward(self, x):
        parts = [
            part @ w if self.is_transposed else functional.linear(part, w)
            for part, w in zip(x.chunk(3), self.up_proj, strict=True)
        ]
        return torch.cat(parts)


class Own(nn.Module):
    """A layer of one's own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8, 8))

    def forward(self, x):
        return torch.einsum("bi,eoi->bo", x, self.weight)


class Adapted(nn.Module):
    """A layer with adapters beside it, as PEFT makes it."""

    def __init__(self, freeze=False):
        super().__init__()
        self.base_layer = nn.Linear(8, 8).requires_grad_(not freeze)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(8, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 8, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.linear = nn.Embedding(9, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.lm_head = nn.Linear(8, 9, bias=False)
        self.lm_head.weight = self.embedding.weight

    def forward(self, x):
        return self.lm_head(self.linear(self.norm(self.embedding(x))))


def linear(*others):
    return nn.Sequential(nn.Linear(8, 8), *others)


def old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        return linear(weight_norm(nn.Linear(8, 8)))


MODELS = {
    "tied embedding": (Tied, {"linear.weight"}),
    "adapters": (lambda: linear(Adapted()), {"0.weight", "1.base_layer.weight"}),
    "weight norm": (lambda: linear(parametrizations.weight_norm(nn.Linear(8, 8))), {"0.weight"}),
    "old weight norm": (old_weight_norm, {"0.weight"}),
    "transformers' layers": (
        lambda: linear(Conv1D(8, 8), Experts(False), Experts(True)),
        {"0.weight", "1.weight", "2.up_proj", "3.up_proj"},
    ),
    "other layers": (lambda: linear(Own()), {"0.weight"}),
}


@pytest.mark.filterwarnings("ignore:.*stay in float")
@pytest.mark.parametrize("name", MODELS)
def test_labelling_and_rounding_take_the_same_layers(name):
    build, expected = MODELS[name]
    assert set(mq.Labelling(build(), [-1, 1], which="weights").labelled.spans) == expected
    batch = torch.randint(9, (30,)) if name == "tied embedding" else torch.randn(30, 8)
    assert set(mq.round_network(build(), [batch], solver="nearest", progress=False).levels) == expected


@pytest.mark.parametrize("name", ["weight norm", "old weight norm", "other layers"])
def test_layers_that_are_not_known_are_not_left_in_float_without_a_word(name):
    told = "matrices of Own" if name == "other layers" else "parametrized weights"
    with pytest.warns(UserWarning, match=f"parameters stay in float: .*{told}"):
        mq.Labelling(MODELS[name][0](), [-1, 1], which="weights")
    with pytest.warns(UserWarning, match="parameters stay in float"):
        mq.round_network(MODELS[name][0](), [torch.randn(30, 8)], solver="nearest", progress=False)


@pytest.mark.parametrize("name", ["tied embedding", "adapters", "transformers' layers"])
def test_what_nobody_wants_on_levels_is_left_without_a_warning(name, recwarn):
    mq.Labelling(MODELS[name][0](), [-1, 1], which="weights")
    assert not recwarn.list


def test_adapters_are_not_labelled_in_the_place_of_a_frozen_layer():
    with pytest.raises(mq.BadInput, match="or unfreeze the layers you mean"):
        mq.Labelling(Adapted(freeze=True), [-1, 1], which="weights")


def test_layers_of_other_types_are_labelled_where_they_are_named():
    labelling = mq.Labelling(linear(Own()), [-1, 1], which=mq.weights_of(nn.Linear, Own), scale="channel")
    assert set(labelling.labelled.spans) == {"0.weight", "1.weight"}


def test_a_tied_parameter_is_excluded_by_any_of_its_names():
    labelling = mq.Labelling(Tied(), [-1, 1], exclude=["lm_head*"])
    assert "embedding.weight" not in labelling.labelled.spans
    levels = mq.Labelling(Tied(), {"lm_head*": [-1, 0, 1], "*": [-1, 1]}).block_of("embedding.weight").levels
    assert levels.values == (-1, 0, 1)


def test_the_same_report_says_what_is_on_levels_and_what_is_not_and_why():
    model = Tied()
    model.linear.bias.requires_grad_(False)
    lines = [
        "64 of 160 parameters are on levels, 40.0%",
        "72 are not, 45.0%: tied to embeddings",
        "16 are not, 10.0%: norms",
    ]
    labelled = mq.Labelling(model, [-1, 1], which="weights").summary().splitlines()
    assert [*lines, "8 are not, 5.0%: frozen"] == labelled[-5:-1]
    rounded = mq.round_network(Tied(), [torch.randint(9, (30,))], solver="nearest", progress=False)
    lines.append("8 are not, 5.0%: biases and other vectors")
    assert lines == str(rounded).splitlines()[-5:-1]
    packed = size_report(rounded.pack(), 1000)
    assert [f"coverage     {lines[0]}", *(" " * 13 + line for line in lines[1:])] == packed[:4]
