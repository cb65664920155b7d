"""Changes to files that a stranger or a broken disk could make: to bytes, to text, and to what a format is made of.

Each takes the file's path and a source of chance, and changes the file. Those that know a format keep it readable, so
that the change gets past the first check.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from safetensors.numpy import load, save

from cropstar.store.model_file import HEADER_KEY, content_digest

Mutation = Callable[[Path, random.Random], None]

NUMBERS = (0, -1, 1, 2, 255, 65_535, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, -(2**63), 10**18, 10**400)
FLOATS = (0.0, -0.0, 0.5, 1e-308, 1e308, -1e308, 1e20, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    "",
    " ",
    "/",
    "..",
    "../../x",
    "/etc/passwd",
    "\0",
    "\ud800",
    "ä",
    "\n",
    "a" * 5000,
    "B02",
    "nan",
    "2023-13-41",
)
DEEP = 3000  # levels of nesting


# --- bytes


def change_bytes(path: Path, dice: random.Random) -> None:
    """Some of: bits, runs of bytes, numbers, pieces cut out, doubled or moved, the end cut off."""
    data = bytearray(path.read_bytes())
    for _ in range(dice.choice((1, 1, 1, 2, 4, 16))):
        if data:
            data = dice.choice(_BYTES)(data, dice)
    path.write_bytes(data)


def flip_a_bit(path: Path, dice: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def _flip(data: bytearray, dice: random.Random) -> bytearray:
    data[_place(data, dice)] ^= 1 << dice.randrange(8)
    return data


def _overwrite(data: bytearray, dice: random.Random) -> bytearray:
    start = _place(data, dice)
    data[start : start + dice.choice((1, 2, 4, 8, 64))] = dice.randbytes(dice.choice((1, 2, 4, 8, 64)))
    return data


def _number(data: bytearray, dice: random.Random) -> bytearray:
    kind = dice.choice(("<H", "<I", "<Q", ">H", ">I", ">Q", "<d", "B"))
    number = dice.choice(FLOATS) if kind == "<d" else dice.choice(NUMBERS) % 2 ** (8 * struct.calcsize(kind))
    start = _place(data, dice)
    data[start : start + struct.calcsize(kind)] = struct.pack(kind, number)
    return data


def _cut_out(data: bytearray, dice: random.Random) -> bytearray:
    start = _place(data, dice)
    del data[start : start + dice.randrange(1, 1 + max(1, len(data) // 8))]
    return data


def _double(data: bytearray, dice: random.Random) -> bytearray:
    start = _place(data, dice)
    piece = data[start : start + dice.randrange(1, 200)]
    data[start:start] = piece
    return data


def _splice(data: bytearray, dice: random.Random) -> bytearray:
    length = dice.randrange(1, 1 + max(1, len(data) // 4))
    start, target = _place(data, dice), _place(data, dice)
    piece = data[start : start + length]
    data[target : target + len(piece)] = piece
    return data


def _truncate(data: bytearray, dice: random.Random) -> bytearray:
    return data[: _place(data, dice)]


def _place(data: bytearray, dice: random.Random) -> int:
    """Anywhere, the first bytes more often: headers are there."""
    return dice.randrange(len(data) if dice.random() < 0.6 else min(len(data), 1024))


_BYTES = (_flip, _flip, _overwrite, _number, _number, _cut_out, _double, _splice, _truncate)


# --- text


def change_text(path: Path, dice: random.Random) -> None:
    """Numbers, words and lines of a text; now and then its encoding."""
    text = path.read_text(encoding="utf-8")
    for _ in range(dice.choice((1, 1, 2, 4))):
        tokens = list(re.finditer(r"[-+]?\d+(?:\.\d+)?|\w+|[^\w\s]", text))
        if not tokens:
            break
        token = dice.choice(tokens)
        other = dice.choice((str(dice.choice(NUMBERS)), str(dice.choice(FLOATS)), dice.choice(TEXTS), token[0] * 50))
        other = dice.choice((other, dice.choice(tokens)[0]))
        text = text[: token.start()] + other + text[token.end() :]
    if dice.random() < 0.2:
        lines = text.split("\n")
        lines[dice.randrange(len(lines))] = dice.choice(lines)
        text = "\n".join(lines)
    encoding = dice.choice(("utf-8", "utf-8", "utf-8", "utf-8", "latin-1", "utf-16"))
    path.write_bytes(text.encode(encoding, "replace" if encoding != "utf-8" else "surrogatepass"))


def change_json(path: Path, dice: random.Random) -> None:
    path.write_bytes(dump_json(change_value(json.loads(path.read_text(encoding="utf-8")), dice)))


def change_manifest(path: Path, dice: random.Random) -> None:
    """Without its checksum, as those of older versions."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content.pop("checksum", None)
    path.write_bytes(dump_json(change_value(content, dice)))


