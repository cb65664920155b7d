"""Commands in this process: faster than `run_cli`, and failures come as exceptions."""

from __future__ import annotations

import json
from typing import Any

import click
from click.testing import CliRunner, Result

from cropstar.errors import CropstarError


class InProcess:
    """A command, with arguments that are always given."""

    def __init__(self, command: click.Command, *always: str) -> None:
        self._command, self._always = command, always

    def __call__(self, *arguments: object) -> Result:
        return CliRunner().invoke(self._command, [*map(str, arguments), *self._always], obj={})

    def said(self, *arguments: object) -> str:
        """The output of a call that succeeds."""
        result = self(*arguments)
        assert result.exit_code == 0, result.exception
        return result.stdout

    def facts(self, *arguments: object) -> dict[str, Any]:
        """The output with --json."""
        read: dict[str, Any] = json.loads(self.said(*arguments, "--json"))
        return read

    def refusal(self, *arguments: object) -> CropstarError:
        """The error of a call that fails, which is one line."""
        failure = self(*arguments).exception
        assert isinstance(failure, CropstarError), failure
        assert len(str(failure).splitlines()) == 1
        return failure
