# One word per chore. CI runs `make check` and nothing else.
PYTHON = .venv/bin/python

.PHONY: setup test check prove prove-gpu bench

setup: ## the environment in .venv; ready at once when nothing changed
	@python3 tools/bootstrap.py

test: setup ## every fast test and every example in a docstring
	$(PYTHON) -m pytest -n 2

check: setup ## format, lint, types, packages, tests
	$(PYTHON) -m ruff format --check
	$(PYTHON) -m ruff check
	$(PYTHON) -m pyrefly check src
	$(PYTHON) -m pip check
	$(PYTHON) -m pytest -n 2

prove: setup ## the slow tests
	$(PYTHON) -m pytest -m slow

prove-gpu: setup ## what needs a GPU
	$(PYTHON) -m pytest -m gpu tests/gpu

bench: ## speed and memory beside the peers, half an hour on a quiet machine; BENCH=--quick only sees it start
	@python3 tools/bootstrap.py --extra bench
	$(PYTHON) -m bench.train_step $(BENCH)
	$(PYTHON) -m bench.decode_step $(BENCH)
