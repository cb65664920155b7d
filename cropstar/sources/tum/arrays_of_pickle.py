"""Numpy arrays out of a pickle, without running it.

A pickle is a program for a small machine that may call any function there is. This one is read by a machine of our
own that knows only what arrays are written with: numbers, texts, tuples and lists, and the names that stand for
"an array", "its type" and "these bytes". Nothing is ever imported or called, and everything else is refused.
"""

from __future__ import annotations

import math
import pickletools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError

MAXIMUM_PICKLE_BYTES = 2**25  # a published batch of 500 samples is eight megabytes
MOST_STEPS = 10_000  # three arrays take about a hundred
ARRAY, TYPE, BYTES, NO_BYTES, NDARRAY = "array", "type", "bytes", "no bytes", "ndarray"
NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): ARRAY,
    ("numpy._core.multiarray", "_reconstruct"): ARRAY,
    ("numpy", "ndarray"): NDARRAY,
    ("numpy", "dtype"): TYPE,
    ("_codecs", "encode"): BYTES,  # how Python 3 writes bytes for Python 2
    ("__builtin__", "bytes"): NO_BYTES,  # and none of them
}
KIND = re.compile(r"[fiu][1248]|b1", re.ASCII)
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
NUMBERS = {"BININT", "BININT1", "BININT2", "LONG1", "INT", "LONG"}
TEXTS = {"BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE"}
RAW = {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
REMEDY = "give the batches as they were published"


class Refused(ValueError):
    """What is wrong, in words for the user."""


@dataclass(frozen=True)
class _Name:
    meaning: str


@dataclass
class _Type:
    kind: str
    order: str = "<"


@dataclass
class _Array:
    content: NDArray[Any] | None = None


_MARK = _Name("mark")


def read_arrays(path: Path) -> tuple[NDArray[Any], ...]:
    """The arrays of a tuple or list in a pickle."""
    size = path.stat().st_size
    if size > MAXIMUM_PICKLE_BYTES:
        why = f"{size} bytes, at most {MAXIMUM_PICKLE_BYTES} are read"
        raise InputError("too large a batch", path=path, why=why, remedy=REMEDY)
    try:
        return _arrays(_Machine().run(path.read_bytes()))
    except Refused as failure:
        raise InputError("not a pickle of arrays alone", path=path, why=str(failure), remedy=REMEDY) from None
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as failure:
        why = str(failure) or type(failure).__name__
        raise InputError("a damaged pickle", path=path, why=why[:200], remedy=REMEDY) from None


def _arrays(found: Any) -> tuple[NDArray[Any], ...]:
    if not isinstance(found, (tuple, list)) or not all(isinstance(one, _Array) for one in found):
        raise Refused("it is not a tuple of arrays")
    contents = tuple(one.content for one in found if one.content is not None)
    if len(contents) != len(found):
        raise Refused("an array has no content")
    return contents


class _Machine:
    """A stack, and a memory of things that are mentioned again."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memory: dict[int, Any] = {}
        self._left = 2 * MAXIMUM_PICKLE_BYTES  # to be made of text, which may be mentioned again and again

    def run(self, data: bytes) -> Any:
        for count, (step, argument, _) in enumerate(pickletools.genops(data)):
            if count > MOST_STEPS:
                raise Refused(f"it takes more than {MOST_STEPS} steps")
            if step.name == "STOP":
                break
            self._do(step.name, argument)
        return self._stack.pop()

    def _do(self, step: str, argument: Any) -> None:
        stack = self._stack
        if step in NUMBERS or step in TEXTS or step in RAW:
            stack.append(argument)
        elif step in CONSTANTS:
            stack.append(CONSTANTS[step])
        elif step in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memory[len(self._memory) if argument is None else argument] = stack[-1]
        elif step in ("BINGET", "LONG_BINGET"):
            stack.append(self._memory[argument])
        elif step == "MARK":
            stack.append(_MARK)
        elif step in ("TUPLE", "APPENDS"):
            items = self._since_mark()
            stack.append(tuple(items)) if step == "TUPLE" else self._list().extend(items)
        elif step in TUPLES:
            items = stack[-TUPLES[step] :]
            del stack[-TUPLES[step] :]
            stack.append(tuple(items))
        elif step == "EMPTY_LIST":
            stack.append([])
        elif step == "APPEND":
            item = stack.pop()
            self._list().append(item)
        elif step in ("GLOBAL", "STACK_GLOBAL"):
            stack.append(self._name(argument))
        elif step == "REDUCE":
            arguments, name = stack.pop(), stack.pop()
            stack.append(self._made(name, arguments))
        elif step == "BUILD":
            state = stack.pop()
            self._fill(stack[-1], state)
        elif step not in ("PROTO", "FRAME"):
            raise Refused(f"'{step.lower()}' is no part of an array")

    def _name(self, argument: Any) -> _Name:
        if argument is None:
            name, module = self._stack.pop(), self._stack.pop()
        else:
            module, _, name = argument.partition(" ")
        if not isinstance(module, str) or not isinstance(name, str):
            raise Refused("it asks for something without a name")
        meaning = NAMES.get((module, name))
        if meaning is None:
            raise Refused(f"it asks for '{module[:60]}.{name[:60]}'")
        return _Name(meaning)

    def _since_mark(self) -> list[Any]:
        place = max(index for index, thing in enumerate(self._stack) if thing is _MARK)
        items = self._stack[place + 1 :]
        del self._stack[place:]
        return items

    def _list(self) -> list[Any]:
        if not isinstance(self._stack[-1], list):
            raise Refused("it adds to something that is no list")
        return self._stack[-1]

    def _made(self, name: Any, arguments: Any) -> Any:
        """What the names stand for; an array comes empty and is filled later."""
        meaning = name.meaning if isinstance(name, _Name) else None
        if meaning == ARRAY:
            return _Array()
        if meaning == TYPE and isinstance(arguments, tuple) and arguments:
            kind = _text(arguments[0])
            if not KIND.fullmatch(kind):
                raise Refused(f"an array of the type '{kind[:20]}'")
            return _Type(kind)
        if meaning == BYTES and isinstance(arguments, tuple) and arguments[1:] == ("latin1",):
            return self._bytes(arguments[0])
        if meaning == NO_BYTES and arguments == ():
            return b""
        raise Refused("it calls something that is no array")

    def _fill(self, thing: Any, state: Any) -> None:
        """The state of a type is (version, byte order, ...), of an array (version, shape, type, Fortran, bytes)."""
        if isinstance(thing, _Type) and isinstance(state, tuple) and len(state) > 1:
            thing.order = _text(state[1]).replace("|", "=")
            if thing.order not in ("<", ">", "="):
                raise Refused("an unknown byte order")
            return
        if not isinstance(thing, _Array) or not isinstance(state, tuple) or len(state) != 5:
            raise Refused("it fills something that is no array")
        _, shape, kind, fortran, content = state
        sides = (
            isinstance(shape, tuple) and 1 <= len(shape) <= 8 and all(type(side) is int and side >= 0 for side in shape)
        )
        if not sides or not isinstance(kind, _Type):
            raise Refused("an array without shape or type")
        data, dtype = self._bytes(content), np.dtype(kind.order + kind.kind)
        if len(data) != math.prod(shape) * dtype.itemsize:
            raise Refused(f"an array of the shape {shape} with {len(data)} bytes")
        thing.content = np.frombuffer(data, dtype=dtype).reshape(shape, order="F" if fortran else "C")

    def _bytes(self, value: Any) -> bytes:
        """Python 2 has one type for text and bytes: what it wrote comes as text, byte for byte."""
        if isinstance(value, bytes):
            return value
        text = _text(value)
        self._left -= len(text)
        if self._left < 0:
            raise Refused("it makes more bytes than it has")
        try:
            return text.encode("latin1")
        except UnicodeEncodeError:
            raise Refused("text where bytes are expected") from None


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("latin1")
    if not isinstance(value, str):
        raise Refused("a text is missing")
    return value
