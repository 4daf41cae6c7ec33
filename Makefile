# `make book` and `make test` do all their own set-up in .venv (.ci/venv): a machine needs make, and Python 3.11 to 3.13 with its venv module.
# Which Python: make book PYTHON=python3.12
PYTHON ?= python3
RUN = .venv/bin/python

.PHONY: ready book test pdf lab exercises train corpus public small-runs in-context bench colab gpu-rules constraints stamp outputs accept clean

ready:
	@sh .ci/venv "$(PYTHON)" "$(origin PYTHON)"

book: ready      ## the book, into _build/html/index.html
	$(RUN) -m book_build

test: ready      ## every test, on what the build made of the notebooks: code, identities, chapters, pages in a browser
	@$(RUN) .ci/browser.py
	$(RUN) -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

pdf: ready       ## the book as one file, _build/book.pdf, printed by the browser
	@$(RUN) .ci/browser.py
	$(RUN) .ci/pdf.py

public: ready    ## fetch two public models once (331 MB), and measure what chapter 18 reads: some minutes
	$(RUN) -m book_tools.public $(ARGS)

lab: ready       ## the notebooks in JupyterLab, from chapter 0 on
	PYTHONWARNINGS='ignore:IProgress not found' $(RUN) -m jupyterlab --ServerApp.root_dir=. notebooks/00_how_to_read.ipynb $(ARGS)  # tqdm asks for ipywidgets, which nothing needs

exercises: ready ## the workbooks in JupyterLab, from copies in my/ that no later run overwrites
	mkdir -p my && for book in notebooks/e*.ipynb; do [ -e my/$${book#*/} ] || cp $$book my/; done
	PYTHONWARNINGS='ignore:IProgress not found' $(RUN) -m jupyterlab --ServerApp.root_dir=. my/e1_stream_and_paths.ipynb $(ARGS)

train: ready     ## make train ARGS="--config attn-only-2l --data corpus --out runs/attn-only-2l"
	$(RUN) -m transformer_circuits.training.train $(ARGS)

corpus: ready    ## fetch, check, split and tokenize the training corpus
	$(RUN) -m book_tools.corpus $(ARGS)

small-runs: ready ## chapter 15's trainings, whose logs it reads: two minutes
	$(RUN) -m book_tools.small_runs

in-context: ready ## the in-context scores that chapter 10 reads: some minutes
	$(RUN) -m book_tools.in_context

bench: ready     ## each benchmark, one after the other
	for script in benchmarks/*.py; do $(RUN) $$script || exit 1; done

colab: ready     ## every chapter with the releases of Google Colab, in an environment of its own: half an hour and 6 GB
	$(RUN) .ci/as_on_colab.py

gpu-rules: ready ## chapters and workbooks of the last commit under a GPU's rules, without one: make gpu-rules GPU=FOLDER_OF_PRETEND_CUDA
	@[ -f "$(GPU)/pretend_cuda.py" ] || { echo "GPU must be the folder of pretend_cuda.py, which stands in for CUDA: make gpu-rules GPU=FOLDER"; exit 1; }
	rm -rf _build/gpu && mkdir -p _build
	git clone -q --depth 1 "file://$(CURDIR)" _build/gpu
	cp -r "$(GPU)" _build/gpu/pretend
	printf '%s\n' 'import sys, workbooks' 'for name in ("", ".check", ".solutions"):' '    sys.modules[__name__ + name] = sys.modules["workbooks" + name]' > _build/gpu/src/transformer_circuits/exercises.py  # the name that it asks for
	cd _build/gpu && "$(CURDIR)/$(RUN)" pretend/pretend_cuda.py --solutions $(or $(ARGS),notebooks/*.ipynb)

constraints: ready
	$(RUN) .ci/constraints.py > constraints.new && mv constraints.new constraints.txt

stamp: ready
	$(RUN) .ci/stamp.py

outputs: ready   ## put the outputs that nbval compares into the notebooks
	$(RUN) -m book_build --run
	for book in notebooks/*.ipynb; do $(RUN) .ci/strip_outputs.py < _build/executed/$${book#*/} > $$book || exit 1; done

accept:             ## take the verdicts of the last build for the accepted ones
	cp _build/verdicts.yml book/verdicts.yml

clean:              ## all that the build made; .gitignore lists it
	git clean -fdXq -- _build book || rm -rf _build

