"""Image data sets as tensors, and the batches cut from them."""

from mrfquant.data.batches import Batches, evaluation_batches, normalise
from mrfquant.data.cifar import cifar10, cifar100
from mrfquant.data.dataset import Dataset, DatasetInfo, Split
from mrfquant.data.digits import digits
from mrfquant.data.mnist import mnist
from mrfquant.data.registry import DATASETS, dataset
from mrfquant.data.root import data_root
from mrfquant.data.stand_in import stand_in
from mrfquant.data.tinyimagenet import tinyimagenet

__all__ = [
    "DATASETS",
    "Batches",
    "Dataset",
    "DatasetInfo",
    "Split",
    "cifar10",
    "cifar100",
    "data_root",
    "dataset",
    "digits",
    "evaluation_batches",
    "mnist",
    "normalise",
    "stand_in",
    "tinyimagenet",
]
