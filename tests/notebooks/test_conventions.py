"""Each chapter keeps the conventions."""

import re

import nbformat
import pytest
import yaml
from conventions import notebooks, problems, stubs
from found import entries, unfounded, unfounded_on_the_page_of_failures

from book_build import build
from transformer_circuits.claims import Verdict
from transformer_circuits.claims.ledger import load_claims
from transformer_circuits.paths import ROOT
from workbooks import EXERCISES

NOTEBOOKS = {path: nbformat.read(path, as_version=4) for path in notebooks(ROOT)}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_chapter_has_the_form_that_readers_know(path):
    assert problems(NOTEBOOKS[path]) == []


def test_every_exercise_has_one_stub():
    assert [stub.name for notebook in NOTEBOOKS.values() for _, stub in stubs(notebook)] == list(EXERCISES)


def test_table_of_contents_lists_every_notebook():
    assert sorted(build.notebooks(ROOT)) == list(NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_number_that_people_wrote_about_results_stands_in_an_output_above(path):
    assert list(unfounded(NOTEBOOKS[path])) == []


@pytest.mark.parametrize(("text", "wrong"), [
    ("Head 1.7 puts 71% there (0.715 ± 0.002), −0.30 nats, 1,234 tokens, 12.0 million of 12,000,000.", []),
    ("It is lower by 0.30 (T14, chapter 8, Fig. 7.1, 2021); `0.99` is code. 1. T14 allows at most 25%.", []),
    ("It puts 72% there.", ["72%"]),  # a changed digit
    ("It puts 0.7149 there.", ["0.7149"]),  # more digits than rounding gives
    ("Head 1.8 does, and +0.31 nats.", ["1.8", "0.31"]),
    ("T14 allows at most 26%.", ["26%"]),  # a threshold that is not the ledger's
    ("At most 25%. T14 is no part of it.", ["25%"]),  # nor is it this claim's
])  # fmt: skip
def test_a_number_counts_as_found_only_as_printed_above_or_required_by_the_ledger(text, wrong):
    said = nbformat.v4.new_markdown_cell(text, metadata={"tags": ["found"]})
    output = nbformat.v4.new_output("stream", text="head 1.7   0.71482 0.002\nscore -0.301\n1234 of 12000000 tokens")
    cells = [nbformat.v4.new_code_cell("...", outputs=[output]), said]
    found = unfounded(nbformat.v4.new_notebook(cells=cells))
    assert [number for _, number in found] == wrong
    if not wrong:
        title = nbformat.v4.new_markdown_cell("# Title")  # the first cell alone is compared with all outputs
        assert unfounded(nbformat.v4.new_notebook(cells=[title, *cells[::-1]])), "an output below does not count"


def test_the_page_of_failures_explains_each_of_the_papers_findings_that_failed_with_numbers_of_its_chapter():
    page = (ROOT / "book" / "not_reproduced.md").read_text(encoding="utf-8")
    accepted = yaml.safe_load((ROOT / "book" / "verdicts.yml").read_text(encoding="utf-8"))
    assert list(accepted) == list(load_claims())
    failed = {Verdict.PARTLY, Verdict.NOT_REPRODUCED}
    papers = [id for id, claim in load_claims().items() if claim.kind == "finding" and accepted[id] in failed]
    assert sorted(entries(page)) == sorted(papers) == sorted(id for id, claim in load_claims().items() if claim.because)
    for id, entry in entries(page).items():
        assert "paper" in entry.lower() and "../notebooks/" in entry, f"{id}: paper and chapter"
    words = dict(
        enumerate("no one two three four five six seven eight nine ten eleven twelve thirteen fourteen".split())
    )
    for verdict, said in ((Verdict.NOT_REPRODUCED, "failed outright"), (Verdict.PARTLY, "hold in part")):
        number = sum(accepted[id] == verdict and not load_claims()[id].weak for id in papers)
        assert re.search(rf"\b{words[number]}\b[^.]*{said}", page, re.IGNORECASE), f"{number} {said}"
    assert unfounded_on_the_page_of_failures(page, {path.stem: nb for path, nb in NOTEBOOKS.items()}) == []
