"""Packaging. Exact versions for development and CI are in constraints.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

# What labelling and training a network needs. A package that is imported at the top of a module is one of these.
NEEDED = [
    "torch>=2.5",
    "torchvision",
    "numpy",
    "scipy",
    "networkx",
    "pillow",  # the images of TinyImageNet
    "lazy_loader>=0.4",  # public names without importing torch
    "gin-config>=0.5,<0.6",  # bounded: mrfquant/config/gin_internals.py reads its private state
    "typeguard>=4",  # checks settings against the signatures of the parts
    "tqdm",
    "wandb>=0.18",
    "safetensors>=0.4",  # packed networks
]
# What some commands need; mrfquant/config/extras.py says what to install where it is missing.
EXTRAS = {
    "sweep": ["optuna>=4.9"],
    "reports": ["matplotlib"],  # figures: compare --png, inspect --png, bench --png
    "onnx": ["onnx", "onnx-ir", "onnxscript", "onnxruntime"],
    "tensorboard": ["tensorboard"],  # run --collector TensorBoard
    "exact": ["pytoulbar2>=1.4"],  # proofs for fields: infer --task map
    "fast": ["numba"],  # loops over memory on the CPU
    "language": ["transformers", "accelerate", "gguf"],  # language models: round --model
}
ALL = [package for name, extra in EXTRAS.items() if name != "language" for package in extra]  # that one is large
# What developing needs: to check the code, and what results are compared with.
TOOLS = ["pytest", "pytest-xdist", "hypothesis", "ruff", "mypy", "setuptools"]
DOCS = ["mkdocs<2", "mkdocs-material", "mkdocstrings[python]", "mkdocs-jupyter", "nbclient", "ipykernel"]
TRUTHS = ["scikit-learn", "torchmetrics>=1.0", "lightning", *EXTRAS["language"]]
PEERS = ["psycopg[binary]"]  # tests that compare with them are left out where they are missing

setup(
    name="mrfquant",
    version=re.search(r'__version__ = "(.+)"', Path("mrfquant/__init__.py").read_text())[1],
    description="Quantizing neural networks by inference in Markov random fields",
    long_description=Path("README.md").read_text(),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10",
    # The configs of gin/ travel in the wheel as mrfquant/configs.
    packages=[*find_packages(include=["mrfquant", "mrfquant.*"]), "mrfquant.configs"],
    package_dir={"mrfquant.configs": "gin"},
    package_data={
        "mrfquant": ["py.typed", "*.pyi"],
        "mrfquant.mrf": ["*.pyi"],
        "mrfquant.data": ["digits.npz", "alice.txt.gz"],
        "mrfquant.configs": ["*.gin", "*/*.gin", "*/*.space", "README.md"],
        "mrfquant.reports": ["*.html", "*.css", "*.js"],
    },
    entry_points={"console_scripts": ["mrfquant = mrfquant.__main__:main"]},
    install_requires=NEEDED,
    extras_require={**EXTRAS, "all": ALL, "docs": DOCS, "test": [*ALL, *TOOLS, *TRUTHS], "peers": PEERS},
)
