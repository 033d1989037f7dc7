# make run [GIN=gin/other.gin] [ARGS="--seed 1"]   train and evaluate a network
# make test                                        ruff, mypy and the test suite (minutes)
# make test-slow                                   the checks that take longer
# make docs                                        the site with guides, examples and API reference, in site/
# Everything is installed into .venv, once, from the versions pinned in constraints.txt.

PYTHON ?= python3
GIN ?= gin/pmf_lenet300_digits.gin
ARGS ?=
PIP := .venv/bin/python -m pip --disable-pip-version-check

# Whatever the environment says, compiled modules are kept: each process that a test starts imports torch.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-slow docs clean

run: .venv/installed
	.venv/bin/mrfquant run --gin $(GIN) $(ARGS)

test: .venv/installed
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/python -m pytest -n auto --dist worksteal -m "not slow"

test-slow: .venv/installed
	.venv/bin/python -m pytest -m slow

docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict # with --quiet it would not see warnings

# torch and torchvision come first, by their exact versions: a looser request may resolve to a build with CUDA.
.venv/installed: setup.py constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "mrfquant needs Python 3.10 or newer")'
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	$(PIP) install --quiet --no-compile $$(grep -E '^(torch|torchvision)==' constraints.txt) -c constraints.txt
	$(PIP) install --quiet --no-compile --editable '.[test,docs]' -c constraints.txt
	touch $@

clean:
	rm -rf .venv build site .cache *.egg-info .pytest_cache .ruff_cache .mypy_cache
