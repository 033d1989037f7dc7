"""The decoder against properties that it must have: causality, relative positions, a cache that changes nothing."""

import math

import pytest
import torch

from mrfquant.errors import BadInput, BadSetting
from mrfquant.models import GPT
from mrfquant.models.gpt import rotate


@pytest.fixture(params=["rotary", "learned"])
def model(request):
    torch.manual_seed(0)
    return GPT((12,), 20, layers=2, width=16, heads=2, positions=request.param).eval()


def test_it_has_the_parameters_that_its_description_says():
    model = GPT((128,), 65)
    assert sum(p.numel() for p in model.parameters()) == 65 * 128 + 4 * (12 * 128**2 + 2 * 128) + 128
    assert model.token.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.blocks[0].mlp.out.weight.std().item() == pytest.approx(0.02 / math.sqrt(8), rel=0.05)


def test_no_token_sees_what_follows(model):
    tokens = torch.randint(20, (1, 12))
    changed = tokens.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 20
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize("cuts", [(1,) * 12, (5, 1, 6), (12,)])
def test_a_cache_changes_nothing(model, cuts):
    tokens = torch.randint(20, (3, 12))
    cache: list = []
    parts = [model(part, cache) for part in tokens.split(list(cuts), 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens), rtol=1e-4, atol=1e-5)


def test_products_of_turned_vectors_depend_on_their_distance_only():
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 8)
    products = [(rotate(q, place + 3) * rotate(k, place)).sum().item() for place in (0, 1, 50)]
    assert products == pytest.approx([products[0]] * 3, rel=1e-4)
    assert rotate(q, 5).norm().item() == pytest.approx(q.norm().item(), rel=1e-5)


def test_drawn_tokens_follow_the_network_beyond_the_context(model):
    with torch.no_grad():
        model.norm.weight.mul_(50)  # decided: what is drawn is the likeliest
    generator = torch.Generator().manual_seed(0)
    found = model.generate(torch.tensor([1, 2]), 25, temperature=1e-6, generator=generator)
    assert (len(found), found[:2].tolist()) == (27, [1, 2])
    assert found[2:12].tolist() == model(found[None, :12])[0].argmax(1)[1:11].tolist()


def test_what_cannot_be_built_or_read_is_refused(model):
    with pytest.raises(BadInput, match="13 tokens, GPT was built for windows of 12"):
        model(torch.zeros(1, 13, dtype=torch.long))
    with pytest.raises(BadInput, match=r"inputs of shape \(1, 28, 28\)"):
        GPT((1, 28, 28), 10)
    with pytest.raises(BadSetting, match="a multiple of 8"):
        GPT((12,), 10, width=36, heads=4)
