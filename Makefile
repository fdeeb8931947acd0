# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
TORCH := torch==2.13.0
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: dist demo test test-short test-all fuzz fuzz-clients clients test-clients test-e3nn test-engines test-pythons test-torch test-arm browser compilers lint docs pictures notebooks bench article kernels layers gpu clean

demo: $(INSTALLED)
	$(BIN)/tpgen demo --out out/demo

# One thread a worker: two workers with two threads each would fight over two cores.  Pytest says first how many tests
# there are, and about how long they take (tests/choice.py).
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# The first case of quick tests, of every room.
test-short: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --short

# The same and what takes minutes.
test-all: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or not slow"

# Projects that tpgen has an adapter for, each in an environment of its own.  One that cannot be installed is said aloud, and
# the others are tested all the same.  The registry is asked once, and briefly: one that hangs must not hold up what follows.
CLIENTS := mace nequip sevenn

clients: .clients/.reached $(CLIENTS:%=.clients/%/.installed)

.PHONY: .clients/.reached
.clients/.reached:
	@mkdir -p .clients; rm -f $@
	@if [ "$$(ls -d $(CLIENTS:%=.clients/%/.installed) 2> /dev/null | wc -l)" = $(words $(CLIENTS)) ] || \
	    timeout 60 $(PYTHON) -m pip --retries 0 --timeout 15 download --quiet --no-deps --dest .clients/.probe \
	    packaging==26.3 > /dev/null 2>&1; \
	then touch $@; else echo "*** NO PACKAGE REGISTRY IN REACH: $(CLIENTS) cannot be installed"; fi

# Two may be installed at a time, and both write tpgen's metadata here: under a lock.
.clients/%/.installed: tests/clients/%.txt pyproject.toml | .clients/.reached
	@test -e .clients/.reached || exit 0; \
	echo "pip installs $* into .clients/$*: 1.4 GB on disk, some minutes"; \
	{ test -x .clients/$*/bin/python || $(PYTHON) -m venv .clients/$*; } && \
	if timeout 600 .clients/$*/bin/python -m pip --retries 1 --timeout 15 install --quiet --requirement tests/clients/$*.txt && \
	    flock .clients/.lock timeout 60 .clients/$*/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable . ; \
	then touch $@; else rm -f $@; echo "*** $* COULD NOT BE INSTALLED within 600 s: it is not tested"; fi

# MACE's environment has e3nn 0.4.4, the oldest that tpgen takes: the first cases of what meets e3nn run there too.
MEETS_E3NN := tests/networks/conversion --ignore=tests/networks/conversion/test_processes.py tests/planner/test_plan.py tests/planner/test_coupling.py tests/nn/test_from_e3nn.py

test-clients:
	@$(MAKE) --no-print-directory -j 2 clients
	@$(MAKE) --no-print-directory --output-sync=target -j 2 $(CLIENTS:%=test-client-%)

.PHONY: $(CLIENTS:%=test-client-%)
test-client-mace: FIRST_CASES := $(MEETS_E3NN)
$(CLIENTS:%=test-client-%): test-client-%:
	@if test -e .clients/$*/.installed; then \
	    echo "tests of $*"; \
	    OMP_NUM_THREADS=1 timeout 2400 .clients/$*/bin/python -m pytest -p no:cacheprovider -W ignore \
	        tests/clients/test_$**.py tests/clients/test_projects*.py || exit 1; \
	    test -z "$(FIRST_CASES)" || OMP_NUM_THREADS=1 timeout 1200 .clients/$*/bin/python -m pytest -p no:cacheprovider \
	        -W ignore --short $(FIRST_CASES) || exit 1; \
	else echo "*** $* IS NOT TESTED: it could not be installed"; fi

# The first cases on the last e3nn between MACE's and the one in .venv, where modules are scripted as they are built.
E3NN_BETWEEN := 0.5.9

test-e3nn: $(INSTALLED)
	@test -e .e3nn/$(E3NN_BETWEEN)/e3nn || timeout 300 $(BIN)/python -m pip --retries 1 --timeout 15 install --quiet --no-deps \
	    --target .e3nn/$(E3NN_BETWEEN) e3nn==$(E3NN_BETWEEN) || true
	@if test -e .e3nn/$(E3NN_BETWEEN)/e3nn; then \
	    PYTHONPATH=$(CURDIR)/.e3nn/$(E3NN_BETWEEN) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -p no:cacheprovider --short $(MEETS_E3NN); \
	else echo "*** E3NN $(E3NN_BETWEEN) IS NOT TESTED: it could not be installed within 300 s"; fi

