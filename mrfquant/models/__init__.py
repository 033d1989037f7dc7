"""Networks: the paper's, in their CIFAR form with batch norm that has nothing to learn, and a GPT."""

from mrfquant.models.gpt import GPT
from mrfquant.models.lenet import LeNet5, LeNet300
from mrfquant.models.registry import NETWORKS, network
from mrfquant.models.resnet import ResNet
from mrfquant.models.vgg import VGG

__all__ = ["GPT", "NETWORKS", "VGG", "LeNet5", "LeNet300", "ResNet", "network"]
