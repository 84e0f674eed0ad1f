PYTHON ?= python3
BIN := .venv/bin
FUZZ_SECONDS ?= 600

.PHONY: setup demo test fuzz lint docs figures bench clean

setup: .venv/.ready ## a ready virtual environment in .venv

.venv/.ready: pyproject.toml lab/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable lab
	touch $@

demo: setup ## a wavelet and a polynomial state space learn side by side; five minutes, figure in runs/demo
	$(BIN)/wavessm demo --out runs/demo

test: setup ## every test, doctest and documentation snippet
	$(BIN)/python -m pytest --numprocesses 2

fuzz: setup ## property tests with fresh random draws, then damaged files; FUZZ_SECONDS (600) in all
	HYPOTHESIS_PROFILE=fuzz FUZZ_SECONDS=$$(($(FUZZ_SECONDS) / 2)) \
		$(BIN)/python -m pytest --numprocesses 2 -m hypothesis tests
	$(BIN)/python tests/fuzz_damage.py --seconds $$(($(FUZZ_SECONDS) / 2))

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: setup ## the documentation in runs/docs; warnings are errors, no network is needed
	$(BIN)/python -m sphinx -W --keep-going -n -q -d runs/doctrees docs runs/docs
	@echo "open runs/docs/index.html"

figures: setup ## the paper's figures and studies in runs/figures
	$(BIN)/wavessm figures --out runs/figures

bench: setup ## build times and memory under results/; one block and streaming, here without S4, in runs/engine
	$(BIN)/python benchmarks/build.py --out results/build
	$(BIN)/python benchmarks/memory.py --out results/memory
	$(BIN)/python benchmarks/engine.py --out runs/engine
	$(BIN)/python benchmarks/stream.py --out runs/engine

clean:
	rm -rf .venv runs .pytest_cache .hypothesis .mypy_cache .ruff_cache
