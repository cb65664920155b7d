# The two commands of the README: `make demo` and `make test`. Everything happens in .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
WORKERS ?= 2
MINUTES ?= 10

.PHONY: demo test test-all faults fuzz mutants lint format bench docs serve-docs pictures release clean

demo: .venv/demo.stamp
	@rm -f data/demo/tile-crops.tif data/demo/tile-crops.tif.aux.xml data/demo/tile-crops.png data/demo/tile-crops.qml
	@export PATH="$(CURDIR)/$(BIN):$$PATH"; set -e; \
	run() { echo; echo "\$$ $$*"; "$$@"; }; \
	run cropstar ingest; \
	run cropstar train --model convstar --layers 4; \
	run cropstar predict data/demo/tile.tif

test: .venv/test.stamp
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Every call to the disk fails once, and the power at every moment: an hour or two; CASES="ingest update" for some.
faults: .venv/test.stamp
	@$(BIN)/python -m tests.faults.sweep $(CASES)
	@$(BIN)/python -m tests.faults.replay $(CASES)
	@$(BIN)/python -m tests.faults.planted $(CASES)
	@$(BIN)/python -m tests.faults.kills $(CASES)

# Files of all kinds with something wrong in them, for some minutes.
fuzz: .venv/test.stamp
	@$(BIN)/python -m tests.fuzz.run --minutes $(MINUTES) --keep data/fuzz

# Small mistakes in the code that keeps files whole: a test must notice each.
mutants: .venv/test.stamp
	@$(BIN)/python -m tests.mutants

test-all: .venv/test-all.stamp
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "slow or not slow"

lint: .venv/lint.stamp
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/hadolint Dockerfile
	@$(BIN)/kubernetes-validate --strict deploy/kubernetes-job.yaml
	@$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml

# The site in build/site: notebooks that are older than their sources or the package are run first. Strict: a dead link,
# a page outside of the navigation or a name that is not there ends it.
NOTEBOOKS := $(patsubst docs/notebooks/%.py,build/notebooks/%.md,$(wildcard docs/notebooks/*.py))

docs: .venv/docs.stamp $(NOTEBOOKS)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site: build/site/index.html"

build/notebooks/%.md: docs/notebooks/%.py | .venv/docs.stamp
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.notebooks $<

serve-docs: docs
	@$(BIN)/python -m http.server --directory build/site 8000

# Figures and screenshots of the pages, from the demonstration scene and, where they are, the real products.
pictures: .venv/docs.stamp
	@$(BIN)/python docs/pictures.py $(SAFE)

# Wheel and source archive in dist/, checked and installed in fresh environments outside of the checkout.
release: .venv/release.stamp
	@$(BIN)/python -m tests.release

format: .venv/lint.stamp
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: .venv/test.stamp
	@$(BIN)/python benchmarks/store_layout.py
	@$(BIN)/python benchmarks/speed.py
	@$(BIN)/python benchmarks/growth.py
	@$(BIN)/python benchmarks/memory.py

SOURCES := pyproject.toml constraints.txt hatch_build.py cropstar/native/build.py $(wildcard cropstar/native/src/*)
TESTED := test,cluster,onnx,parcels,parquet,stac,tensorboard,tune

# Everything that the targets above need, at once: one look at the packages instead of six.
.venv/everything.stamp: $(SOURCES)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(INSTALL) -e '.[$(TESTED),remote,test-remote,test-gpu,docs,lint]'
	@$(INSTALL) --no-deps 'breizhcrops>=0.0.4.1'
	@touch $(foreach name,demo test remote test-all docs lint everything,.venv/$(name).stamp)

.venv/demo.stamp: $(SOURCES)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing cropstar into .venv (some minutes the first time)"
	@$(INSTALL) -e .
	@touch $@

.venv/test.stamp: .venv/demo.stamp
	@$(INSTALL) -e '.[$(TESTED)]'
	@# Alone: it asks for ninety packages that reading its data does not need.
	@$(INSTALL) --no-deps 'breizhcrops>=0.0.4.1'
	@touch $@

.venv/remote.stamp: .venv/test.stamp
	@$(INSTALL) -e '.[remote,test-remote]'
	@touch $@

.venv/test-all.stamp: .venv/remote.stamp
	@$(INSTALL) -e '.[test-gpu]'
	@touch $@

.venv/lint.stamp: .venv/test.stamp
	@$(INSTALL) -e '.[lint]'
	@touch $@

.venv/docs.stamp: .venv/test.stamp
	@$(INSTALL) -e '.[docs]'
	@touch $@

.venv/release.stamp: .venv/demo.stamp
	@$(INSTALL) -e '.[release]'
	@touch $@

clean:
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
