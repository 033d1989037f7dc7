"""The network of the speed records: its stem whitens, its size is the published one."""

import pytest
import torch

from mrfquant.errors import BadInput
from mrfquant.models import WhitenedNet


def test_parameter_count_is_the_published_one():
    with torch.device("meta"):
        model = WhitenedNet((3, 32, 32), 10)
    assert sum(p.numel() for p in model.groups.parameters() if p.dim() > 1) == 1_967_616
    assert model(torch.zeros(2, 3, 32, 32, device="meta")).shape == (2, 10)


def test_the_stem_whitens_the_patches_it_was_fitted_to():
    torch.manual_seed(0)
    images = torch.randn(64, 3, 17, 17).cumsum(2).cumsum(3)  # neighbours are alike
    model = WhitenedNet((3, 17, 17), 10)
    model.fit_to(images)
    seen = model.stem(images).transpose(0, 1).flatten(1)
    torch.testing.assert_close(torch.cov(seen[:12]), torch.eye(12), atol=0.05, rtol=0)
    torch.testing.assert_close(seen[12:], -seen[:12])
    assert not model.stem.weight.requires_grad


def test_the_activation_is_the_one_that_is_named():
    kinds = {"relu": torch.nn.ReLU, "gelu": torch.nn.GELU}
    for name, kind in kinds.items():
        model = WhitenedNet((3, 17, 17), 10, activation=name)
        assert [type(m) for m in model.modules() if isinstance(m, tuple(kinds.values()))] == [kind] * 7
        assert model.arguments.get("activation", "relu") == name  # a packed file builds the same network again


@pytest.mark.parametrize(("shape", "widths"), [((3, 16, 16), (8, 8, 8)), ((3, 32, 32), (8, 8))])
def test_what_does_not_fit_is_refused(shape, widths):
    with pytest.raises(BadInput, match="WhitenedNet"):
        WhitenedNet(shape, 10, widths)