def dump_json(value: Any) -> bytes:
    """With the text "DEEP" as a list in lists in lists."""
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return text.replace(b'"DEEP"', b"[" * DEEP + b"]" * DEEP)


def change_value(value: Any, dice: random.Random) -> Any:
    """One or some nodes of nested lists and tables: replaced, removed, doubled or exchanged."""
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        value = _change_node(value, dice)
    return value


def _change_node(value: Any, dice: random.Random) -> Any:
    places: list[tuple[Any, Any]] = []
    _collect(value, places)
    if not places:
        return _other(value, dice)
    holder, key = dice.choice(places)
    how = dice.random()
    if how < 0.7:
        holder[key] = _other(holder[key], dice)
    elif how < 0.8:
        del holder[key]
    elif how < 0.9 and isinstance(holder, list):
        holder[key:key] = [holder[key]] * dice.choice((1, 2, 300))
    else:
        other, its_key = dice.choice(places)
        holder[key] = json.loads(json.dumps(other[its_key]))
    return value


def _collect(value: Any, places: list[tuple[Any, Any]]) -> None:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        places.append((value, key))
        if len(places) < 5000:
            _collect(value[key], places)


def _other(value: Any, dice: random.Random) -> Any:
    near: list[Any] = [None, True, [], {}, "DEEP", [value], {"a": value}]
    if isinstance(value, bool) or value is None or isinstance(value, (list, dict)):
        return dice.choice([*near, 1, "x", 0.5])
    if isinstance(value, (int, float)):
        return dice.choice([*NUMBERS, *FLOATS, value + 1, -value, value * 1000, str(value)[:20], *near])
    return dice.choice([*TEXTS, value + "x", value[:-1], value * 100, 5, *near])


def change_xml(path: Path, dice: random.Random) -> None:
    """Text, or the declaration at its beginning; of another file its bytes."""
    if path.suffix != ".xml":
        change_bytes(path, dice)
        return
    if dice.random() < 0.7:
        change_text(path, dice)
        return
    text = path.read_text(encoding="utf-8")
    other = dice.choice(
        (
            '<?xml version="1.0" encoding="gbk"?>',
            '<?xml version="1.0" encoding="no-such"?>',
            '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;&b;">]>',
            '<?xml version="1.0"?><!DOCTYPE a SYSTEM "http://127.0.0.1:9/a.dtd">',
        )
    )
    path.write_bytes(re.sub(r"<\?xml.*?\?>", lambda _: other, text, count=1).encode())


# --- formats


def change_hdf5(path: Path, dice: random.Random) -> None:
    """Attributes, arrays, links: HDF5 writes them anew, so that its own checksums hold."""
    changes = (_change_attribute, _change_attribute, _change_array, _change_array, _change_link)
    with h5py.File(path, "r+", libver=("v110", "v110")) as file:
        for _ in range(dice.choice((1, 1, 2, 4))):
            if arrays := _arrays(file):
                dice.choice(changes)(file, dice.choice(arrays), dice)


def _arrays(file: h5py.File) -> list[str]:
    found: list[str] = []
    file.visit(found.append)
    return [name for name in found if isinstance(file[name], h5py.Dataset)]


