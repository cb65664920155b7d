"""`cropstar config`."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from cropstar.cli.options import examples, logging_options
from cropstar.config_keys import Key, config_keys, config_sections, nearest_keys, schema_text
from cropstar.errors import UsageError

EXAMPLES = examples("""
cropstar config                                       all keys with their types and defaults
cropstar config model.pool                            one key: type, default, bounds, meaning, how to set it
cropstar config optimiser                             the keys of a section
cropstar config --schema > cropstar.schema.json       for an editor that checks YAML
cropstar train --print-config                         the values that a training would have
""")


@click.command(epilog=EXAMPLES)
@click.argument("key", required=False)
@click.option("--schema", is_flag=True, help="Print the JSON schema of configuration files.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@logging_options
def config(key: str | None, schema: bool, as_json: bool) -> None:
    """Explain the keys of a configuration: all, those of a section, or one.

    Keys are given in a YAML file ('cropstar train --config FILE') or by '--set KEY=VALUE'. A value that is not given
    follows from the data: 'cropstar train --print-config' shows it.
    """
    if schema:
        if key is not None:
            raise UsageError("--schema is of all keys", remedy="leave out the key")
        click.echo(schema_text(), nl=False)
        return
    chosen = _chosen(key)
    if as_json:
        click.echo(json.dumps([asdict(each) for each in chosen], indent=1, ensure_ascii=False))
    elif key in config_keys():
        click.echo(explain(chosen[0]))
    else:
        click.echo(table(chosen))


def _chosen(name: str | None) -> list[Key]:
    keys = config_keys()
    if name is None:
        return list(keys.values())
    if name in keys:
        return [keys[name]]
    if name and name in config_sections():
        return [key for key in keys.values() if key.name.startswith(f"{name}.")]
    raise UsageError(f"unknown key '{name}'", remedy=nearest_keys(name))


def explain(key: Key) -> str:
    """One key, with the ways to set it."""
    value = key.default if key.default not in ("null", "none") else "VALUE"
    lines = [f"{key.name}: {key.meaning}", f"  type     {key.type}", f"  default  {key.default}"]
    lines.append("           a recipe may choose another value: 'cropstar train --print-config' shows it")
    if key.bounds:
        lines.append(f"  bounds   {key.bounds}")
    ways = [f"--set {key.name}={value}", *_options_of(key.name)]
    return "\n".join([*lines, f"  set it   {' or '.join(ways)}"])


def _options_of(name: str) -> list[str]:
    from cropstar.api.commands import SETTINGS

    return [f"--{option.replace('_', '-')}" for option, names in SETTINGS.items() if name in names]


def table(keys: list[Key]) -> str:
    """Keys, types, defaults and meanings in columns."""
    rows = [(key.name, key.type, key.default) for key in keys]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)), key.comment])
        for row, key in zip(rows, keys, strict=True)
    )
