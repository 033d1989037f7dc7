"""CIFAR's ResNets against their published sizes, and against public weights where these are at hand."""

from pathlib import Path

import pytest
import torch

from mrfquant.data import cifar10, data_root, normalise
from mrfquant.models import CifarResNet

PRETRAINED = Path(__file__).parents[3] / "shared" / "pretrained"


@pytest.mark.parametrize(("depth", "parameters"), [(20, 269_722), (44, 658_586), (56, 853_018), (110, 1_727_962)])
def test_parameter_count_is_the_published_one(depth, parameters):
    with torch.device("meta"):
        model = CifarResNet((3, 32, 32), 10, depth=depth)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert sum(isinstance(m, torch.nn.Conv2d | torch.nn.Linear) for m in model.modules()) == depth


def test_the_shortcut_is_every_second_pixel_between_zeros():
    block = CifarResNet((3, 32, 32), 10).layer2[0].eval()
    torch.nn.init.zeros_(block.bn2.weight)  # the convolutions add nothing
    x = torch.rand(2, 16, 8, 8)
    y = block(x)
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2])
    assert not y[:, :8].any()
    assert not y[:, 24:].any()


@pytest.mark.skipif(not PRETRAINED.exists(), reason="the public weights are not beside the project")
@pytest.mark.parametrize(("depth", "accuracy"), [(20, 91.7), (44, 93.1)])
def test_public_weights_have_the_accuracy_they_are_known_for(depth, accuracy):
    from safetensors.torch import load_file

    model = CifarResNet((3, 32, 32), 10, depth=depth).eval()
    model.load_state_dict(load_file(PRETRAINED / f"resnet{depth}_cifar10.safetensors"), strict=False)
    if not (data_root() / "cifar-10-batches-bin").exists():
        pytest.skip("CIFAR-10 is not there")
    test = cifar10(data_root()).test
    images = normalise(test.images[:1000], (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    with torch.inference_mode():
        found = 100 * (model(images).argmax(1) == test.labels[:1000]).double().mean().item()
    assert found == pytest.approx(accuracy, abs=2.0)  # of a tenth of the images
