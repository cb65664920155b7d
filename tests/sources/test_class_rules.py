"""The class table of `--classes`: merged, renamed, dropped; every label has one place or is asked about."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.errors import InputError, UsageError
from cropstar.sources.class_rules import KEEP_ALL, ClassRules, read_rules
from cropstar.store.classes import ClassTable

TABLE = """
winter cereals: [winter wheat, winter barley]
maize: {labels: [corn, 211], colour: "#123ABC"}
grass: [meadow]
drop: [unknown, house]
"""


def rules_of(folder: Path, text: str) -> ClassRules:
    path = folder / "classes.yaml"
    path.write_text(text, encoding="utf-8")
    return read_rules(path)


def test_merge_rename_and_drop(tmp_path: Path) -> None:
    rules = rules_of(tmp_path, TABLE)
    labels = ["winter wheat", "211", "house", "winter barley", "corn", "meadow"]
    assert rules.apply(labels) == ["winter cereals", "maize", None, "winter cereals", "maize", "grass"]


def test_numbers_in_the_order_of_the_file_and_colours_by_file_or_chosen(tmp_path: Path) -> None:
    table = rules_of(tmp_path, TABLE).table(["maize"])
    assert table.names == ["winter cereals", "maize", "grass"]  # also those without a parcel
    assert [entry.number for entry in table] == [0, 1, 2]
    assert table[1].colour == "#123abc"
    assert len({entry.colour for entry in table}) == 3


def test_a_colour_of_the_file_is_not_chosen_again(tmp_path: Path) -> None:
    table = rules_of(tmp_path, 'hemp: {labels: [h], colour: "#e67e22"}\nmaize: [m]\nwheat: [w]').table([])
    assert table[0].colour == "#e67e22"  # which is the familiar one of maize
    assert len({entry.colour for entry in table}) == 3


@pytest.mark.parametrize(
    ("others", "expected"), [("drop", ["a", None, None]), ("keep", ["a", "zebra", "b"]), ("error", None)]
)
def test_others(tmp_path: Path, others: str, expected: list[str | None] | None) -> None:
    rules = rules_of(tmp_path, f"a: [x]\nothers: {others}")
    if expected is None:
        with pytest.raises(InputError, match="the label 'b' is not in the class table"):
            rules.apply(["x", "zebra", "b"])
        return
    assert rules.apply(["x", "zebra", "b"]) == expected
    assert rules.table(name for name in expected if name).names == ["a", *sorted(filter(None, expected[1:]))]


def test_a_label_that_is_not_in_the_table(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        rules_of(tmp_path, TABLE).apply(["winter weat", "corn", "oats", "winter weat"])
    line = str(caught.value)
    assert "the label 'winter weat' is not in the class table in" in line
    assert "2 parcels have it, the nearest known label is 'winter wheat', and 1 more labels are missing" in line
    assert "others: drop" in line


def test_what_others_drops_and_what_nobody_has_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "cropstar"):
        rules_of(tmp_path, TABLE + "others: drop").apply(["oats", "oats", "rye", "corn"])
    assert "leaves out the other labels: oats (2), rye (1)" in caplog.text
    assert "names labels that no parcel here has: unknown, house, winter wheat, winter barley, 211 and 1" in caplog.text


def test_labels_are_taken_as_they_are_written(tmp_path: Path) -> None:
    rules = rules_of(tmp_path, "a: [010, no, 1:30, 2020-01-01, 1e3]\nyes: [~, 8]\n7: ['  x ']")
    assert rules.apply(["010", "no", "1:30", "2020-01-01", "1e3", "~", "8", "x"]) == ["a"] * 5 + ["yes"] * 2 + ["7"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: [x]\na: [y]", "line 2: the key 'a' stands twice"),
        ("a: {labels: [x], labels: [y]}", "'labels' stands twice"),
        ("a: [x", "not valid YAML"),
        ("", "no keys at the top"),
        ("- x", "no keys at the top"),
        ("a: x", "'a' has no list of labels"),
        ("a:", "'a' has no list of labels"),
        ("a: []", "'a' has no list of labels"),
        ("a: [[x]]", "in 'a' is no label"),
        ("a: ['']", "in 'a' is no label"),
        ("a: {colour: '#ffffff'}", "'a' has no list of labels"),
        ("a: {labels: [x], color: '#ffffff'}", "did you mean 'colour'?"),
        ("a: {labels: [x], colour: red}", "the colour of 'a' is 'red'; write it in quotes"),
        ("a:\n  labels: [x]\n  colour: #ffffff", "the colour of 'a' is ''; write it in quotes"),
        ("a: [x, x]", "'x' stands under 'a' and 'a'"),
        ("a: [x]\nb: [x]", "'x' stands under 'a' and 'b'"),
        ("a: [x]\ndrop: [x]", "'x' stands under 'a' and 'drop'"),
        ("a: [x]\nothers: maybe", "'others' is 'maybe'; choose one of error, drop, keep"),
        ("a: [x]\nothers: [y]", "'others' is ['y']"),
        ("a: [x]\ndrop: y", "'drop' has no list"),
        ("drop: [x]", "no class is left"),
        ("'': [x]", "a class without a name"),
        ("\n".join(f"c{number}: [{number}]" for number in range(256)), "256 classes"),
        ("a: !!python/object:os.system [x]", "not valid YAML"),
    ],
)
def test_what_is_no_class_table(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        rules_of(tmp_path, text)
    assert part in str(caught.value)
    assert "classes.yaml" in str(caught.value)
    assert caught.value.remedy


def test_what_is_no_text_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        read_rules(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not a text file"):
        read_rules(tmp_path / "binary.yaml")


def test_the_recipe_sees_the_content_alone(tmp_path: Path) -> None:
    first = rules_of(tmp_path, "a: [x, y]\nb: [z]").to_json()
    assert rules_of(tmp_path, "# said otherwise\na: {labels: [y, x]}\nb:\n- z\nothers: error").to_json() == first
    for text in (
        "b: [z]\na: [x, y]",
        "a: [x]\nb: [z]",
        "a: [x, y]\nb: [z]\nothers: drop",
        "a: [x, y]\nb: [z]\ndrop: [u]",
    ):
        assert rules_of(tmp_path, text).to_json() != first


@given(st.lists(st.text(min_size=1), min_size=1))
def test_without_rules_each_label_is_a_class_of_its_own(labels: list[str]) -> None:
    assert KEEP_ALL.apply(labels) == labels
    assert KEEP_ALL.table(labels) == ClassTable.from_names(labels)