# Recipes of docs/engines.md for ASE and TorchSim, and for LAMMPS where one is found that can call models in Python.
# Its ranks and ghosts are tests of each project (test-clients) in any case.
test-engines: .clients/.reached .clients/engines/.installed
	@if test -e .clients/engines/.installed; then \
	    OMP_NUM_THREADS=1 timeout 1200 .clients/engines/bin/python -m pytest -p no:cacheprovider -W ignore \
	        tests/clients/test_engines.py || exit 1; \
	else echo "*** ASE AND TORCHSIM ARE NOT TESTED: they could not be installed"; fi
	@if .clients/engines/bin/python -c "from benchmarks.lammps import lammps; raise SystemExit(lammps() is None)"; then \
	    for project in $(CLIENTS); do \
	        OMP_NUM_THREADS=1 timeout 1200 .clients/$$project/bin/python -m pytest -p no:cacheprovider -W ignore \
	            tests/clients/test_in_lammps.py || exit 1; \
	    done; \
	else echo "*** LAMMPS ITSELF IS NOT TESTED: name its program by LMP. Its ranks and ghosts are, by make test-clients"; fi

# On every other Python that is here: every file compiles, and a short profile of products, their derivatives, kernels and
# the command line.  One that cannot be set up is said aloud, and the others are tested all the same.  A torch with CUDA is gigabytes: ANY_TORCH=1 takes it.
PYTHONS := 3.10 3.12 3.13
COMPILES = import pathlib, sys; [compile(pathlib.Path(f).read_text("utf-8"), f, "exec") for f in sys.stdin.read().split()]
SHORT := tests/form tests/planner/test_plan.py tests/emitter/test_golden.py tests/kernels/test_golden_kernels.py \
    tests/nn/test_tensor_product.py tests/nn/test_linear.py tests/nn/test_from_e3nn.py tests/tools/cli

test-pythons:
	@for version in $(PYTHONS); do \
	    for python in python$$version $$HOME/.pyenv/versions/$$version.*/bin/python none; do \
	        $$python -c pass 2> /dev/null && break; \
	    done; \
	    if [ $$python = none ]; then echo "*** Python $$version IS NOT TESTED: it is not here"; continue; fi; \
	    git ls-files '*.py' | $$python -W error -c '$(COMPILES)' || exit 1; \
	    echo "Python $$version compiles every file"; \
	    test -e .pythons/$$version/.installed || { \
	        { test -n "$$ANY_TORCH" || timeout 100 $$python -m pip install --dry-run --no-deps --ignore-installed --quiet \
	            --report - $(TORCH) 2> /dev/null | grep -q '[+B]cpu-'; } && \
	        $$python -m venv .pythons/$$version && \
	        timeout 900 .pythons/$$version/bin/python -m pip install --quiet $(TORCH) --editable '.[plot,test]' && \
	        touch .pythons/$$version/.installed; \
	    } || { echo "*** Python $$version IS NOT TESTED FURTHER: there is no small torch for it, or it could not be set up"; continue; }; \
	    echo "short profile on Python $$version"; \
	    OMP_NUM_THREADS=1 .pythons/$$version/bin/python -m pytest -n 2 -p no:cacheprovider $(SHORT) || exit 1; \
	done

# The same profile on another torch, and on another Python: make test-torch VERSION=2.15.0 ON=3.13.  Torch comes with CUDA, which
# is some six gigabytes in .torch/, and half an hour on a slow line: run it before a release.
VERSION ?= 2.15.0
ON ?= 3.11
CELL = .torch/$(VERSION)-py$(ON)

test-torch:
	@for python in python$(ON) $$HOME/.pyenv/versions/$(ON).*/bin/python; do $$python -c pass 2> /dev/null && break; done; \
	test -e $(CELL)/.installed || { \
	    $$python -m venv $(CELL) && \
	    $(CELL)/bin/python -m pip install --no-cache-dir --quiet torch==$(VERSION) --editable '.[plot,test]' && \
	    touch $(CELL)/.installed; \
	} || { echo "*** torch $(VERSION) IS NOT TESTED on Python $(ON): it could not be set up"; exit 1; }; \
	OMP_NUM_THREADS=1 $(CELL)/bin/python -m pytest -n 2 -p no:cacheprovider tests/base/test_torch.py $(SHORT)

# Random products, polynomials, layers, operands and lives of whole networks, for long; `make test` runs a few examples of the
# same.  SEED says where they begin, ATTACKS how many there are of each kind; how many were compared is said at the end.
FUZZ = SEED=$(SEED) ATTACKS=$${ATTACKS:-1000} OMP_NUM_THREADS=1 TPGEN_CACHE_DIR=$(CURDIR)/out/fuzz \
    TPGEN_CXX=$${TPGEN_CXX:-$(CURDIR)/tests/attacks/quick++}
SEED ?= $(shell date +%s)

