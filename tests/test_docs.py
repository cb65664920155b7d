"""The documents name commands, options and files that exist, and their examples can be read."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from cropstar.cli.main import COMMANDS, cropstar
from cropstar.sources.class_rules import read_rules

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
COMMAND = re.compile(r"(?:^ {4}|`|^|-m |run )cropstar +([a-z]+)((?: [^`\n]*)?)(?:`|$)", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def commands_of(text: str) -> list[tuple[str, list[str]]]:
    """Command and options of every line that calls cropstar."""
    joined = text.replace("\\\n", " ")
    found = []
    for name, rest in COMMAND.findall(joined):
        words = re.split(r"\s+#|\s{3,}", rest)[0].split()
        found.append((name, [word.split("=")[0] for word in words if word.startswith("--") and len(word) > 2]))
    return found


def options_of(name: str) -> set[str]:
    command = cropstar.get_command(click.Context(cropstar), name)
    assert command is not None, name
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    for name, options in commands_of(page.read_text(encoding="utf-8")):
        assert name in COMMANDS, f"cropstar {name}"
        if name != "bench":  # its suite has options of its own
            assert set(options) <= options_of(name) | {"--help"}, f"cropstar {name} {options}"


def test_the_pages_do_call_commands() -> None:
    calls = [name for page in PAGES for name, _ in commands_of(page.read_text(encoding="utf-8"))]
    assert {"ingest", "train", "predict", "update", "evaluate", "inspect", "tune", "compare"} <= set(calls)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_contributing_names_files_that_exist() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:cropstar/)?((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)`", text))
    assert len(named) > 20
    for path in named:
        assert (REPOSITORY / "cropstar" / path).exists() or (REPOSITORY / path).exists(), path


def test_the_example_of_a_class_table_is_one(tmp_path: Path) -> None:
    guide = (REPOSITORY / "docs" / "guide.md").read_text(encoding="utf-8")
    example = guide.split("```yaml\n")[1].split("```")[0]
    path = tmp_path / "classes.yaml"
    path.write_text(example, encoding="utf-8")
    rules = read_rules(path)
    assert rules.others == "error"
    labels = ["winter barley", "110", "grain maize", "building"]
    assert rules.apply(labels) == ["winter cereals", "winter cereals", "maize", None]
    assert rules.table([]).names == ["winter cereals", "maize"]
