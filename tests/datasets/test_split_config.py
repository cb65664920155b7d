"""The settings of a split: names and numbers of groups, and what does not go together."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.config import RegularConfig, SplitConfig, TrainConfig, dump_config, resolve_config
from cropstar.errors import UsageError

STORE = {"store": Path("a/store")}


def test_years_are_groups_whether_yaml_reads_them_as_numbers_or_text() -> None:
    split = resolve_config(None, STORE, ("split.by=group", "split.test=[2017, '2016', north]")).split
    assert split.test == ("2017", "2016", "north")
    assert split.named == {"test": ("2017", "2016", "north")}
    assert (split.validation, split.validation_share) == (None, 0.15)


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (("split.test=2",), "wrong value of 'split.test': value error, give a share between 0 and 1, or a list"),
        (("split.test=true",), "wrong value of 'split.test'"),
        (("split.by=group", "split.test=[]"), "wrong value of 'split.test'"),
        (("split.by=group", "split.test=[2017, '2017']"), "each once"),
        (("split.by=group", "split.test=[2017.5]"), "wrong value of 'split.test'"),
        (("split.by=group", "split.train=north", "split.test=[south]"), "wrong value of 'split.train'"),
        (("split.by=group", "split.test=[a]", "split.train=[a]"), "a group is named for two parts"),
        (("split.by=group", "split.train=[a]"), "name those of split.test"),
        (("split.by=group", "split.test=[a]", "split.folds=3"), "no split.folds"),
        (("split.test=[a]",), "split.by=group and split.by=scene"),
        (("split.by=farm",), "wrong value of 'split.by'"),
        (("split.name=fold0", "split.by=block"), "split.name is a split of its own"),
        (("split.name=fold0", "split.folds=5"), "split.name is a split of its own"),
        (("split.folds=3", "split.fold=4"), "split.fold is 4 of 3"),
        (("split.fold=2",), "split.fold is 2 of no split.folds"),
        (("split.folds=1",), "wrong value of 'split.folds'"),
        (("split.block=0",), "wrong value of 'split.block'"),
    ],
)
def test_what_does_not_go_together_is_refused(assignments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_config(None, STORE, assignments)
    assert message in str(caught.value)


names = st.lists(st.text(st.characters(exclude_categories=("Cs", "Cc"))), min_size=1, max_size=4, unique=True)


@given(names, st.sampled_from(["group", "scene"]))
def test_names_come_back_from_a_saved_configuration(
    tmp_path_factory: pytest.TempPathFactory, of: list[str], by: str
) -> None:
    config = TrainConfig(store=Path("s"), split=SplitConfig.model_validate({"by": by, "test": of}))
    file = tmp_path_factory.getbasetemp() / "names.yaml"
    file.write_text(dump_config(config), encoding="utf-8")
    assert resolve_config(file, {}) == config


def test_filling_needs_regular_dates() -> None:
    with pytest.raises(ValueError, match=r"regular\.fill needs regular\.every"):
        RegularConfig(fill="linear")
