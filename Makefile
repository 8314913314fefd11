# Every target first creates .venv, with uv if it is installed, else with venv and pip. Needs only Python and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0

STUDY = --config.model.emb_dim=64 --config.model.mlp_dim=256 --config.data.num_train_pairs=20000 --config.data.num_eval_pairs=200 --config.data.batching=packed --config.data.packed_length=64 --config.data.tokens_per_batch=512 --config.training.num_train_steps=300 --config.training.eval_every_steps=100 --config.optimizer.warmup_steps=60

.PHONY: install quickstart study test test-slow test-all test-cluster test-trackers test-live lint types pages gallery docs lock clean

install: $(READY)

$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or later is needed, and this is " + sys.version.split()[0] + "; name another with: make PYTHON=/path/to/python3 ...")'
	@if command -v uv >/dev/null 2>&1; then \
	  set -e; uv venv --quiet --seed --allow-existing --python $(PYTHON) $(VENV); \
	  uv pip install --quiet --python $(BIN)/python -r requirements.lock; \
	  uv pip install --quiet --python $(BIN)/python --no-deps -e .; \
	else \
	  set -e; $(PYTHON) -m venv $(VENV); \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .; \
	fi
	@touch $@

## Train, evaluate and translate on the embedded corpus.
quickstart: $(READY)
	$(BIN)/python -m transformer_jax quickstart

## Run a small study of Post-LN and Pre-LN on the embedded corpus and write its report to runs/study/report.
study: $(READY)
	$(BIN)/python -m transformer_jax sweep --study=experiments/norm_placement --workdir=runs/study --executor=vmap $(STUDY)
	$(BIN)/python -m transformer_jax report --workdir=runs/study

## Run the tests that take at most a few seconds each; `make test-all` adds the slow ones, `make test-slow` runs those alone.
test: $(READY)
	$(PYTEST) -m "not slow" $(FLAGS)

test-slow: $(READY)
	$(PYTEST) -m slow $(FLAGS)

test-all: $(READY)
	$(PYTEST) $(FLAGS)

## Run a study on a Ray cluster of two nodes, both on this machine. Ray is 200 MB, so `install` and .ci/run leave it out.
test-cluster: $(READY)
	@if command -v uv >/dev/null 2>&1; then uv pip install --quiet --python $(BIN)/python -e '.[ray]'; \
	else $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[ray]'; fi
	$(BIN)/python -m pytest -p no:xdist -m cluster tests/sweeps/test_ray.py

## Run the tests of the trackers that are extras. They are 140 MB, so they have a venv of their own, which sees .venv too.
test-trackers: $(READY)
	@set -e; $(BIN)/python -m venv .venv-trackers; \
	site() { $$1 -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }; \
	echo "import site; site.addsitedir('$$(site $(BIN)/python)')" >"$$(site .venv-trackers/bin/python)/parent.pth"; \
	.venv-trackers/bin/python -m pip install --quiet --disable-pip-version-check -e '.[wandb,mlflow]'
	.venv-trackers/bin/python -m pytest -n 2 --dist loadfile --max-worker-restart=0 tests/trackers $(FLAGS)

## Compare models and tokenizers with torch and transformers, several GB that only these tests need, in .venv-live.
test-live:
	$(MAKE) install VENV=.venv-live
	@if command -v uv >/dev/null 2>&1; then uv pip install --quiet --python .venv-live/bin/python torch transformers; \
	else .venv-live/bin/python -m pip install --quiet --disable-pip-version-check torch transformers; fi
	.venv-live/bin/python -m pytest -n 2 --max-worker-restart=0 tests/convert/test_live.py tests/convert/test_live_tokenizers.py $(FLAGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/ty check --python $(VENV)

## Renew docs/api.md, the path line of every page and the nav of mkdocs.yml, from docstrings and docs/README.md.
pages: $(READY)
	$(BIN)/python docs/tools/pages.py

## Make the pictures of docs/gallery.md again; needs an installed Chromium.
gallery: $(READY)
	$(BIN)/python docs/tools/gallery.py

## Build the site of the documents in build/site; a warning is an error.
docs: $(READY)
	$(BIN)/python -m mkdocs build --strict

## Resolve the dependencies again for every supported Python; needs uv.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --group dev pyproject.toml --no-header --no-annotate -o requirements.lock

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
