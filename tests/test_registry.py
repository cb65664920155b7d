"""Named things: known ones are found, unknown ones are answered with a suggestion."""

from __future__ import annotations

import pytest

from cropstar.errors import UsageError
from cropstar.registry import Registry, did_you_mean


@pytest.fixture
def animals() -> Registry[int]:
    registry: Registry[int] = Registry("animal")
    registry.register("sheep")(4)
    registry.register("hen")(2)
    return registry


def test_entries_are_found_by_name(animals: Registry[int]) -> None:
    assert animals["sheep"] == 4
    assert "hen" in animals
    assert "goose" not in animals
    assert len(animals) == 2
    assert list(animals) == ["hen", "sheep"]


def test_a_slip_of_the_pen_is_answered_with_the_name(animals: Registry[int]) -> None:
    with pytest.raises(UsageError) as caught:
        animals["shep"]
    assert str(caught.value) == "unknown animal 'shep'; did you mean 'sheep'? known: hen, sheep"


def test_a_strange_name_is_answered_with_all_names(animals: Registry[int]) -> None:
    with pytest.raises(UsageError) as caught:
        animals["quux"]
    assert str(caught.value) == "unknown animal 'quux'; known: hen, sheep"


def test_a_name_is_given_once(animals: Registry[int]) -> None:
    with pytest.raises(ValueError, match="animal 'hen' is registered twice"):
        animals.register("hen")(3)


def test_the_decorator_returns_what_it_registers() -> None:
    registry: Registry[type] = Registry("thing")

    @registry.register("plain")
    class Plain:
        pass

    assert registry["plain"] is Plain
    assert Plain.__name__ == "Plain"


def test_the_nearest_of_several_is_suggested() -> None:
    assert did_you_mean("convstr", ["star", "convstar", "convgru"]).startswith("did you mean 'convstar'? known: ")
    assert did_you_mean("x", []) == "known: "
