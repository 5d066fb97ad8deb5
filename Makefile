# `make demo` and `make test` do all their own set-up in .venv; nothing outside the folder is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Stamps: what users need is installed; what developers need as well.
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
# Half of its time a test waits, for a process or a grace: two workers keep one core busy.
SPREAD := --numprocesses 4 --dist loadgroup

.PHONY: help demo test test-fast test-changed test-min e2e bundle dev lint format bench image lock release install.yaml generate docs clean

help:  ## this list
	@grep -hE '^[a-z0-9.-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# Where uv is on PATH it installs in a second or two what takes pip ten; `make demo UV=` takes pip.
UV ?= $(shell command -v uv)
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile

# $(1), $(2): what is installed besides, in words and as options. One that was interrupted leaves no stamp, so
# that the next begins with an empty environment: pip takes a package for whole that is there in part.
define install
@[ -e $(INSTALLED) ] || [ -e $(READY) ] || { echo "- an environment for Python in $(VENV)" && \
    { $(if $(UV),$(UV) venv --quiet --clear --seed --python $(PYTHON) $(VENV) ||) \
    { $(PYTHON) -m venv --clear $(VENV) && $(PIP) 'pip>=25.1'; }; } }
@rm -f $(INSTALLED) $(READY)
@echo "- vramwarden and the packages that it needs$(1), by $(if $(UV),uv,pip)"
@$(if $(UV),$(UV) pip install --quiet --python $(BIN)/python --editable . $(2) ||) $(PIP) --editable . $(2)
endef

$(INSTALLED): pyproject.toml
	$(call install)
	@touch $@

$(READY): pyproject.toml
	$(call install, and its developers,--group dev)
	@touch $(INSTALLED) $@

demo: $(INSTALLED)  ## certificates, server, one review translated and one denied, on loopback
	@$(BIN)/vramwarden demo

test: $(READY)  ## the whole test suite
	$(BIN)/pytest $(SPREAD) --durations=25

test-fast: $(READY)  ## the inner loop: core, policies, commands; no test waits or starts a process
	HYPOTHESIS_PROFILE=fast $(BIN)/python -m tests.support.fast_lane

test-changed: $(READY)  ## the tests of what changed since the branch left main, and of what imports it
	@tests=$$($(BIN)/python -m tests.support.changed_tests) && \
	    if [ -n "$$tests" ]; then $(BIN)/pytest $(SPREAD) $$tests; \
	    else echo "nothing changed since this branch left main"; fi

# What the version of a dependency can break: the tests of each part that imports one. The rest of the
# core and the replays import none; the enforcer calls pynvml through adapters/nvml.py alone, and how
# tenants attack depends on none.
MIN := tests/adapters tests/agent tests/certs tests/cli tests/contracts tests/core/pod tests/options tests/sentry tests/server tests/tools
test-min: .venv-min/.ready  ## the parts with dependencies, with the oldest versions that pyproject.toml allows
	.venv-min/bin/pytest $(SPREAD) -m 'not cluster' \
	    --ignore tests/adapters/processes --ignore tests/sentry/test_attacks.py $(MIN)

.venv-min/.ready: pyproject.toml $(READY)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-min
	VIRTUAL_ENV=.venv-min $(BIN)/uv pip install --quiet --compile-bytecode --resolution lowest-direct --editable . --group test --group docs
	@touch $@

e2e: $(READY)  ## the whole product on a real node, KUBECONFIG's or one it starts (as root); tests/e2e/README.md
	$(BIN)/pytest tests/e2e -rsP

bundle: $(READY)  ## what a host with a GPU and no network needs for a node, into .bundle; tests/gpu/README.md
	@$(BIN)/python -m tests.gpu.node.bundle $(if $(HOST_PYTHON),--python $(HOST_PYTHON))

dev: $(READY)  ## a cluster with vramwarden, and a shell; CLUSTER=node, parts or kind; COMMAND='...' for the shell
	@$(BIN)/python -m tests.dev.run

lint: $(READY)  ## ruff, mypy strict, the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## what a review costs beside a baseline commit, what the enforcer costs; tests/bench/README.md
	@$(BIN)/python -m tests.bench.run

image:  ## both container images, by buildah, podman or docker; settings at the head of deploy/images/build
	@deploy/images/build

lock: $(READY)  ## choose again what the images install, by version and hash; UPGRADE=yes: the newest
	@deploy/images/lock $(if $(UPGRADE),--upgrade)

release: $(READY)  ## all of a release into dist/, the same bytes each time; CONTRIBUTING.md, How to release
	@$(BIN)/python -m deploy.release $(if $(WITHOUT_IMAGES),--without-images)

install.yaml: $(READY)  ## the chart rendered with its defaults, for clusters without Helm; needs helm
	@$(BIN)/python -m deploy.release --only-install-file $@

generate: $(READY)  ## write what is derived: schema, tables in READMEs, the chart's policy
	@$(BIN)/python deploy/generate.py

docs: $(READY)  ## the documents as a site with search, into dist/docs; a dead link fails it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --config-file deploy/mkdocs.yml
	@echo "dist/docs/index.html; to search, serve the folder: $(PYTHON) -m http.server --bind 127.0.0.1 --directory dist/docs"

clean:  ## remove what these commands made
	rm -rf $(VENV) .venv-min .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .bench dist install.yaml
