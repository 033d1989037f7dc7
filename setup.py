"""Packaging. Exact versions for development and CI are in constraints.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ONNX = ["onnx", "onnxscript", "onnxruntime"]
FAST = ["numba"]  # products with packed weights on the CPU

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
        "mrfquant.configs": ["*.gin", "*/*.gin", "*/*.space"],
        "mrfquant.reports": ["*.html", "*.css", "*.js"],
    },
    entry_points={"console_scripts": ["mrfquant = mrfquant.__main__:main"]},
    install_requires=[
        "torch>=2.5",
        "torchvision",
        "numpy",
        "scipy",
        "networkx",
        "lazy_loader>=0.4",  # public names without importing torch
        "scikit-learn",  # the embedded digits
        "gin-config>=0.5",
        "typeguard>=4",  # checks settings against the signatures of the parts
        "tqdm",
        "wandb>=0.18",
        "matplotlib",
        "optuna>=4.9",
        "torchmetrics>=1.0",  # calibration error
        "safetensors>=0.4",  # packed networks
    ],
    extras_require={
        "onnx": ONNX,
        "fast": FAST,
        "docs": ["mkdocs<2", "mkdocs-material", "mkdocstrings[python]", "mkdocs-jupyter", "nbclient", "ipykernel"],
        "test": ["pytest", "pytest-xdist", "hypothesis", "ruff", *ONNX, *FAST],
    },
)
