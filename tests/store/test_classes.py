"""The class table: numbers without gaps, names in order, a colour for each."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.store.classes import FAMILIAR_COLOURS, ClassTable, choose_colours

NAMES = st.lists(st.text(min_size=1, max_size=20), unique=True, max_size=60)


@given(NAMES)
def test_numbers_run_from_zero_in_the_order_of_names(names: list[str]) -> None:
    table = ClassTable.from_names(names)
    assert [entry.number for entry in table] == list(range(len(names)))
    assert table.names == sorted(names)
    assert all(table.number_of(name) == table.names.index(name) for name in names)
    assert ClassTable.from_names(reversed(names * 2)) == table


@given(NAMES)
def test_json_and_back(names: list[str]) -> None:
    table = ClassTable.from_names(names)
    again = ClassTable.from_json(json.loads(json.dumps(table.to_json())))
    assert again == table
    assert isinstance(again, ClassTable)


CROPS = [f"{season} {name}" for season in ("winter", "spring") for name in FAMILIAR_COLOURS][:40]


@pytest.mark.parametrize(
    "names",
    [CROPS, [f"class {number}" for number in range(40)], ["wheat", *(f"wheat {number}" for number in range(39))]],
    ids=["familiar", "strange", "all wheat"],
)
def test_forty_classes_have_forty_colours(names: list[str]) -> None:
    colours = choose_colours(names)
    assert len(set(colours)) == len(names) == 40
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)


def test_a_full_map_has_a_colour_for_each() -> None:
    assert len(set(choose_colours([f"class {number}" for number in range(255)]))) == 255


def test_familiar_crops_have_familiar_colours() -> None:
    colours = dict(zip(names := ["winter wheat", "Sugar_Beet", "spring wheat"], choose_colours(names), strict=True))
    assert colours["winter wheat"] == FAMILIAR_COLOURS["wheat"]
    assert colours["Sugar_Beet"] == FAMILIAR_COLOURS["beet"]
    assert colours["spring wheat"] not in FAMILIAR_COLOURS.values()


def test_words_are_matched_whole() -> None:
    assert choose_colours(["grapes"])[0] != FAMILIAR_COLOURS["rape"]


def test_a_colour_as_numbers() -> None:
    table = ClassTable.from_names(["wheat"])
    assert table[0].rgb == (0xD9, 0xA4, 0x41)


def test_levels_as_a_tree() -> None:
    lineages = {"wheat": ["arable", "cereal"], "maize": ["arable", "other"], "rye": ["arable", "cereal"]}
    lineages |= {"hedge": ["trees", "other"], "water": []}
    tree = ClassTable.from_names(lineages).with_lineages(lineages).tree()
    assert tree.names == (
        ("trees", "arable", "water"),
        ("other", "other", "cereal", "water"),  # of trees and of arable land
        ("hedge", "maize", "rye", "water", "wheat"),
    )
    assert tree.lineages == ((0, 0, 0), (1, 1, 1), (1, 2, 2), (2, 3, 3), (1, 2, 4))


def test_a_flat_table_has_one_level() -> None:
    tree = ClassTable.from_names(["wheat", "maize"]).tree()
    assert (tree.lineages, tree.names) == (((0,), (1,)), (("maize", "wheat"),))


@given(NAMES.filter(bool), st.lists(st.lists(st.sampled_from(["a", "b", "c"]), max_size=3), min_size=1, max_size=5))
def test_every_table_gives_a_tree(names: list[str], lineages: list[list[str]]) -> None:
    named = {name: lineages[number % len(lineages)] for number, name in enumerate(names)}
    table = ClassTable.from_names(names).with_lineages(named)
    tree = table.tree()
    assert {len(lineage) for lineage in tree.lineages} == {len(tree.names)} == {table.levels}
    assert [lineage[-1] for lineage in tree.lineages] == list(range(len(table)))
    for level, level_names in enumerate(tree.names):
        nodes = [lineage[level] for lineage in tree.lineages]
        assert set(nodes) == set(range(len(level_names)))
        for entry, node in zip(table, nodes, strict=True):
            assert level_names[node] == (entry.lineage[level] if level < len(entry.lineage) else entry.name)
        if level:
            parents = {(lineage[level - 1], lineage[level]) for lineage in tree.lineages}
            assert len(parents) == len(level_names)  # one each


def test_names_that_are_spelt_otherwise() -> None:
    table = ClassTable.in_order(["sugar beet", "Sugar-Beet", "maize", "???"])
    assert table.spelt_twice() == [["sugar beet", "Sugar-Beet"]]
    assert table.find("MAIZE ") == "maize"
    assert table.find("Sugar-Beet") == "Sugar-Beet"
    assert table.find("SUGARBEET") is None  # either of two
    assert table.find("oats") is None
    codes = ClassTable.in_order(["1.1", "11", "1-20"])
    assert codes.spelt_twice() == []
    assert codes.find("120") is None
    assert codes.find("11 ") == "11"
