"""Data sets, and the batches cut from them: images, texts, tensors of any kind, and torch's DataLoaders."""

from mrfquant.data.base import DATASETS as DATASETS
from mrfquant.data.base import STAND_IN as STAND_IN
from mrfquant.data.base import STAND_INS as STAND_INS
from mrfquant.data.base import Dataset as Dataset
from mrfquant.data.base import SplitName as SplitName
from mrfquant.data.base import dataset as dataset
from mrfquant.data.cifar import cifar10 as cifar10
from mrfquant.data.cifar import cifar100 as cifar100
from mrfquant.data.digits import digits as digits
from mrfquant.data.image_batches import Augmentation as Augmentation
from mrfquant.data.image_batches import normalise as normalise
from mrfquant.data.images import DatasetInfo as DatasetInfo
from mrfquant.data.images import Images as Images
from mrfquant.data.images import Split as Split
from mrfquant.data.loaders import Loaders as Loaders
from mrfquant.data.mnist import mnist as mnist
from mrfquant.data.pairs import Pairs as Pairs
from mrfquant.data.root import data_root as data_root
from mrfquant.data.stand_in import stand_in as stand_in
from mrfquant.data.texts import alice as alice
from mrfquant.data.texts import byte_file as byte_file
from mrfquant.data.texts import shakespeare as shakespeare
from mrfquant.data.texts import text_file as text_file
from mrfquant.data.tinyimagenet import tinyimagenet as tinyimagenet
from mrfquant.data.tokens import Tokens as Tokens
from mrfquant.data.tokens import characters as characters
