"""The scoreboard and the front page's table: every claim once, numbers and verdicts as recorded, failures shown, nothing unescaped."""

import re

import pytest
import yaml
from bs4 import BeautifulSoup

from book_build.pages import scoreboard
from transformer_circuits.claims import judge, ledger

ODD = "most are <td and `</script>` | *stars*\n\n# no heading\n\n:::{note}"
MEASURED = dict(intact=(0.8, 0.5), left_read=(0.3, 0.01), left_unread=(0.9, 0.01), separation=(0.5, 0.01))
MEASURED["near_chance"] = 2
CHOSEN = {
    "02_zero layers": [judge("Z2", 0.0312, detail=ODD)],
    "07_induction_heads": [judge("T14", **MEASURED), judge("O1", 1e-7), judge("O2", 1e-2)],
}


def any_record(claim: ledger.Claim) -> ledger.Record:
    """A record of a claim, whatever its verdict."""
    if claim.kind == "identity":
        return judge(claim.id, 1e-7)
    return judge(
        claim.id,
        dict.fromkeys(claim.values, 1) | {claim.errors[name]: 1 for name in claim.values if name in claim.errors},
    )


seen = {record.id for records in CHOSEN.values() for record in records}
RECORDED = CHOSEN | {"01_others": [any_record(claim) for id, claim in ledger.load_claims().items() if id not in seen]}
UNMET = "fraction of the score that remains without the head that the keys read most: 30% ± 1%, needs ≤ 25%"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Records of the held-out seed and of a public model."""
    folder = tmp_path_factory.mktemp("data")
    (folder / ledger.PUBLIC).mkdir()
    old = judge("Z2", 0.9).model_copy(update={"criterion": "an earlier one"})
    for path, name, record in [(ledger.HELD_OUT, "seed 2", judge("Z2", 0.3)), (ledger.PUBLIC / "a.yml", "A <b>", old)]:
        content = {"model": name, "records": [record.model_dump(mode="json")]}
        (folder / path).write_text(yaml.safe_dump(content))
    return folder


@pytest.fixture(scope="module")
def text(data):
    return scoreboard.page(scoreboard.Results(RECORDED, data=data))


@pytest.fixture(scope="module")
def page(text):
    return BeautifulSoup(text, "html.parser")


def words(node):
    return " ".join(node.text.split())


def test_every_claim_has_one_line_and_every_finding_a_square_that_leads_to_it(page):
    cards = [card["id"] for card in page.select(".tc-scoreboard .tc-claim")]
    assert sorted(cards) == sorted(f"claim-{id}" for id in ledger.load_claims())
    squares = sorted(cell["href"] for cell in page.select("a.tc-cell"))
    assert squares == sorted(f"#claim-{claim.id}" for claim in scoreboard.counted_in("finding"))
    line = words(page.find(id="claim-Z2").summary)
    assert line == f"held up {ledger.claim_of('Z2').title}. 3.1% of tokens predict themselves."


def test_a_card_begins_with_a_plain_sentence_and_folds_its_criterion_in_words(page, text):
    card = page.find(id="claim-Z2")
    assert card.select_one(".tc-rule").text.strip() == ledger.claim_of("Z2").in_words
    assert "most are <td and </script> | *stars*" in card.text and text.count("</script>") == 1
    assert card.select_one(".tc-shown")["href"] == "../notebooks/02_zero%20layers.html#claim-Z2"
    assert "fraction of tokens that raise their own logit most” ≤ 0.1" in card.text and "self_largest" not in card.text
    for fold in card.select("details"):
        fold.extract()
    assert "≤ 0.1" not in card.text


def test_a_card_says_what_other_models_gave(page):
    facts = {words(row.dt): words(row.dd) for row in page.find(id="claim-Z2").select(".tc-facts > div")}
    assert facts["Held-out seed"] == "seed 2: ◐ partly reproduced 30% of tokens predict themselves"
    assert facts["Public models"].startswith("A <b>: ✗ not reproduced 90%")
    assert facts["Public models"].endswith("(judged by an earlier criterion)")
    assert "Held-out seed" not in page.find(id="claim-Z1").text


def test_a_card_says_which_condition_is_not_met_and_how_its_criterion_was_amended(page, text):
    card = page.find(id="claim-T14")
    assert UNMET in card.text and UNMET not in card.summary.text
    assert "Noise could change this verdict" in card.text and "Noise" not in card.summary.text
    amended = card.select_one("details.tc-amended")
    assert all(word in amended.text for word in ("Before.", "models of that time.", "Reason."))
    amended = [claim for claim in ledger.load_claims().values() if claim.amended]
    assert len(page.select(".tc-amended")) == len(amended)
    late = sum("A result had been seen before" in card.text for card in page.select(".tc-claim"))
    assert f"We changed the criteria of {len(amended)} claims later, {late} of them after" in text
    assert not any(sign in card.text for card in page.select("summary") for sign in "†‡≈✓◐✗")


def test_the_front_page_has_a_square_for_every_finding_and_three_sentences_without_marks(data):
    html = BeautifulSoup(scoreboard.headlines(scoreboard.Results(RECORDED, data=data)), "html.parser")
    findings = {f"scoreboard.html#claim-{claim.id}" for claim in scoreboard.counted_in("finding")}
    squares = [cell["href"] for cell in html.select("a.tc-square")]
    assert set(squares) == findings and len(squares) == len(findings)
    assert f"The paper’s {len(findings)} findings" in html.select_one(".tc-squares").text
    verdicts = [cell["title"].rsplit(": ", 1)[1] for cell in html.select("a.tc-square")]
    assert verdicts == sorted(verdicts, key=scoreboard.JUDGED.index), "what held comes first"
    assert all(f"**What {said}.**" in html.text for said in ("held", "did not", "surprised us"))
    assert "threshold" not in html.text and "criterion" not in html.text


def test_the_html_is_closed_to_markdown(text):
    for block in re.findall(r"```\{raw\} html\n(.*?)\n```\n", text, flags=re.DOTALL):
        assert "`" not in block and "\n\n" not in block
    outside = re.sub(r"```\{raw\} html\n.*?\n```\n", "", text, flags=re.DOTALL)
    assert "stars" not in outside and outside.startswith("# Scoreboard: did the paper hold up?\n")
