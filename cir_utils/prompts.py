"""Prompts: text files by set and name, with named slots.

A set is a folder of ``cir_utils/prompts/``: ``default`` for real MLLMs, ``mini`` (shorter) for the shipped
mini-VLM, with the same names, slots and answers (``cir_utils.schemas``). Slots look like ``{modification}``;
all other braces, such as those of a JSON example, are literal. The text's SHA-256 goes into run records; the
response cache keys by the filled text. A set may lack the prompts of :data:`OPTIONAL_SLOTS`: its model was
never shown such a task, and the agent says what it asks then.

Every prompt is a file ``name.txt``. Where the wording matters, ``name.fashion.txt`` or ``name.scene.txt``
takes its place for benchmarks of that domain (:data:`DOMAINS`); in the set ``default`` the plain files speak
of scenes, and garments have files of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from cir_utils.errors import InputError
from cir_utils.files import sha256_text

#: The prompts of every set and their slots. In ``verify_*`` the statement is the last thing of the prompt, so
#: that everything before it is a prefix that the statements about one candidate share.
SLOTS: dict[str, tuple[str, ...]] = {
    "caption": (),
    "caption_dense": (),
    "describe_target": ("modification",),
    "selective_cot": ("modification",),
    "selective_cot_retry": ("modification",),
    "imagine_text": ("caption", "modification"),
    "imagine_vision": ("modification",),
    "questions": ("modification", "modifications", "present", "absent"),
    "verify_caption": ("caption", "statement"),
    "verify_picture": ("statement",),
    "edit_caption": ("caption", "modification"),
    "compare_pictures": ("modification",),
    # Put behind a prompt whose answer could not be used.
    "reask": ("problem",),
}
#: Prompts that a set may lack, and their slots: the mini-VLM knows the tasks above and no other.
OPTIONAL_SLOTS: dict[str, tuple[str, ...]] = {"target_levels": ("caption", "modification")}
ALL_SLOTS = SLOTS | OPTIONAL_SLOTS
#: The domain whose wording a family of benchmarks gets.
DOMAINS: dict[str, str] = {"fashioniq": "fashion", "cirr": "scene", "circo": "scene"}


@dataclass(frozen=True)
class Prompt:
    """A prompt's ``text`` with its slots, and the SHA-256 of that text (64 hex digits). ``domain`` is "" for
    the plain file ``name.txt``, else that of the file ``name.domain.txt``."""

    set: str
    name: str
    text: str
    sha256: str
    domain: str = ""

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the slots, in the order of the contract (not of the text)."""
        return ALL_SLOTS[self.name]

    @property
    def label(self) -> str:
        """The file below ``prompts`` without its ending: ``default/selective_cot.fashion``."""
        return f"{self.set}/{self.name}" + (f".{self.domain}" if self.domain else "")

    def fill(self, **values: str | Sequence[str]) -> str:
        """The text with every slot filled. A list is joined with "; ", an empty one reads "none".

        Values are put in literally, once: a value that looks like a slot stays as it is. Raises
        :class:`InputError` when a slot is missing or a name is no slot of this prompt.
        """
        missing = [name for name in self.slots if name not in values]
        unknown = [name for name in values if name not in self.slots]
        if missing or unknown:
            fault = f"misses {', '.join(missing)}" if missing else f"has no slot {', '.join(unknown)}"
            raise InputError(f"prompt {self.label} {fault}; its slots are {', '.join(self.slots) or 'none'}")
        if not self.slots:
            return self.text
        pattern = "|".join(re.escape("{" + name + "}") for name in self.slots)
        return re.sub(pattern, lambda match: _as_text(values[match.group()[1:-1]]), self.text)

    def prefix(self, **values: str | Sequence[str]) -> str:
        """The filled text before ``{statement}``, which ends this prompt: ``prefix(…) + statement`` equals
        ``fill(…, statement=statement)``. Raises :class:`InputError` as :meth:`fill`, and where no statement
        ends it."""
        if not self.text.endswith("{statement}"):
            raise InputError(f"prompt {self.label} does not end with {{statement}}; put it last")
        return self.fill(statement="", **values)


@cache
def load_prompt(set: str, name: str, domain: str = "") -> Prompt:
    """The prompt ``name`` of ``set`` ("default", "mini" or another folder), as written but for the line ends
    at its end: the wording of ``domain`` ("fashion" or "scene") where the set has one, else the plain one.

    Raises :class:`InputError` for an unknown set, name or domain, a missing or non-UTF-8 file, and a file
    whose slots are not those that its name promises (each once).
    """
    if name not in ALL_SLOTS:
        raise InputError(f"unknown prompt {name!r}: choose {', '.join(ALL_SLOTS)}")
    if set not in prompt_sets():
        raise InputError(f"unknown prompt set {set!r}: choose {', '.join(prompt_sets())}")
    domains = sorted(dict.fromkeys(DOMAINS.values()))
    if domain and domain not in domains:
        raise InputError(f"unknown domain {domain!r} of prompts: choose {', '.join(domains)}")
    folder = files("cir_utils").joinpath("prompts", set)
    if domain and not folder.joinpath(f"{name}.{domain}.txt").is_file():
        domain = ""
    label = f"{set}/{name}.{domain}.txt" if domain else f"{set}/{name}.txt"
    try:
        text = folder.joinpath(label.removeprefix(f"{set}/")).read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        raise InputError(
            f"prompt file {label} is missing or not UTF-8 text; reinstall cir_utils or restore it"
        ) from None
    text = text.replace("\r\n", "\n").rstrip("\n")
    for slot in {slot for slots in ALL_SLOTS.values() for slot in slots}:
        wanted = 1 if slot in ALL_SLOTS[name] else 0
        if text.count("{" + slot + "}") != wanted:
            raise InputError(f"prompt file {label} must hold {{{slot}}} {'once' if wanted else 'nowhere'}")
    return Prompt(set, name, text, sha256_text(text), domain)


def prompts_of(set: str) -> tuple[str, ...]:
    """The names of the prompts of an installed ``set``: all of :data:`SLOTS`, and those that it has of
    :data:`OPTIONAL_SLOTS`."""
    folder = files("cir_utils").joinpath("prompts", set)
    return (*SLOTS, *(name for name in OPTIONAL_SLOTS if folder.joinpath(f"{name}.txt").is_file()))


def prompt_sets() -> tuple[str, ...]:
    """The names of the installed sets, sorted."""
    folder = files("cir_utils").joinpath("prompts")
    return tuple(sorted(part.name for part in folder.iterdir() if part.is_dir() and part.name[0] not in "_."))


def _as_text(value: str | Sequence[str]) -> str:
    if isinstance(value, str):
        return value
    return "; ".join(value) or "none"
