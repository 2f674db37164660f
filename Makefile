# walproof: `make` lists the targets.
.DEFAULT_GOAL := help
PY := .venv/bin/python
WORKERS ?= 3
VERSIONS ?= 14 16 17

.PHONY: help install demo test nightly test-versions test-kubernetes check unit pictures clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: .venv/.done ## Debian packages and a .venv with the Python parts
	@tools/install-programs

.venv/.done: pyproject.toml tools/install-python tools/build.lock tools/requirements.lock
	@tools/install-python
	@touch $@

demo: install ## a real cluster, its prices, three drills, a report
	@.venv/bin/walproof demo

test: .venv/.done ## what a change can break unnoticed, on a real cluster too; `make nightly` runs the rest
	@tools/install-programs test
	@$(PY) -m pytest -q -n $(WORKERS) --dist loadfile --max-worker-restart 0 -m "not nightly"

nightly: .venv/.done ## every test, every version of PostgreSQL, mutants: before an issue is called resolved
	@tools/install-programs test
	@WALPROOF_NIGHTLY=1 $(PY) -m pytest -q -n $(WORKERS) --dist loadfile --max-worker-restart 0
	@$(MAKE) test-versions
	@$(PY) -m benchmarks.mutants
	@$(PY) -m benchmarks.frozen_primary_mutants

test-versions: .venv/.done ## the contract, what observe reads and records of WAL, on plain pairs of older PostgreSQL: VERSIONS="14 16 17"
	@tools/postgres-versions $(VERSIONS) >/dev/null
	@WALPROOF_VERSIONS="$(VERSIONS)" $(PY) -m pytest -q tests/contract -k "$(patsubst %,postgres and % or,$(VERSIONS)) version_asked_for"
	@WALPROOF_VERSIONS="$(VERSIONS)" $(PY) -m pytest -q tests/lab/test_observe_sql.py tests/lab/test_wal_records.py

test-kubernetes: .venv/.done ## every verb and fault under the printed Role: CLUSTER=NAMESPACE/NAME ALLOW=account,load,… or a kube-apiserver here
	@$(PY) -m benchmarks.kubernetes_verbs --cluster "$(CLUSTER)" --allow "$(ALLOW)" --image "$(IMAGE)" --only "$(ONLY)"

unit: .venv/.done ## the tests that need no server
	@$(PY) -m pytest -q tests/unit tests/replay tests/golden

check: .venv/.done ## ruff, mypy, import-linter, file sizes, import circles, ports, examples in docstrings
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-cache
	@$(PY) -m tools.sizes 400 src tests benchmarks tools
	@$(PY) -m tools.import_circles walproof
	@$(PY) -m tools.ports_only src/walproof
	@$(PY) -m pytest -q -p no:cacheprovider --doctest-modules src/walproof tools benchmarks

pictures: install ## the README's pictures, from a real run
	@tools/install-programs test
	@$(PY) -m tools.pictures

clean: ## remove what make made here
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build src/*.egg-info
