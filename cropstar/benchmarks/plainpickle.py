"""Pickles of plain data, read without Python's unpickler.

A pickle is a programme, and unpickling runs it: it may import and call anything, and even without names one number in
it can make the unpickler ask for gigabytes. Here the operations are only listed (pickletools does that without running
them) and those that make lists, tuples, dictionaries, whole numbers and texts are followed. NumPy's whole numbers are
known by name and worked out from their bytes; nothing is ever imported or called.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cropstar.errors import InputError
from cropstar.geo.paths import require_file

MAXIMUM_BYTES = 2**26
MAXIMUM_OPERATIONS = 2**22  # Piano-midi takes 0.7 million, and 2.8 if its numbers are NumPy's
AGAIN = "get the file again"

DTYPE = "numpy dtype"
SCALARS = ("numpy.core.multiarray scalar", "numpy._core.multiarray scalar")
VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINBYTES", "SHORT_BINBYTES"),
}
CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Refused(Exception):
    """An operation that plain data have no need of."""


@dataclass(frozen=True)
class _Name:
    """A name in a pickle. It stays a name."""

    text: str


@dataclass
class _Integers:
    """A NumPy type of whole numbers: sign and width, and the order of the bytes."""

    code: str
    order: str = "<"

    def value(self, raw: str | bytes) -> int:
        data = raw.encode("latin-1") if isinstance(raw, str) else raw
        if len(data) != int(self.code[1]):
            raise ValueError(f"{len(data)} bytes for a number of {self.code[1]}")
        return int.from_bytes(data, "big" if self.order == ">" else "little", signed=self.code[0] == "i")


def read_plain_pickle(path: Path) -> Any:
    """The lists, tuples, dictionaries, whole numbers and texts in a pickle. Parts of it may be one and the same object:
    who walks through it counts the steps."""
    require_file(path)
    if path.stat().st_size > MAXIMUM_BYTES:
        raise InputError("too large a pickle", path=path, why=f"more than {MAXIMUM_BYTES:,} bytes", remedy=AGAIN)
    try:
        return _follow(path.read_bytes())
    except _Refused as failure:
        remedy = "it was not run; take a file of lists and numbers alone, or the .mat file"
        raise InputError("a pickle of more than plain data", path=path, why=str(failure), remedy=remedy) from None
    except LookupError:
        why = "an operation without its operands"
        raise InputError("not a pickle, or a damaged one", path=path, why=why, remedy=AGAIN) from None
    except (ValueError, TypeError, ArithmeticError) as failure:
        raise InputError("not a pickle, or a damaged one", path=path, why=str(failure)[:200], remedy=AGAIN) from None


def _follow(data: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    argument: Any
    for number, (operation, argument, _) in enumerate(pickletools.genops(data)):
        if number == MAXIMUM_OPERATIONS:
            raise _Refused(f"more than {MAXIMUM_OPERATIONS:,} operations")
        name = operation.name
        if name in VALUES:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name]())
        elif name in TUPLES:
            stack[-TUPLES[name] :] = [_last(stack, TUPLES[name])]
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(tuple(since_mark()))
        elif name == "LIST":
            stack.append(since_mark())
        elif name == "DICT":
            stack.append(_pairs(since_mark()))
        elif name == "APPEND":
            item = stack.pop()
            _top(stack, list).append(item)
        elif name == "APPENDS":
            items = since_mark()
            _top(stack, list).extend(items)
        elif name == "SETITEM":
            items = list(_last(stack, 2))
            del stack[-2:]
            _top(stack, dict).update(_pairs(items))
        elif name == "SETITEMS":
            items = since_mark()
            _top(stack, dict).update(_pairs(items))
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            if name == "STACK_GLOBAL":
                argument = " ".join(_last(stack, 2))
                del stack[-2:]
            if argument not in (DTYPE, *SCALARS):
                raise _Refused(f"it names {argument.replace(' ', '.')[:80]}")
            stack.append(_Name(argument))
        elif name == "REDUCE":
            function, arguments = _last(stack, 2)
            stack[-2:] = [_numpy(function, arguments)]
        elif name == "BUILD":
            state = stack.pop()
            _top(stack, _Integers).order = state[1]
        elif name == "STOP":
            (value,) = stack
            return value
        elif name not in ("PROTO", "FRAME"):
            raise _Refused(f"its operation {name}")
    raise ValueError("it has no end")


def _last(stack: list[Any], count: int) -> tuple[Any, ...]:
    if len(stack) < count:
        raise ValueError("an operation without its operands")
    return tuple(stack[-count:])


def _top(stack: list[Any], kind: type) -> Any:
    if not isinstance(stack[-1], kind):
        raise TypeError(f"a {type(stack[-1]).__name__} where a {kind.__name__} is needed")
    return stack[-1]


def _pairs(items: list[Any]) -> dict[Any, Any]:
    # Texts alone: hashing a tuple in a tuple, and so on a million times, would end the process.
    if not all(isinstance(key, str) for key in items[::2]):
        raise TypeError("a dictionary with keys that are no texts")
    return dict(zip(items[::2], items[1::2], strict=True))


def _numpy(function: Any, arguments: Any) -> Any:
    """What NumPy would make of its own whole numbers."""
    if not isinstance(function, _Name):
        raise _Refused("it calls what is no name")
    if function.text == DTYPE:
        code = arguments[0]
        if not (isinstance(code, str) and re.fullmatch("[iu][1248]", code)):
            raise _Refused("NumPy's type of something else than whole numbers")
        return _Integers(code)
    kind, raw = arguments
    if not isinstance(kind, _Integers) or not isinstance(raw, str | bytes):
        raise TypeError("a number without its type")
    return kind.value(raw)
