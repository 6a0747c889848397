"""Damage on purpose, and what must come of it: the parts that ``test_fuzz.py`` is made of.

A case is either accepted, with a value that is checked against what was there before, or refused with an
:class:`InputError` that explains itself. Everything is drawn from a ``random.Random``, so a seed repeats it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cir_utils.errors import LONGEST, InputError

#: Seconds that one case may take on a busy machine, reading and checking; most take a few milliseconds.
LIMIT = 20.0
#: What stands in a message that says how to mend something.
MENDS = re.compile(
    r"\b(give|put|write|fetch|get|check|save|make|keep|run|build|mend|take|copy|restore|reinstall|name|list|rank|remove|"
    r"shorten|link|move|choose|raise|expected|must|takes|annotations|again|folder of)\b"
)


class Hang(BaseException):
    """A case took longer than its limit. (No ``Exception``: nothing that reads files may catch it.)"""


@contextlib.contextmanager
def within(seconds: float = LIMIT) -> Iterator[None]:
    """What is in here raises :class:`Hang` when it takes longer."""

    def ring(*_: object) -> None:
        raise Hang(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def explains(error: InputError, *names: str) -> None:
    """The message is one printable line that names one of ``names`` and says what was expected or what to
    do."""
    said = str(error)
    assert said and said.isprintable() and len(said) <= LONGEST + 100, said
    assert any(name in said for name in names), f"names none of {names}: {said}"
    assert MENDS.search(said), f"no way to mend it: {said}"
    assert "Traceback" not in said and "object at 0x" not in said, said


def report(what: str, counts: Counter[str]) -> None:
    """One line, shown by ``pytest -s``."""
    told = ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
    print(f"\nfuzz: {what}: {sum(counts.values()):,} cases, 0 crashes, 0 hangs: {told}")


# --- bytes ------------------------------------------------------------------------------------------------


def damaged_bytes(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """The name of a damage, and ``data`` after it."""
    name = rng.choice(list(BYTE_DAMAGES))
    return name, BYTE_DAMAGES[name](data, rng)


def _flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8, 64))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _range(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 2, 4, 16, 512)))


def _without(data: bytes, rng: random.Random) -> bytes:
    start, stop = _range(data, rng)
    return data[:start] + data[stop:]


def _twice(data: bytes, rng: random.Random) -> bytes:
    start, stop = _range(data, rng)
    return data[:stop] + data[start:]


def _put(data: bytes, rng: random.Random, new: bytes) -> bytes:
    start, stop = _range(data, rng)
    return data[:start] + new + data[stop if rng.random() < 0.5 else start :]


BYTE_DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": lambda data, rng: data[: rng.randrange(len(data) + 1)],
    "cut near the end": lambda data, rng: data[: max(0, len(data) - rng.randrange(1, 9))],
    "beginning lost": lambda data, rng: data[rng.randrange(len(data) + 1) :],
    "bits flipped": _flip,
    "bytes lost": _without,
    "bytes twice": _twice,
    "zeros": lambda data, rng: _put(data, rng, bytes(rng.choice((1, 16, 4096)))),
    "noise": lambda data, rng: _put(data, rng, rng.randbytes(rng.choice((1, 4, 16, 512)))),
    "a token": lambda data, rng: _put(data, rng, rng.choice(TOKENS)),
    "more at the end": lambda data, rng: (
        data + rng.choice((b"\0", b"\n{}", b"]", data[:64], rng.randbytes(9)))
    ),
    "empty": lambda data, rng: b"",
    "something else": lambda data, rng: rng.choice(OTHERS),
    "other encoding": lambda data, rng: data.decode("latin-1").encode(
        rng.choice(("utf-16", "utf-32", "utf-8-sig"))
    ),
}
TOKENS = [
    b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-1", b"9" * 5000, b"9" * 30, b"1.0", b'"', b"\\",
    b"{", b"}",
    b"[", b"]", b",", b":", b'"\\ud800"', b"\\u0000", b"..", b"/", b"\xff", b"\xed\xa0\x80", b"[" * 3000,
    b'{"a":' * 600, b"\x1b[2J", b"\x00" * 8, b"\xff" * 8, b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00",
]  # fmt: skip
OTHERS = [
    b"<!DOCTYPE html><html><body>404</body></html>",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
    b"\x89PNG\r\n\x1a\n",
    b"PK\x03\x04" + bytes(30),
    b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    b"[]", b"{}", b"null", b"0", b'""', b"[null]", b"[[]]", b"[{}]", b'{"":null}', b"{" * 5000, b"\n" * 999,
]  # fmt: skip


# --- JSON -------------------------------------------------------------------------------------------------


def damaged_json(text: bytes, rng: random.Random) -> tuple[str, bytes]:
    """The name of a damage, and the JSON ``text`` with one to three places changed."""
    value = json.loads(text)
    names = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        holder, key = _place(value, rng)
        name = rng.choice(list(JSON_DAMAGES))
        names.append(name)
        if holder is None:
            return name, _dump([value, value] if name == "a place twice" else rng.choice(VALUES)(rng))
        JSON_DAMAGES[name](holder, key, rng)
    return names[0], _dump(value)


def _place(value: Any, rng: random.Random) -> tuple[Any, Any]:
    """A random place in a value: its holder and the key there; (None, None) is the whole."""
    holder, key = None, None
    while isinstance(value, dict | list) and value and (holder is None or rng.random() < 0.75):
        if rng.random() < 0.02:
            return None, None
        holder = value
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        value = holder[key]
    return holder, key


def _dump(value: Any) -> bytes:
    text = json.dumps(value)
    return re.sub(r'"(TWICE )', '"', text).encode()


def _replace(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = rng.choice(VALUES)(rng)


def _lose(holder: Any, key: Any, rng: random.Random) -> None:
    del holder[key]


def _rename(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, dict):
        new = rng.choice((str(key) + " ", str(key).upper(), "", "../" + str(key), str(key) + "\0"))
        holder[new] = holder.pop(key)
    else:
        holder.insert(0, holder.pop(key))


def _again(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, dict):
        holder[f"TWICE {key}"] = holder[key]  # written under the same name
    else:
        holder.insert(rng.randrange(len(holder) + 1), holder[key])


def _swap(holder: Any, key: Any, rng: random.Random) -> None:
    other = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    holder[key], holder[other] = holder[other], holder[key]


def _bend(holder: Any, key: Any, rng: random.Random) -> None:
    """The same kind of value, another one."""
    old = holder[key]
    if isinstance(old, bool) or old is None:
        holder[key] = not old
    elif isinstance(old, int | float):
        holder[key] = rng.choice((old + 1, -old - 1, 0.5, 10**18, 10**19, 10**400, 0, str(old), 1e308))
    elif isinstance(old, str):
        holder[key] = rng.choice((
            "", " ", old + " ", old.upper(), old * 999, old + "\0", old + "\ud83d", "../" + old,
            "/etc/" + old,
            old + ".jpg", old.replace("-", "\\"), "é" + old, "\u202e" + old, old + "\x1b[31m", "x" * 6000,
            old[:-1],
        ))  # fmt: skip
    elif isinstance(old, list):
        holder[key] = rng.choice(([], old[:1], old + old, old[::-1], [old], dict.fromkeys(map(str, old))))
    else:
        holder[key] = rng.choice(({}, list(old), [old], {**old, "more": 1}))


VALUES: list[Callable[[random.Random], Any]] = [
    lambda rng: rng.choice((None, True, False, 0, 1, -1, 1.5, 2**31, 2**63, 2**64, -(2**63), 10**30)),
    lambda rng: rng.choice((float("nan"), float("inf"), -0.0, 1e-320)),
    lambda rng: rng.choice(
        ("", " ", "x", "0", "../../../etc/passwd", "/etc/passwd", "\ud800", "\0", "é", "a" * 300)
    ),
    lambda rng: rng.choice(([], {}, [[]], [{}], {"a": 1}, [None], [1, "1"], ["a", "a"])),
    lambda rng: json.loads("[" * 400 + "]" * 400),
]
JSON_DAMAGES: dict[str, Callable[[Any, Any, random.Random], None]] = {
    "another type": _replace,
    "a value bent": _bend,
    "a place lost": _lose,
    "a key renamed": _rename,
    "a place twice": _again,
    "places swapped": _swap,
}


# --- the file system --------------------------------------------------------------------------------------


def _remove(path: Path) -> None:
    path.unlink()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _unreadable(path: Path) -> None:
    path.chmod(0)


PLACE_DAMAGES: dict[str, Callable[[Path], None]] = {
    "removed": _remove,
    "a folder in its place": _folder,
    "a link to itself": _circle,
    "a link to nowhere": _dangling,
    "a pipe in its place": _pipe,
    "unreadable": _unreadable,
}


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of root, where the tests have them: root may read what nobody else may."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def restore(path: Path, data: bytes) -> None:
    """``path`` as an ordinary file with ``data``, whatever is there now."""
    if path.is_symlink() or path.is_fifo():
        path.unlink()
    elif path.is_dir():
        path.rmdir()
    elif path.exists():
        path.chmod(0o644)
    path.write_bytes(data)


# --- answers of a model -----------------------------------------------------------------------------------

WORDS = "a the red blue dress dog two with sleeves polka dots on instead of — naïve 犬 \U0001f436".split()


def words(rng: random.Random, most: int = 12) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, most)))


def whole_object(schema: str, rng: random.Random) -> dict[str, Any]:
    """A right answer of the agent."""

    def listed() -> list[str]:
        return [words(rng, 5) for _ in range(rng.randrange(4))]

    if schema == "SelectiveCoT":
        named = ("explicit_targets", "implicit_targets", "preserved", "selected", "discarded")
        return {"understanding": words(rng), **{name: listed() for name in named}, "description": words(rng)}
    if schema == "TextImagination":
        return {"target_caption": words(rng), "modifications": listed()}
    if schema == "VisionImagination":
        return {"target_caption": words(rng), "present": listed(), "absent": listed()}
    if schema == "TargetLevels":
        levels = {name: words(rng) for name in ("core", "enhanced", "comprehensive")}
        return {"instructions": listed(), **levels}
    said = [{"statement": words(rng), "answer": rng.random() < 0.5} for _ in range(rng.randrange(1, 5))]
    return {"statements": said}


def kept_whole(text: str, rng: random.Random) -> str:
    """``text``, a right answer, wrapped so that it still says the same."""
    spaced = json.dumps(
        json.loads(text), ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 0, 2, "\t"))
    )
    return rng.choice((
        text, spaced, f"```json\n{spaced}\n```", f"```\n{text}\n```\nDone.", f"Sure, here it is:\n\n{text}",
        f"<think>{{{words(rng)}}}</think>{text}", f"\ufeff{text}\n", f"<answer>{spaced}</answer>",
        f"[{text}]",
        json.dumps({"response": json.loads(text)}), f'{{"draft": true}}\n{text}', f"{text}\n{{}}",
        f"<think>a</think>\n<think>b</think>{text}", f"First:\n{text}\nOnce more:\n{text}",
    ))  # fmt: skip


def broken_answer(text: str, rng: random.Random) -> str:
    """``text`` after what models and servers do to answers, and worse."""
    kind = rng.randrange(16)
    if kind == 0:
        return text[: rng.randrange(len(text) + 1)]
    if kind == 1:
        place = rng.randrange(len(text) + 1)
        return text[:place] + rng.choice(INSERTS) + text[place:]
    if kind == 2:
        start = rng.randrange(len(text) + 1)
        return text[:start] + text[start + rng.choice((1, 1, 2, 20)) :]
    if kind == 3:
        return text.replace(*rng.choice(SPELLINGS))
    if kind == 4 and text.startswith("{"):
        return damaged_json(text.encode(), rng)[1].decode()
    if kind == 5:
        return rng.choice(PLAIN) + rng.choice(("", text, "\n" + words(rng)))
    if kind == 6:
        return rng.choice(("[", "{", '{"a":', "(", "<think>", "```", '"', "\\", "{]")) * rng.choice(
            (3, 40, 900, 20_000)
        )
    if kind == 7:
        return text + rng.choice(("", "\n")) + text[: rng.randrange(len(text))]
    if kind == 8:
        return "".join(
            chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x110000))))
            for _ in range(rng.randrange(80))
        )
    if kind == 9:
        return text.replace(":", ": " + rng.choice(("{", "[", "null", "NaN", "9" * 5000, "1e999", "-")), 1)
    if kind == 10:
        return rng.choice(
            (words(rng), f'"{words(rng)}"', f"```{words(rng)}```", words(rng) * 300, json.dumps(words(rng)))
        )
    if kind == 11:
        return text.replace('"', rng.choice(("'", "“", '\\"', "")))
    if kind == 12:
        depth = rng.choice((5, 200, 990, 5000))
        return '{"target_caption": ' * depth + text + "}" * rng.choice((depth, depth - 1))
    if kind == 13:
        return damaged_bytes(text.encode("utf-8", "surrogatepass"), rng)[1].decode("utf-8", "surrogateescape")
    if kind == 14:
        return rng.choice(("{}", "[]", "null")) * rng.choice((1, 50, 3000)) + text
    return text.replace(
        rng.choice((" ", ",", ":", "[")), rng.choice(("\n", "", "  ", "\u00a0", "\0", "\ud83d"))
    )


INSERTS = [
    '"', "'", "\\", "{", "}", "[", "]", ",", ":", "\n", "\0", "\ud83d", "\\ud83d", "\\u0000", "\\x", "//",
    "/*", "#",
    "<think>", "</think>", "```", "<|im_end|>", "…", "\u202e", "\u200b", "true", "null", "NaN", "{{",
    "\x1b[2J",
]  # fmt: skip
SPELLINGS = [
    ("_", " "), ("_", ""), ('": ', '" = '), (", ", ","), (", ", ",, "), ("]", ",]"), ("}", ",}"),
    ("true", '"true"'),
    ("true", "1"), ("false", '"no"'), ("true", "yes"), ("[", "{"), ("]", "}"),
    ("target_caption", "Target Caption"),
    ("description", "Description"), ('"', '""'), ("statements", "questions"), ("[", '"'),
    ("answer", "expected"),
]  # fmt: skip
PLAIN = [
    "", " ", "\n\t", "I'm sorry, but I can't help with that.", "Unfortunately, I cannot see it.",
    "As an AI model",
    "None", "...", "true", "no", "<think>hm", "<think></think>", "{}", "null", "0", "!" * 3000,
]  # fmt: skip
