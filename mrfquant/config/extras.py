"""Packages that only some commands need; pip installs them by the name of an extra: pip install 'mrfquant[sweep]'.

The extra `fast` is not among them: without numba the kernels are torch's, slower and with the same results to rounding.
"""

from importlib.util import find_spec

from mrfquant.errors import BadInput

# Extra -> the modules of it that are imported; setup.py has the packages.
EXTRAS = {
    "sweep": ("optuna",),
    "reports": ("matplotlib",),
    "onnx": ("onnx", "onnx_ir", "onnxscript", "onnxruntime"),
    "tensorboard": ("tensorboard",),
    "language": ("transformers", "accelerate", "gguf"),
}


def need_extra(extra: str, who: str) -> None:
    """Raise unless the modules of an extra, which `who` (a command, a flag) needs, are installed."""
    if missing := [module for module in EXTRAS[extra] if find_spec(module) is None]:
        verb = "is" if len(missing) == 1 else "are"
        names = ", ".join(missing)
        raise BadInput(f"{who} needs {names}, which {verb} not installed: pip install 'mrfquant[{extra}]'")
