"""Data sets, and the batches cut from them: images, texts, tensors of any kind, and torch's DataLoaders."""

from mrfquant.data.cifar import cifar10, cifar100
from mrfquant.data.dataset import DATASETS, STAND_IN, STAND_INS, Dataset, SplitName, dataset
from mrfquant.data.digits import digits
from mrfquant.data.image_batches import Augmentation, normalise
from mrfquant.data.images import DatasetInfo, Images, Split
from mrfquant.data.loaders import Loaders
from mrfquant.data.mnist import mnist
from mrfquant.data.pairs import Pairs
from mrfquant.data.root import data_root
from mrfquant.data.stand_in import stand_in
from mrfquant.data.texts import alice, byte_file, shakespeare, text_file
from mrfquant.data.tinyimagenet import tinyimagenet
from mrfquant.data.tokens import Tokens, characters

__all__ = [
    "DATASETS",
    "STAND_IN",
    "STAND_INS",
    "Augmentation",
    "Dataset",
    "DatasetInfo",
    "Images",
    "Loaders",
    "Pairs",
    "Split",
    "SplitName",
    "Tokens",
    "alice",
    "byte_file",
    "characters",
    "cifar10",
    "cifar100",
    "data_root",
    "dataset",
    "digits",
    "mnist",
    "normalise",
    "shakespeare",
    "stand_in",
    "text_file",
    "tinyimagenet",
]
