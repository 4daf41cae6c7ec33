# `make book` and `make test` do all their own set-up in .venv; a machine needs Python 3.11 or newer (with its venv module) and make.
# Other Pythons: make book PYTHON=python3.12
PYTHON ?= python3
RUN = .venv/bin/python
READY = .venv/ready
# It holds the place of the repository that .venv was made for: a folder that was copied or moved is set up anew.
ifneq "$(shell cat $(READY) 2>/dev/null)" "$(CURDIR)"
.PHONY: $(READY)
endif

.PHONY: book test lab exercises train corpus small-runs bench colab constraints stamp outputs accept clean

book: $(READY)      ## the book, into _build/html/index.html
	$(RUN) -m transformer_circuits.build

test: $(READY)      ## every test: code, identities, notebooks, the built pages in a browser
	$(RUN) -m pytest

lab: $(READY)       ## the notebooks in JupyterLab, from chapter 0 on
	PYTHONWARNINGS='ignore:IProgress not found' $(RUN) -m jupyterlab notebooks/00_how_to_read.ipynb  # tqdm asks for ipywidgets, which nothing needs

exercises: $(READY) ## the workbooks in JupyterLab, from copies in my/ that no later run overwrites
	mkdir -p my && for book in notebooks/e*.ipynb; do [ -e my/$${book#*/} ] || cp $$book my/; done
	PYTHONWARNINGS='ignore:IProgress not found' $(RUN) -m jupyterlab my/e1_stream_and_paths.ipynb

train: $(READY)     ## make train ARGS="--config attn-only-2l --data corpus --out runs/attn-only-2l"
	$(RUN) -m transformer_circuits.training.train $(ARGS)

corpus: $(READY)    ## fetch, check, split and tokenize the training corpus
	$(RUN) -m transformer_circuits.training.corpus --out corpus $(ARGS)

small-runs: $(READY) ## chapter 15's trainings, whose logs it reads: a minute
	$(RUN) .ci/small_runs.py

bench: $(READY)     ## each benchmark, one after the other
	for script in benchmarks/*.py; do $(RUN) $$script || exit 1; done

colab: $(READY)     ## every chapter with the releases of Google Colab, in an environment of its own: half an hour and 6 GB
	$(RUN) .ci/colab

constraints: $(READY)
	$(RUN) .ci/stamp.py --resolve

stamp: $(READY)
	$(RUN) .ci/stamp.py

outputs: $(READY)   ## put the outputs that nbval compares into the notebooks
	$(RUN) -m transformer_circuits.build --store-outputs

accept:             ## take the verdicts of the last build for the accepted ones
	cp _build/verdicts.yml book/verdicts.yml

clean:
	rm -rf _build book/scoreboard.md book/headlines.md book/models.md book/head_dump.md book/head_dump book/play.md book/_static/play/model.js book/_static/play/planted.js book/every_head.md book/watch.md book/_static/watch/films book/grow.md book/_static/circuitsvis/iife.js book/_static/datatables

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[book,test,train,public]'
	echo "$(CURDIR)" > $@