def _change_attribute(file: h5py.File, name: str, dice: random.Random) -> None:
    holder = file if len(file.attrs) and dice.random() < 0.9 else file[name]
    key = dice.choice([*holder.attrs, "other"])
    before = holder.attrs.get(key, 1)
    text = before.tobytes().decode("utf-8", "replace") if isinstance(before, np.ndarray) else before
    value: Any = dice.choice((*NUMBERS[:-1], *FLOATS, "", "x", "..", [1, 2, 3]))
    if isinstance(text, str) and text[:1] in ("[", "{") and dice.random() < 0.8:
        value = dump_json(change_value(json.loads(text), dice)).decode("utf-8", "replace")
    if isinstance(value, str) and isinstance(before, np.ndarray) and before.itemsize == 1:
        value = np.frombuffer(value.encode() or b" ", dtype=before.dtype)
    elif isinstance(value, str):
        value = np.bytes_(value.encode().replace(b"\0", b"") or b" ")
    try:
        holder.attrs[key] = value
    except (OSError, RuntimeError, TypeError, ValueError):  # too large for an attribute
        holder.attrs[key] = 0


def _change_array(file: h5py.File, name: str, dice: random.Random) -> None:
    array = file[name]
    how = dice.random()
    if how < 0.4 and array.size:
        values = np.asarray(array[()]).reshape(-1)
        values[dice.randrange(values.size)] = _of_kind(values.dtype, dice)
        with suppress(OSError, TypeError):  # an earlier change gave it a kind that h5py cannot write
            array[()] = values.reshape(array.shape)
        return
    shape = list(array.shape) or [1]
    shape[dice.randrange(len(shape))] = dice.choice((0, 1, 2, 3, 7, 1000, 10**6))
    if how > 0.8:
        shape = shape[:-1] if dice.random() < 0.5 else [*shape, 2]
    kind = np.dtype(dice.choice(("u1", "<i2", ">i4", "<f4", "<f8", "S5", "<u8")))
    kind = array.dtype if dice.random() < 0.6 else kind
    chunked = bool(shape) and 0 not in shape and dice.random() < 0.5
    del file[name]
    if int(np.prod(shape, dtype=object)) <= 10**6 or chunked:  # chunks that nobody wrote take no room
        chunks = tuple(min(side, 64) for side in shape) if chunked else None
        file.create_dataset(name, shape=tuple(shape), dtype=kind, chunks=chunks)


