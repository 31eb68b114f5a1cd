"""The page of a census, in a real browser: its table sorts and filters, its map says what each head does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from attnctl.batching.census_work import CensusWork, count_corpus, open_census_model
from attnctl.batching.treebank import Treebank
from attnctl.readings.census.census_table import CensusTable
from attnctl.render.page.reading_pages import census_page
from tests.conftest import SAMPLES
from tests.render.page.conftest import Tab

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m"


@pytest.fixture(scope="module")
def census() -> CensusTable:
    work = CensusWork({"name": "random", "n_heads": 3, "d_k": 4, "n_layers": 2})
    found = count_corpus(work, Treebank([str(SAMPLES / "sentences.conllu")]), open_census_model(work))
    return replace(found, corpus=HOSTILE)


@pytest.fixture
def opened(tab: Tab, census: CensusTable) -> Tab:
    first = structs.replace(census.relations[0], relation=HOSTILE)
    tab.show(census_page(replace(census, relations=(first, *census.relations[1:]))))
    tab.slide("#least", 1)
    return tab


def test_every_head_stands_in_the_map_of_the_chosen_relation(opened: Tab, census: CensusTable) -> None:
    from selenium.webdriver.common.keys import Keys

    found = [relation for relation in census.relations if relation.best is not None and not relation.subtype]
    assert len(opened.texts("#relations tbody tr")) == len(found)
    second = found[1]
    opened.click("#relations tbody tr", 1)
    shares = [str(round(100 * int(count) / second.cases)) for count in second.correct.ravel()]
    assert opened.texts("#map .cell") == shares
    assert second.best is not None
    assert opened.text("#readout").startswith(f"Head {second.best.layer}.{second.best.head} finds ")
    opened.press("#map", Keys.ARROW_RIGHT)
    assert opened.text("#readout").startswith(f"Head {second.best.layer}.{(second.best.head + 1) % 3} finds ")


def test_the_table_sorts_and_filters(opened: Tab) -> None:
    opened.click("#relations th", opened.texts("#relations th").index("cases"))
    cases = [int(text.replace(",", "")) for text in opened.texts("#relations tbody td:last-child")]
    assert cases == sorted(cases, reverse=True)
    opened.press("#filter", "nsubj")
    assert set(opened.texts("#relations tbody td:first-child")) == {"nsubj"}
    opened.click("#subtypes")
    opened.js("document.getElementById('filter').value = ''")
    opened.slide("#least", 1)
    assert len(opened.texts("#relations tbody tr")) > 20


def test_kinds_of_heads_are_listed(opened: Tab, census: CensusTable) -> None:
    positional = [f"{h.layer}.{h.head} ({h.positional.offset:+d})" for h in census.heads if h.positional is not None]
    said = " ".join(opened.text("#kinds").split())
    assert f"90 % of the words: {', '.join(positional) or 'none'}. Syntactic" in said
    assert all(f"{h.layer}.{h.head}: {h.syntactic[0].relation}, " in said for h in census.heads if h.syntactic)
    assert len(opened.texts("#layers tbody tr")) == 2 and len(opened.texts("#layers thead th")) == 5


def test_what_a_corpus_is_called_is_text(opened: Tab) -> None:
    assert "</script><img src=x" in opened.text("#facts") and "\x1b" not in opened.text("#facts")
    assert opened.js("return document.images.length") == 0
    assert "</script><img" in opened.texts("#relations tbody td:first-child")[0]
