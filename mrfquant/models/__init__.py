"""Networks: the paper's, ResNet-20 and its like, a network that learns fast, and a GPT.

The paper's have batch norm without learnable parameters.
"""

from mrfquant.models.gpt import GPT
from mrfquant.models.paper import VGG, LeNet5, LeNet300, ResNet
from mrfquant.models.registry import NETWORKS, network
from mrfquant.models.resnet_cifar import CifarResNet
from mrfquant.models.whitened import WhitenedNet

__all__ = ["GPT", "NETWORKS", "VGG", "CifarResNet", "LeNet5", "LeNet300", "ResNet", "WhitenedNet", "network"]
