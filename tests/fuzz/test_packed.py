"""Packed files, their metadata with a right checksum, and ONNX files."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mrfquant.packing import PackedNetwork, PackedParameter, load
from mrfquant.packing.file import _checksum
from mrfquant.packing.runtime import RuntimeNetwork


def read_packed(path):
    """A packed file whose metadata are the lines of a text, with the right checksum; as far as a network."""
    lines = path.read_bytes().decode("utf-8", "replace").split("\n")
    metadata = dict(zip(("network", "input_info", "blocks", "origin"), lines, strict=False)) | {"format": "mrfquant 1"}
    tensors = {"a": torch.zeros(1, dtype=torch.uint8), "b": torch.ones(2)}
    metadata["sha256"] = _checksum(metadata, tensors)
    save_file(tensors, path.with_suffix(".safetensors"), metadata)
    _ = PackedNetwork.read(path.with_suffix(".safetensors")).title
    return load(path.with_suffix(".safetensors"), nn.ParameterDict({"a": torch.ones(2, 2), "b": torch.ones(2)}))


def metadata(path):
    images = '{"mean":[0.5],"std":[0.5],"classes":["x"]}'
    path.write_text(
        f'["LeNet300",{{"shape":[1,8,8],"classes":10}}]\n{images}\n[[[-1,1],"bits",{{"a":[2,2]}}]]\n{{"run":"x"}}'
    )


def packed(path):
    parameters = {
        "a": PackedParameter.of(torch.tensor([[1.0, -1.0, 1.0]]), (-1.0, 1.0)),
        "b": PackedParameter.of(torch.tensor([[0.0, 2.0]]), (-1.0, 0.0, 1.0), "base3", torch.tensor([2.0])),
    }
    images = {"mean": [0.5], "std": [0.5], "classes": ["x"]}
    PackedNetwork("LeNet300", {"shape": [1, 8, 8]}, images, parameters, {"c": torch.ones(2)}).write(path)


def onnx(path):
    pytest.importorskip("onnxruntime")
    helper, kind = pytest.importorskip("onnx.helper"), 1  # float32
    values = [helper.make_tensor_value_info(name, kind, [2, 3]) for name in "xy"]
    weight = helper.make_tensor("w", kind, [3, 3], np.eye(3).flatten())
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Relu", ["z"], ["y"])]
    graph, opset = helper.make_graph(nodes, "g", values[:1], values[1:], [weight]), helper.make_opsetid("", 17)
    model = helper.make_model(graph, ir_version=8, opset_imports=[opset])
    path.write_bytes(model.SerializeToString())


READERS = {  # name: the file, how a whole one is made, how it is read
    "packed": ("x.safetensors", packed, PackedNetwork.read),
    "packed metadata": ("x.lines", metadata, read_packed),
    "onnx": ("x.onnx", onnx, lambda path: RuntimeNetwork(path.read_bytes())),
}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_network_gives_an_answer_or_a_sentence(name, fuzz, tmp_path):
    file, make, read = READERS[name]
    make(tmp_path / file)
    fuzz(name, tmp_path / file, read)
