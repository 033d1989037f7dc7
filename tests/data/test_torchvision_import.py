"""torchvision is there for downloading, whatever build of torch it meets."""

from __future__ import annotations

import importlib

import pytest

from mrfquant.data.torchvision_import import import_torchvision


def test_torchvision_imports_and_stays_importable():
    first = import_torchvision()
    assert hasattr(first.datasets.utils, "download_and_extract_archive")
    assert import_torchvision() is first


def test_other_failures_of_the_import_are_not_hidden(monkeypatch):
    def fail(name):
        raise RuntimeError("something else")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(RuntimeError, match="something else"):
        import_torchvision()