fuzz: SEED := $(SEED)
fuzz: $(INSTALLED)
	$(FUZZ) $(BIN)/python -m pytest -n 2 --dist worksteal --hypothesis-seed=$(SEED) -m "slow or not slow" tests/attacks

# Lives of small random models of the projects that tpgen has an adapter for, in their environments.
fuzz-clients: SEED := $(SEED)
fuzz-clients: clients
	@for client in $(CLIENTS); do \
	    if test -e .clients/$$client/.installed; then \
	        $(FUZZ) .clients/$$client/bin/python -m pytest -p no:cacheprovider -W ignore tests/clients/test_projects_lives.py \
	            || exit 1; \
	    else echo "*** $$client IS NOT ATTACKED: it could not be installed"; fi; \
	done

# Chromium, in which the explorer and the site are tested; as root it is installed. Without it those tests skip and say why.
browser:
	@command -v chromium > /dev/null && command -v chromedriver > /dev/null || \
	    { [ "$$(id -u)" = 0 ] && command -v apt-get && timeout 300 apt-get update && DEBIAN_FRONTEND=noninteractive \
	    timeout 300 apt-get install --yes --no-install-recommends chromium chromium-driver; } > /dev/null 2>&1 || true

# aarch64 Linux, emulated: laws, a network, a package and kernels on a Python of that machine, with a cross compiler.  As root,
# on Debian or Ubuntu, what is missing is installed: 0.3 GB are fetched, and 1.1 GB lie in .arm/.
test-arm: $(INSTALLED)
	@PYTHON=$(BIN)/python .ci/arm

# Compilers that kernels are tested with, besides g++: as root those of Debian are installed, GCC 9 and 10 from its release of 2021.
# Tests name those that are missing.
COMPILERS := g++-9 g++-10 g++-11 clang++

compilers: $(INSTALLED)
	@.ci/compilers $(COMPILERS)
	@timeout 300 $(BIN)/python -m pip --retries 1 --timeout 15 install --quiet --constraint constraints.txt ziglang || true
	@for name in $(COMPILERS); do command -v $$name > /dev/null || echo "*** KERNELS ARE NOT TESTED WITH $$name: it is not here"; done; \
	$(BIN)/python -c "import ziglang" 2> /dev/null || echo "*** KERNELS ARE NOT TESTED WITH ziglang: it is not here"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site of docs/, written into site/.  A broken link or a docstring that cannot be read stops it.
docs: .docs/.installed $(INSTALLED)
	$(BIN)/tpgen explore mace-medium --out out/site/explorer.html
	$(BIN)/tpgen explore --preset channelwise --in1 8x0e+8x1o --in2 0e+1o+2e --irreps-out 8x0e+8x1o --out out/site/layer_explorer.html
	NO_MKDOCS_2_WARNING=1 .docs/bin/mkdocs build --quiet
	@echo "open site/index.html"

WANTED = import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])

.docs/.installed: constraints.txt pyproject.toml
	@echo "pip installs what builds the site into .docs: a minute or so"
	test -x .docs/bin/python || $(PYTHON) -m venv .docs
	.docs/bin/python -c '$(WANTED)' | tr ' ' '\n' | \
	    .docs/bin/python -m pip install --quiet --constraint constraints.txt --requirement /dev/stdin
	touch $@

# The pictures of the docs, from the code as it is; that of the explorer needs Chromium (make browser).
pictures: $(INSTALLED)
	$(BIN)/python -m benchmarks.pictures

# What the notebooks of the docs show, which is what they put out; that of MACE needs `make clients`.
notebooks: $(INSTALLED)
	$(BIN)/python -m benchmarks.notebooks

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.report

kernels: $(INSTALLED)
	$(BIN)/python -m benchmarks.kernels

# Linear layers, contractions, narrow multiplicities, high degrees: some five minutes.  `make clients` brings mace-torch.
layers: $(INSTALLED)
	$(BIN)/python -m benchmarks.layers

# Checks and measures this machine's GPU, in less than eight minutes.  Its torch must be one for CUDA: TORCH_PYTHON names it.
gpu:
	$${TORCH_PYTHON:-$(BIN)/python} -m benchmarks.gpu

article: $(INSTALLED)
	$(BIN)/python -m benchmarks.article

$(INSTALLED): constraints.txt pyproject.toml
	@echo "pip installs torch, e3nn and what the tests need into $(VENV): 1.6 GB on disk, some minutes"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt setuptools
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation $(TORCH) --editable '.[plot,test,lint]'
	touch $@

# A wheel and a source distribution, each installed in a fresh environment and used there.
dist:
	PYTHON='$(PYTHON)' TORCH='$(TORCH)' .ci/dist

clean:
	rm -rf $(VENV) .docs .e3nn .pythons site build out *.egg-info
