"""Classify an image with the ONNX file of a packed network, with ONNX Runtime and NumPy alone:

    mrfquant pack RUN -o model.safetensors --onnx model.onnx --activations int8
    python docs/examples/classify_onnx.py model.onnx image.pgm

The image is a binary PGM or PPM of the size that the network takes. Expected output: the three likeliest classes.
"""

import json
import sys

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1])
about = json.loads(session.get_modelmeta().custom_metadata_map["input_info"])
with open(sys.argv[2], "rb") as file:
    _, columns, rows, most, pixels = file.read().split(maxsplit=4)
image = np.frombuffer(pixels, np.uint8).reshape(int(rows), int(columns), -1).transpose(2, 0, 1) / float(most)
mean, std = (np.array(about[key])[:, None, None] for key in ("mean", "std"))
(logits,) = session.run(None, {"images": ((image - mean) / std).astype(np.float32)[None]})
shares = np.exp(logits[0] - logits[0].max())
for label in np.argsort(-logits[0])[:3]:
    print(f"{about['classes'][label]}  {100 * shares[label] / shares.sum():.1f} %")
