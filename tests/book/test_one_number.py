"""One number for one thing: what stands on several pages has the same value and unit on all of them."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import lxml.html
import pytest
import yaml

from book_build.build import titles
from transformer_circuits.paths import ROOT

QUANTITIES = yaml.safe_load(Path(__file__).with_name("quantities.yml").read_text(encoding="utf-8"))
# Atomic, so that what must not follow is looked for behind the whole number and its unit.
NUMBER = r"(?>(?P<value>(?:\d[\d,]*)?\.?\d+)(?:(?: ± [\d.]+)? ?(?P<unit>%|nats|thousandths|times))?)"


class Mention(NamedTuple):
    page: str
    words: str
    low: Decimal
    high: Decimal
    unit: str

    def __str__(self) -> str:
        return f"{self.page}: {self.words!r}"


def mentions(said: list[str], pages: Mapping[str, str]) -> Iterator[Mention]:
    """Yield the numbers in these sentences of the pages, as the interval of what rounds to them."""
    for page, text in pages.items():
        for pattern in said:
            for match in re.finditer(rf"(?<![\w.]){pattern.replace('NUMBER', NUMBER)}", text, re.IGNORECASE):
                scale = Decimal("0.01") if match["unit"] == "%" else Decimal(1)
                value = Decimal(match["value"].replace(",", ""))
                half = Decimal(5).scaleb(value.as_tuple().exponent - 1)
                yield Mention(page, match[0], (value - half) * scale, (value + half) * scale, match["unit"] or "")


def problems(quantity: Mapping[str, list[str]], pages: Mapping[str, str]) -> list[str]:
    """Return mentions of a quantity that do not agree with another one, or have another unit."""
    found = list(mentions(quantity["said"], pages))
    wrong = [f"{one} is not in {' or '.join(quantity['units'])}" for one in found if one.unit not in quantity["units"]]
    for i, one in enumerate(found):
        apart = [other for other in found[:i] if one.low > other.high or other.low > one.high]
        wrong += [f"{one}, but {apart[0]}"] if apart else []
    return wrong


@pytest.fixture(scope="module")
def pages(html) -> dict[str, str]:
    """The words of every page."""
    articles = {name: lxml.html.parse(html / f"{name}.html").find(".//article") for name in titles(ROOT)}
    words = ".//text()[not(ancestor::script or ancestor::style)]"
    return {name: " ".join(" ".join(article.xpath(words)).split()) for name, article in articles.items()}


@pytest.mark.parametrize("name", QUANTITIES)
def test_a_quantity_has_one_value_and_one_unit_on_all_pages(name, pages):
    found = list(mentions(QUANTITIES[name]["said"], pages))
    assert len(found) >= 2, f"{name} stands in fewer than two places ({found}): are its patterns out of date?"
    assert problems(QUANTITIES[name], pages) == []
