"""What options take: numbers, days and lists, as click's types and callbacks."""

from __future__ import annotations

import math
from datetime import date, datetime
from typing import Any

import click

DAY = click.DateTime(["%Y-%m-%d"])


class Decimal(click.FloatRange):
    """A number within a range, which is neither infinite nor NaN: click would let both through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def split_names(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Names separated by commas, as the callback of an option."""
    return tuple(part.strip() for part in value.split(",")) if value else None


def split_numbers(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Whole numbers separated by commas."""
    try:
        return tuple(int(part) for part in value.split(",")) if value else None
    except ValueError:
        raise click.BadParameter(f"'{value}' is not a list of numbers such as 4,5,6") from None


def split_decimals(_: click.Context, __: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """Numbers separated by commas."""
    try:
        return tuple(float(part) for part in value.split(",")) if value else None
    except ValueError:
        raise click.BadParameter(f"'{value}' is not a list of numbers such as 7.5,47.2,7.9,47.4") from None


def only_day(_: click.Context, __: click.Parameter, value: datetime | None) -> date | None:
    return value.date() if value else None
