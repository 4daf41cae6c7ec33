"""The scoreboard page: every claim once, numbers and verdicts as recorded, nothing unescaped."""

import json
import re

import pytest
from bs4 import BeautifulSoup

from transformer_circuits import paths
from transformer_circuits.claims import Verdict, ledger, record, scoreboard, show


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_CIRCUITS_CLAIMS", str(tmp_path / "claims"))
    return tmp_path / "claims"


@pytest.fixture
def notebooks(tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    cells = [{"cell_type": "code", "source": 'record("Z2", x); record("T5", y)'}]
    (folder / "02_zero layers.ipynb").write_text(json.dumps({"cells": cells}))
    return folder


def rows(text):
    """The table rows of the page by claim."""
    found = BeautifulSoup("\n".join(re.findall(r"```\{raw\} html\n(.*?)\n```\n", text, flags=re.DOTALL)), "html.parser")
    return {row["id"]: row for row in found.select("tbody tr")}


def test_every_claim_has_a_row_with_a_verdict_and_a_reason_where_it_has_not_run(folder, notebooks):
    table = rows(scoreboard.page(folder, notebooks))
    assert list(table) == list(ledger.load_claims())
    for id, claim in ledger.load_claims().items():
        words = " ".join(table[id].text.split())
        assert "not run" in words and " ".join(claim.not_run.split()) in words and claim.statement in words
        assert table[id].select_one("a") is None


def test_a_record_shows_values_verdict_detail_and_its_chapter(folder, notebooks):
    record("Z2", 0.0312, detail="most are <td and `</script>` | *stars*")
    text = scoreboard.page(folder, notebooks)
    row = rows(text)["Z2"]
    assert row.select_one("dd").text == "3.12 %"
    assert row.select_one(".tc-verdict.tc-reproduced").text.split() == ["✓", "reproduced"]
    assert "most are <td and `</script>` | *stars*" in row.text and "</script>" not in text
    assert row.select_one("a")["href"] == "../notebooks/02_zero%20layers.html#claim-Z2"


def test_an_error_that_is_not_relative_is_called_by_its_name(folder, notebooks):
    record("X3", 1e-3), record("O1", 1e-7)
    table = rows(scoreboard.page(folder, notebooks))
    assert [dt.text for dt in table["X3"].select("dt")] == ["one less the induction score"]
    assert [dt.text for dt in table["O1"].select("dt")] == ["relative error"]


def test_a_record_of_no_known_notebook_has_no_link(folder, notebooks):
    record("O1", 1e-7)
    row = rows(scoreboard.page(folder, notebooks))["O1"]
    assert row.select_one("a") is None and "1 The residual stream" in row.text


def test_the_summary_counts_every_claim_once(folder, notebooks):
    record("O1", 1e-7), record("O2", 1e-2), record("Z2", 0.3), record("T5", 0)
    text = scoreboard.page(folder, notebooks)
    assert "60 claims, 4 of them measured" in text
    summary = BeautifulSoup(text, "html.parser").select_one(".tc-counts")
    found = [" ".join(part.text.split()) for part in summary.select(".tc-count")]
    assert found == ["1 × ◐ partly", "1 × ✗ not reproduced", "1 × ✓ identity holds", "1 × ✗ identity fails", "56 × – not run"]


def test_the_html_is_closed_to_markdown(folder, notebooks):
    record("Z2", 0.1, detail="```\n\n# no heading\n\n:::{note}")
    text = scoreboard.page(folder, notebooks)
    fences = [line for line in text.splitlines() if line.startswith("```")]
    assert fences == ["```{raw} html", "```"] * 8
    for block in re.findall(r"```\{raw\} html\n(.*?)\n```\n", text, flags=re.DOTALL):
        assert "`" not in block and "\n\n" not in block
    headings = [line for line in text.splitlines() if re.match("#+ ", line)]
    assert headings[0] == "# Scoreboard"
    assert len([line for line in headings if line.startswith("## ")]) == 7


def test_cells_say_their_column_where_the_table_is_folded(folder, notebooks):
    for row in rows(scoreboard.page(folder, notebooks)).values():
        assert [cell["data-label"] for cell in row.select("td")] == ["Paper", "Here", "Verdict"]


def test_the_command_writes_the_page(folder, tmp_path):
    record("Z2", 0.3)
    out = tmp_path / "new" / "scoreboard.md"
    assert scoreboard.main([str(out)]) == 0
    assert out.read_text().startswith("# Scoreboard\n") and "30 %" in out.read_text()


def test_the_command_refuses_a_damaged_record(folder, tmp_path, capsys):
    folder.mkdir()
    (folder / "Z2.json").write_text("{")
    out = tmp_path / "scoreboard.md"
    assert scoreboard.main([str(out)]) == 1
    assert "Z2.json is not a claim's record" in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize(
    ("x", "unit", "shown"),
    [
        (0, "", "0"), (10, "heads", "10 heads"), (1, "heads", "1 head"), (1, "million tokens", "1 million tokens"), (4.41234, "nats", "4.412 nats"), (12.3456, "nats", "12.35 nats"),
        (0.45678, "", "0.457"), (1.234e-6, "", "1.2e-6"), (-0.0004, "", "-4.0e-4"), (0.97, "share", "97 %"), (1, "share", "100 %"),
        (0.0312, "share", "3.12 %"), (123456, "tokens", "123,456 tokens"), (2.7, "times random", "2.7 times random"),
    ],
)  # fmt: skip
def test_numbers_are_rounded_for_people(x, unit, shown):
    assert show.show_quantity(x, unit) == shown


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_every_verdict_has_a_badge_that_can_be_read():
    css = (paths.ROOT / "book" / "_static" / "scoreboard.css").read_text()
    assert set(show.SYMBOLS) == set(show.EDGES) == set(Verdict)
    for verdict in Verdict:
        if verdict != Verdict.NOT_RUN:  # the badge's own background
            assert f".tc-verdict.{show.css_class(verdict)}" in css
        assert show.EDGES[verdict] in css
        contrast = 1.05 / (luminance(show.EDGES[verdict]) + 0.05)  # white text, WCAG 2.1
        assert contrast >= 4.5, verdict
