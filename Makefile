# `make verify` and `make test` need Python 3.11 or later and nothing else; the first run installs into .venv.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
            $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$p && break; done)
pip := .venv/bin/python -m pip install --quiet --retries 2 --disable-pip-version-check

.PHONY: verify check docs test test-fast third-party damage mutants
verify: .venv/installed
	@.venv/bin/lab verify

# Tools that read the sources follow no editable installation that renames folders: links put meshes/ and experiments/ where they
# are imported.
define links
@rm -rf .venv/typed && mkdir -p .venv/typed/lab
@cd .venv/typed/lab && ln -s ../../../lab/* ../../../meshes ../../../experiments .
@ln -s ../../sharding_lab_pytest.py ../../setup.py .venv/typed
endef

check: .venv/installed
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	$(links)
	@cd .venv/typed && ../bin/mypy --config-file ../../pyproject.toml --cache-dir ../mypy_cache -p lab -m sharding_lab_pytest -m setup >../mypy.log; \
	  status=$$?; sed -E 's,^lab/(meshes|experiments)/,\1/,' ../mypy.log; exit $$status

# The pages and the API, into site/; without the network once it is installed.
docs: .venv/docs
	$(links)
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet
	@echo "site/index.html"

.venv/docs: .venv/installed
	@$(pip) --editable '.[docs]'
	@touch $@

test: .venv/installed
	@.venv/bin/python -m pytest -n auto --maxprocesses 4 --dist loadgroup

# Those that compile nothing, in less than a minute.
test-fast: .venv/installed
	@.venv/bin/python -m pytest -m "not compiles and not slow" -n auto --maxprocesses 4 --dist worksteal -q

# Public code bases, as the package index has them, through `lab inspect`; their environment takes 5 GB.
PYTHON_THIRD_PARTY ?= python3.12
third-party: .venv-third-party/installed
	@.venv-third-party/bin/python -m pytest --noconftest --durations=0 tests/third_party/programs.py

.venv-third-party/installed: tests/third_party/requirements.txt pyproject.toml
	@$(PYTHON_THIRD_PARTY) -m venv .venv-third-party
	@.venv-third-party/bin/python -m pip install --quiet --no-deps --requirement tests/third_party/requirements.txt --editable .
	@touch $@

# One change at a time to the lab's own code, and what sees it: make mutants SEED=1 COUNT=100.
SEED ?= 0
COUNT ?= 100
mutants: .venv/installed
	@.venv/bin/python -m tests.mutants --seed $(SEED) --count $(COUNT)

# A platform without a wheel of a compile-only plugin does without its targets; any other failure of pip stops here, an index out of reach too.
define plugin
@echo "installing the compile-only $(1) plugin"
@$(pip) --editable '.[$(1)]' 2>.venv/$(1).log || { \
  grep -q -e 'No matching distribution' -e ResolutionImpossible .venv/$(1).log && ! grep -q Retrying .venv/$(1).log || { cat .venv/$(1).log >&2; exit 1; }; \
  echo "no wheel of the $(1) plugin for this platform: $(1) targets are left out"; }
endef

.venv/installed: pyproject.toml
	@[ -n "$(PYTHON)" ] || { echo "make: no Python 3.11 or later on PATH; install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "installing into .venv with $(PYTHON)"
	@$(PYTHON) -m venv .venv
	@$(pip) --editable '.[dev]'
	$(call plugin,gpu)
	$(call plugin,tpu)
	@touch $@

# Ten minutes of damaged texts: none crashes the reader, hangs, or is silently another program.
damage: .venv/installed
	@.venv/bin/python -m tests.damage --count 1000000 --seconds 600 --seed $$(date +%s)
