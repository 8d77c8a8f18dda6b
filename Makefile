# make demo    set up, start a real Triton, speak a sentence into out/demo.wav, check it by ear (a speech recogniser), stop
# make test    ruff, mypy, then every test, those against a real server too
# make serve   start the server and stay (ARGS="--http-port 9000 --set tts_decoder.max_running=8" …)
# make bench   first chunk and real-time factor at several loads
# make lint    ruff and mypy alone      make clean   remove what the others made

SHELL := /bin/bash
.DEFAULT_GOAL := demo
.PHONY: demo test serve bench lint clean

VENV ?= .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
ARGS ?=

demo: $(STAMP)
	@$(RUN) -m client.demo $(ARGS)

# pytest speaks last: its closing line is the result.
test: lint
	@$(RUN) -m pytest $(ARGS)

lint: $(STAMP)
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy

serve: $(STAMP)
	@exec $(RUN) serve.py $(ARGS)

bench: $(STAMP)
	@$(RUN) -m client bench $(ARGS)

# The first Python that runs and fits. A command that is there may still not run (a version manager's stand-in), so ask it.
$(STAMP): requirements.lock
	@for python in $(PYTHON) python3.12 python3.11 python3.10 python3; do \
	  if $$python -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null; \
	  then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "make: needs Python 3.10, 3.11 or 3.12 with venv; none of them runs here" >&2; exit 2; fi; \
	echo "setting up $(VENV) with $$($$found --version) (a few minutes the first time)"; \
	$$found -m venv --clear $(VENV) && \
	$(RUN) -m pip install --quiet --disable-pip-version-check --requirement requirements.lock && \
	touch $@

clean:
	rm -rf $(VENV) out .cache .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