def _of_kind(kind: np.dtype[Any], dice: random.Random) -> Any:
    if kind.kind == "f":
        with np.errstate(over="ignore"):
            return np.array(dice.choice(FLOATS)).astype(kind)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return dice.choice((limits.min, limits.max, 0, 1, limits.max // 2))
    return b"x"


def _change_link(file: h5py.File, name: str, dice: random.Random) -> None:
    other = dice.choice(_arrays(file))
    kept = file[other]
    if other == name:
        del file[name]
    elif dice.random() < 0.5:
        del file[name]
        file[name] = kept
    else:
        del file[name]
        file[name] = dice.choice((h5py.SoftLink("/" + other), h5py.ExternalLink("/etc/passwd", "/x")))


def change_season(path: Path, dice: random.Random) -> None:
    """Its card, which is JSON in an array; or anything else in it."""
    if dice.random() < 0.4:
        change_hdf5(path, dice)
        return
    with h5py.File(path, "r+") as file:
        content = json.loads(file["card"][()].tobytes())
        text = np.frombuffer(dump_json(change_value(content, dice)), dtype=np.uint8)
        del file["card"]
        file.create_dataset("card", data=text, chunks=text.shape, fletcher32=True)


def change_model(path: Path, dice: random.Random) -> None:
    """Its card, with a digest that fits again, or the table of its tensors."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    if dice.random() < 0.75:
        card = change_value(json.loads(header["__metadata__"][HEADER_KEY]), dice)
        if isinstance(card, dict):
            try:
                card["digest"] = content_digest(card, load(data))
            except ValueError:  # of a card with NaN, or with half a sign
                card["digest"] = "0"
        header["__metadata__"][HEADER_KEY] = dump_json(card).decode("utf-8", "replace")
        text = json.dumps(header).encode()
    else:
        text = dump_json(change_value(header, dice))
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def change_checkpoint(path: Path, dice: random.Random) -> None:
    """What it says of the run, or one of its arrays, with a digest that fits again."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    card = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][HEADER_KEY])
    arrays = dict(load(data))
    if dice.random() < 0.6:
        card["progress"] = change_value(card["progress"], dice)
    else:
        name = dice.choice(sorted(arrays))
        array = arrays.pop(name)
        others: list[Any] = [
            None,
            array.reshape(-1)[:0],
            array[None],
            array.astype(dice.choice(("f8", "i8", "u1"))),
            array * np.nan,
        ]
        if (other := dice.choice([*others, np.zeros((3, 5), "f4"), array.reshape(-1)])) is not None:
            arrays[name] = np.ascontiguousarray(other)
    try:
        card["digest"] = content_digest(card, arrays)
        text = json.dumps(card, ensure_ascii=False)
        path.write_bytes(save(arrays, metadata={HEADER_KEY: text}))
    except (UnicodeEncodeError, ValueError):  # of a card with NaN, or with half a sign
        change_bytes(path, dice)


def change_tiff(path: Path, dice: random.Random) -> None:
    """An entry of a directory: its tag, kind, count or value."""
    data = bytearray(path.read_bytes())
    order = "<" if data[:2] == b"II" else ">"
    start = struct.unpack(order + "I", data[4:8])[0]
    count = struct.unpack(order + "H", data[start : start + 2])[0]
    for _ in range(dice.choice((1, 1, 2, 3))):
        place = start + 2 + 12 * dice.randrange(count)
        field, size = dice.choice(((0, 2), (2, 2), (4, 4), (8, 4), (8, 4)))
        number = dice.choice((*NUMBERS, dice.randrange(len(data)), dice.randrange(1, 20)))
        kind = order + {2: "H", 4: "I"}[size]
        data[place + field : place + field + size] = struct.pack(kind, number % 2 ** (8 * size))
    path.write_bytes(data)


def change_sqlite(path: Path, dice: random.Random) -> None:
    """A value of a table, or a table less."""
    base = sqlite3.connect(path)
    try:
        rows = base.execute("select name, type from sqlite_master").fetchall()
        for name, kind in rows:
            if kind == "trigger":  # they call functions that only GDAL has
                base.execute(f'drop trigger "{name}"')
        tables = [name for name, kind in rows if kind == "table" and not name.startswith(("rtree", "sqlite"))]
        table = dice.choice(tables)
        if dice.random() < 0.1:
            base.execute(f'drop table "{table}"')
        else:
            columns = [row[1] for row in base.execute(f'pragma table_info("{table}")')]
            value: Any = dice.choice((None, *NUMBERS[:10], *FLOATS, "", "x", "..", "a" * 5000, b"GP\0", b""))
            with suppress(sqlite3.IntegrityError):  # a key takes no text
                base.execute(f'update or ignore "{table}" set "{dice.choice(columns)}" = ?', (value,))
        base.commit()
    finally:
        base.close()


def change_member(path: Path, dice: random.Random) -> None:
    """A file in a zip archive, the text among them by its words."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    name = dice.choice(sorted(members))
    work = path.with_name("member" + Path(name).suffix)
    work.write_bytes(members[name])
    change_xml(work, dice)
    members[name] = work.read_bytes()
    work.unlink()
    if dice.random() < 0.2:
        members[dice.choice(("../x", "/x", name + "/", "a" * 300))] = members.pop(name)
    with zipfile.ZipFile(path, "w", dice.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for each, content in members.items():
            archive.writestr(each, content)


def either(*mutations: Mutation) -> Mutation:
    def mutate(path: Path, dice: random.Random) -> None:
        dice.choice(mutations)(path, dice)

    return mutate
