"""The page of a census, in a real browser: its table sorts and filters, its map says what each head does."""

from __future__ import annotations

import pytest
from msgspec import structs

from attnctl.batching import TreebankStream
from attnctl.commands.evaluate.compute import CensusWork, count_corpus, open_census_model
from attnctl.commands.evaluate.result import CensusTable
from attnctl.commands.evaluate.show import census_page
from tests.conftest import SAMPLES
from tests.render.page.conftest import Tab

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m"


@pytest.fixture
def census() -> CensusTable:
    work = CensusWork({"name": "random", "n_heads": 3, "d_k": 4, "n_layers": 2})
    found = count_corpus(work, TreebankStream([str(SAMPLES / "sentences.conllu")]), open_census_model(work))
    return structs.replace(found, corpus=HOSTILE)


def test_the_map_the_table_the_kinds_and_hostile_names_of_a_census(tab: Tab, census: CensusTable) -> None:
    from selenium.webdriver.common.keys import Keys

    first = structs.replace(census.relations[0], relation=HOSTILE)
    tab.show(census_page(structs.replace(census, relations=(first, *census.relations[1:]))))
    tab.slide("#least", 1)
    # what a corpus is called is text
    assert "</script><img src=x" in tab.text("#facts") and "\x1b" not in tab.text("#facts")
    assert tab.js("return document.images.length") == 0
    assert "</script><img" in tab.texts("#relations tbody td:first-child")[0]
    # every head stands in the map of the chosen relation
    found = [relation for relation in census.relations if relation.best is not None and not relation.subtype]
    assert len(tab.texts("#relations tbody tr")) == len(found)
    second = found[1]
    tab.click("#relations tbody tr", 1)
    assert tab.texts("#map .cell") == [str(round(100 * int(count) / second.cases)) for count in second.correct.ravel()]
    assert tab.text("#readout").startswith(f"Head {second.best.layer}.{second.best.head} finds ")
    tab.press("#map", Keys.ARROW_RIGHT)
    assert tab.text("#readout").startswith(f"Head {second.best.layer}.{(second.best.head + 1) % 3} finds ")
    # heads are listed by their kind
    positional = [f"{h.layer}.{h.head} ({h.positional.offset:+d})" for h in census.heads if h.positional is not None]
    said = " ".join(tab.text("#kinds").split())
    assert f"90 % of the words: {', '.join(positional) or 'none'}. Syntactic" in said
    assert all(f"{h.layer}.{h.head}: {h.syntactic[0].relation}, " in said for h in census.heads if h.syntactic)
    assert len(tab.texts("#layers tbody tr")) == 2 and len(tab.texts("#layers thead th")) == 5
    # the table sorts and filters
    tab.click("#relations th", tab.texts("#relations th").index("cases"))
    cases = [int(text.replace(",", "")) for text in tab.texts("#relations tbody td:last-child")]
    assert cases == sorted(cases, reverse=True)
    tab.press("#filter", "nsubj")
    assert set(tab.texts("#relations tbody td:first-child")) == {"nsubj"}
    tab.click("#subtypes")
    tab.js("document.getElementById('filter').value = ''")
    tab.slide("#least", 1)
    assert len(tab.texts("#relations tbody tr")) > 20
