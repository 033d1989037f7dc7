"""A public ResNet for CIFAR-10 rounded without training: the figures of the guide to rounding.

    python round_resnet.py DEPTH BITS SOLVER WEIGHTS

SOLVER is nearest, gptq, best (gptq at its best order and scales), icm, mean_field or tree; WEIGHTS are those of
pytorch_resnet_cifar10 as a safetensors file. CIFAR-10 is read from the data root.

Expected output for 20 2 icm, in half a minute: a line for every layer, the report, and

    test accuracy 90.70 %
"""

import itertools
import sys

from safetensors.torch import load_file

import mrfquant as mq
from mrfquant.data import cifar10, data_root
from mrfquant.models import CifarResNet
from mrfquant.rounding.solvers import SCALE_FACTORS, RoundGPTQ
from mrfquant.training import evaluate

if __name__ == "__main__":
    depth, bits, solver, weights = sys.argv[1:]
    model = CifarResNet((3, 32, 32), 10, depth=int(depth))
    model.load_state_dict(load_file(weights))
    data = cifar10(data_root(), statistics="imagenet")
    batches = itertools.islice(data.ordered("train", 128), 8)
    chosen = RoundGPTQ(SCALE_FACTORS, by_activation=True) if solver == "best" else solver
    print(mq.round_network(model, batches, int(bits), chosen, exclude=["conv1", "linear"]))
    print(f"test accuracy {evaluate(model, data, 'test')['top1']:.2f} %")
