"""Logs, to people and to batch jobs, and progress bars."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.runtime import JsonFormatter, PlainFormatter, event, logger, set_up_logging, track


@pytest.fixture(autouse=True)
def logger_as_it_was() -> Iterator[None]:
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)
    logger.as_json = False  # type: ignore[attr-defined]


def test_plain_lines_go_to_stderr_and_name_only_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging()
    event("4 tiles", tiles=4)
    logger.warning("a tile was damaged")
    logger.debug("not said")
    assert capsys.readouterr() == ("", "4 tiles\nwarning: a tile was damaged\n")


def test_json_lines_carry_the_facts_as_fields(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(as_json=True)
    event("4 tiles,\nweiß", tiles=4, store="data/stores/demo", shares={"a": [0.5, None]})
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    line = json.loads(err)
    assert abs(datetime.fromisoformat(line.pop("time")) - datetime.now(UTC)).total_seconds() < 60
    assert line == {
        "level": "info",
        "message": "4 tiles,\nweiß",
        "tiles": 4,
        "store": "data/stores/demo",
        "shares": {"a": [0.5, None]},
    }


def test_arguments_of_a_message_are_put_in(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(as_json=True)
    logger.warning("the tile %s was damaged", "a.h5")
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["message"]) == ("warning", "the tile a.h5 was damaged")


@pytest.mark.parametrize(
    ("quiet", "verbose", "said"),
    [(False, False, "information warning"), (True, False, "warning"), (False, True, "detail information warning")],
)
def test_how_much_is_said(capsys: pytest.CaptureFixture[str], quiet: bool, verbose: bool, said: str) -> None:
    set_up_logging(quiet=quiet, verbose=verbose, as_json=True)
    logger.debug("detail")
    event("information")
    logger.warning("warning")
    assert [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()] == said.split()


def test_setting_up_twice_says_everything_once(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging()
    set_up_logging()
    event("once")
    assert capsys.readouterr().err == "once\n"


def test_lines_during_a_progress_bar_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(as_json=True)
    seen = []
    for item in track(iter("abc"), 3, "letters", "letter"):
        seen.append(item)
        event(f"saw {item}")
    assert seen == ["a", "b", "c"]
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["saw a", "saw b", "saw c"]


@given(st.text(), st.dictionaries(st.sampled_from(["path", "count", "ä"]), st.text() | st.integers() | st.none()))
def test_any_message_is_one_json_object_on_one_line(message: str, fields: dict[str, object]) -> None:
    record = logging.LogRecord("cropstar", logging.INFO, __file__, 1, message, None, None)
    record.fields = fields
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert json.loads(text) | fields | {"message": message} == json.loads(text)


def test_a_name_with_a_line_break_stays_on_its_line() -> None:
    record = logging.LogRecord("cropstar", logging.INFO, "", 0, "left out: %s", ("a\nerror: b\x1b[31m",), None)
    assert PlainFormatter().format(record) == "left out: a\\nerror: b\\x1b[31m"
