"""What each agent must return, and the tolerant reading of what models really return.

Five answers are JSON objects (pydantic models below); the others are plain text. A model may wrap its JSON in
a Markdown fence, talk around it, write a draft first, or leave a trailing comma: :func:`parse_json` takes the
last complete object that fits the schema and says how much tolerance that took. Every answer falls in one
class:

* ``good``: exactly what was asked for;
* ``repaired``: usable after tolerance (a fence, talk, another spelling of a key, broken JSON that could be
  mended);
* ``off-format``: a complete answer without a usable object or text;
* ``cut``: the answer stops before its end (token limit, or a bracket that is never closed);
* ``refusal``: the model declines, or a server's filter does; ``empty``: nothing but white space;
* ``echo``: the prompt, or the example that it gives, comes back as the answer.

Truth values are booleans or the words true and false; nothing is ever read by truthiness.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Generic, Literal, TypeVar

import json_repair
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator

from cir_utils.files import whole_unicode

Kind = Literal["good", "repaired", "off-format", "cut", "refusal", "empty", "echo"]
KINDS: tuple[Kind, ...] = ("good", "repaired", "off-format", "cut", "refusal", "empty", "echo")
USABLE: tuple[Kind, ...] = ("good", "repaired")
#: Longest answer that is read, in characters; the longest token limits give a tenth of it.
LONGEST_ANSWER = 100_000
#: What of an answer is looked at: its last objects, the ones inside them included; and what is mended of it:
#: texts of this many characters, nested this deep. Mending takes time that grows with the square of both.
CANDIDATES, MENDED_BLOCKS, MENDED_CHARS, MENDED_DEPTH = 200, 10, 10_000, 30


class Answered(BaseModel):
    """Base of the schemas. Strict by default; with ``context={"lenient": True}`` spellings of keys are
    normalised, a text stands for a list of one, and the fields in ``optional`` may be missing."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)
    optional: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _lenient_keys(cls, data: Any, info: ValidationInfo) -> Any:
        if not _is_lenient(info) or not isinstance(data, dict):
            return data
        data = {_plain_key(str(key)): value for key, value in data.items()}
        for name in cls.optional:
            if data.get(name) is None:
                data[name] = "" if cls.model_fields[name].annotation is str else []
        return data

    @field_validator("*", mode="before")
    @classmethod
    def _lenient_values(cls, value: Any, info: ValidationInfo) -> Any:
        if not _is_lenient(info):
            return _written(value)
        wanted = cls.model_fields[info.field_name or ""].annotation
        if wanted is str and isinstance(value, list) and all(isinstance(part, str) for part in value):
            return _written("; ".join(value))
        if wanted == list[str]:
            return _written(_as_texts(value))
        return _written(value)


class SelectiveCoT(Answered):
    """The four stages of SDR-CIR's selective chain of thought (arXiv:2602.04451, section 3; prompt in its
    appendix): the reference as understood; the split of T_m into explicit and implicit targets and preserved
    attributes; what was selected from the reference and what was discarded; the target description, which
    goes to CLIP."""

    optional = ("understanding", "implicit_targets", "preserved", "selected", "discarded")

    understanding: str
    explicit_targets: list[str]
    implicit_targets: list[str]
    preserved: list[str]
    selected: list[str]
    discarded: list[str]
    description: str

    @field_validator("description")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        return _text_of(value)


class TextImagination(Answered):
    """X^R's text imagination agent: C_t (``target_caption``) and M_t (``modifications``), from C_r and T_m
    (arXiv:2601.14245, Algorithm 1, line 3)."""

    optional = ("modifications",)

    target_caption: str
    modifications: list[str]

    @field_validator("target_caption")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        return _text_of(value)


class VisionImagination(Answered):
    """X^R's vision imagination agent: C_v (``target_caption``) and M_v (what is ``present`` and ``absent`` in
    the target), from I_r and T_m (arXiv:2601.14245, Algorithm 1, line 4)."""

    optional = ("present", "absent")

    target_caption: str
    present: list[str]
    absent: list[str]

    @field_validator("target_caption")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        return _text_of(value)


class TargetLevels(Answered):
    """ImageScope's reasoner: the atomic ``instructions`` of T_m, and the target described on three levels of
    detail, from C_r and T_m (arXiv:2503.10166, stage 1)."""

    optional = ("instructions",)

    instructions: list[str]
    core: str
    enhanced: str
    comprehensive: str

    @field_validator("core", "enhanced", "comprehensive")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        return _text_of(value)


class Statement(Answered):
    """A True/False statement about a candidate and the answer that the ideal target gives."""

    statement: str
    answer: bool

    @field_validator("statement")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        return _text_of(value)

    @field_validator("answer", mode="before")
    @classmethod
    def _strictly_true_or_false(cls, value: Any, info: ValidationInfo) -> Any:
        """A JSON boolean, or (leniently) the text true or false; numbers and other texts are errors."""
        if _is_lenient(info) and isinstance(value, str):
            word = value.strip(" \t\r\n.*\"'`").casefold()
            return {"true": True, "false": False}.get(word, value)
        return value


class Questions(Answered):
    """X^R's question agent: statements Q with expected answers A (arXiv:2601.14245, Algorithm 1, line 11). At
    least one."""

    statements: list[Statement]

    @model_validator(mode="before")
    @classmethod
    def _bare_list(cls, data: Any, info: ValidationInfo) -> Any:
        return {"statements": data} if _is_lenient(info) and isinstance(data, list) else data

    @field_validator("statements")
    @classmethod
    def _some(cls, value: list[Statement]) -> list[Statement]:
        if not value:
            raise ValueError("at least one statement is needed")
        return value


Schema = TypeVar("Schema", bound=Answered)
Value = TypeVar("Value")


@dataclass(frozen=True)
class Parsed(Generic[Value]):
    """A read answer: its ``value`` (None unless ``kind`` is good or repaired), its class, and in ``problem``
    one line that says what is wrong (empty when good)."""

    value: Value | None
    kind: Kind
    problem: str = ""


def json_schema(schema: type[Answered]) -> str:
    """The JSON Schema of an answer as JSON text, in the strict form that servers take: every object is
    closed, and all its fields are required."""

    def closed(value: Any) -> Any:
        if isinstance(value, list):
            return [closed(part) for part in value]
        if not isinstance(value, dict):
            return value
        # What describes our code says nothing to a model.
        kept = {
            key: closed(part) for key, part in value.items() if key != "description" or isinstance(part, dict)
        }
        return kept | ({"additionalProperties": False} if value.get("type") == "object" else {})

    return json.dumps(closed(schema.model_json_schema()), ensure_ascii=False)


def parse_json(
    text: str, schema: type[Schema], finish_reason: str = "stop", prompt: str = ""
) -> Parsed[Schema]:
    """Read ``text``, the answer to ``prompt``, as an object of ``schema``.

    Tried in this order: the whole text as strict JSON; the last complete object inside it that fits; complete
    but broken objects mended by json-repair. An answer that ends inside an object is ``cut`` even where an
    earlier object is complete, for the last one is the answer and it is not there. Never raises for any text.
    """
    if finish_reason == "refusal":
        return Parsed(None, "refusal", "the server declines to answer")
    body = _without_thinking(text)
    if not body:
        if finish_reason == "length" and text.strip():
            return Parsed(None, "cut", "the answer stops inside its thinking")
        return Parsed(None, "empty", "no text")
    if len(body) > LONGEST_ANSWER:
        return Parsed(None, "off-format", TOO_LONG)
    if _echoes(body, prompt):
        return Parsed(None, "echo", "the answer repeats the prompt")
    whole = _load(body)
    examples = [value for value in map(_load, _blocks(prompt)[0]) if isinstance(value, dict)]
    problem = "no JSON object"
    if isinstance(whole, dict):
        value, problem = _validate(schema, whole, lenient=False)
        if value is not None:
            if whole in examples:
                return Parsed(None, "echo", "the answer repeats the example of the prompt")
            return Parsed(value, "good")
    blocks, open_end, depth = _blocks(body)
    if open_end and (finish_reason == "length" or not _closes(body)):
        return Parsed(None, "cut", "the JSON object is not closed: the answer stops before its end")
    mended = _mended_candidates(body, blocks) if depth <= MENDED_DEPTH else iter(())
    for candidates in (_strict_candidates(blocks), mended):
        try:
            for candidate in islice(candidates, CANDIDATES):
                value, why = _validate(schema, candidate, lenient=True)
                if value is not None:
                    if candidate in examples:
                        return Parsed(None, "echo", "the answer repeats the example of the prompt")
                    return Parsed(value, "repaired", "tolerant reading")
                problem = why
        except RecursionError:
            problem = "nested too deeply"
    if finish_reason == "length":
        return Parsed(None, "cut", "the answer reaches the token limit without an object")
    if _refuses(body):
        return Parsed(None, "refusal", "the model declines to answer")
    return Parsed(None, "off-format", problem)


def parse_text(text: str, finish_reason: str = "stop", prompt: str = "") -> Parsed[str]:
    """Read a plain-text answer to ``prompt``: white space is collapsed, and a fence, quotation marks or a
    JSON object with one text around it are taken off (``repaired``). Cut answers have no value:
    :func:`cut_text` gives what there is."""
    if finish_reason == "refusal":
        return Parsed(None, "refusal", "the server declines to answer")
    body = _without_thinking(text)
    if not body:
        return Parsed(None, "empty", "no text")
    if len(body) > LONGEST_ANSWER:
        return Parsed(None, "off-format", TOO_LONG)
    if _echoes(body, prompt):
        return Parsed(None, "echo", "the answer repeats the prompt")
    if len(body.split()) >= 5 and body in prompt.splitlines():  # where an example stands on its own line
        return Parsed(None, "echo", "the answer repeats the example of the prompt")
    if finish_reason == "length":
        return Parsed(None, "cut", "the text reaches the token limit")
    if _refuses(body):
        return Parsed(None, "refusal", "the model declines to answer")
    bare = _unwrap(body)
    if not re.search(r"\w", bare):
        return Parsed(None, "off-format", "no words")
    return Parsed(bare, "good" if bare == " ".join(body.split()) else "repaired")


def cut_text(text: str) -> str:
    """What can be kept of a text cut at the token limit: its complete sentences, else its words but the
    last."""
    body = " ".join(_without_thinking(text).split())
    end = max((match.end() for match in re.finditer(r"[.!?](?=\s|$)", body)), default=0)
    return body[:end] if end else " ".join(body.split(" ")[:-1])


#: The words that decide a True/False answer.
TRUTH_WORDS = {"true": True, "yes": True, "false": False, "no": False}


def parse_truth(text: str | bool) -> bool | None:
    """Read yes/no or true/false word by word: True, False, or None when unclear.

    The first word decides, unless the opposite also occurs ("yes and no") or another word stands first ("not
    sure", "disagree, it is not ok"); "Answer:" may go before it. Booleans pass through; letters inside other
    words ("yesterday") count for nothing.
    """
    if isinstance(text, bool):
        return text
    words = re.findall(r"\w+", text.casefold())
    while words and words[0] in ("the", "answer", "is", "statement"):
        words = words[1:]
    if not words or words[0] not in TRUTH_WORDS:
        return None
    answer = TRUTH_WORDS[words[0]]
    return None if any(TRUTH_WORDS.get(word) is (not answer) for word in words) else answer


# --- how it is done -----------------------------------------------------------------------------------------

TOO_LONG = f"more than {LONGEST_ANSWER:,} characters"
_NOTHING = {"", "none", "n/a", "nothing", "null", "no", "-"}
_REFUSALS = re.compile(
    r"^\W*(i('?m| am) (very |so )?sorry|sorry\b|i ?(can'?t|cannot|can not|won'?t)\b|"
    r"i('?m| am) (unable|not able)|"
    r"as an ai\b|unfortunately,? i\b|i must decline)",
    re.IGNORECASE,
)


def _is_lenient(info: ValidationInfo) -> bool:
    return bool(info.context and info.context.get("lenient"))


def _plain_key(key: str) -> str:
    """Explicit Targets, explicitTargets and explicit-targets are all explicit_targets."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key.strip())
    return re.sub(r"[\s\-_]+", "_", spaced).casefold()


def _as_texts(value: Any) -> Any:
    """A lenient list of texts: a text is a list of one, a dict gives "key: value" items, "none" gives
    nothing."""
    if isinstance(value, str):
        value = [value]
    elif isinstance(value, dict) and all(isinstance(part, str) for part in value.values()):
        value = [f"{key}: {part}" for key, part in value.items()]
    if not isinstance(value, list):
        return value
    kept: list[Any] = []
    for part in value:
        if isinstance(part, dict) and part and all(isinstance(item, str) for item in part.values()):
            part = ": ".join(part.values())
        if not isinstance(part, str) or part.strip(" .").casefold() not in _NOTHING:
            kept.append(part.strip() if isinstance(part, str) else part)
    return kept


def _written(value: Any) -> Any:
    """A text, or a list of them, that can be written as UTF-8: a model's JSON may escape half a pair."""
    if isinstance(value, str):
        return whole_unicode(value)
    if isinstance(value, list):
        return [whole_unicode(part) if isinstance(part, str) else part for part in value]
    return value


def _text_of(value: str) -> str:
    text = " ".join(value.split())
    if not text:
        raise ValueError("must not be blank")
    return text


def _validate(schema: type[Schema], data: Any, lenient: bool) -> tuple[Schema | None, str]:
    try:
        return schema.model_validate(data, context={"lenient": lenient}), ""
    except ValidationError as error:
        first = error.errors()[0]
        return None, f"{'.'.join(map(str, first['loc'])) or 'object'}: {first['msg']}"
    except RecursionError:
        return None, "nested too deeply"


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _without_thinking(text: str) -> str:
    """The answer after a <think>…</think> block; nothing when that block is never closed."""
    kept, place = [], 0
    while (start := text.find("<think>", place)) >= 0:
        kept.append(text[place:start])
        end = text.find("</think>", start)
        if end < 0:
            break
        place = end + len("</think>")
    else:
        kept.append(text[place:])
    return whole_unicode("".join(kept)).strip().lstrip("\ufeff")


def _blocks(text: str) -> tuple[list[str], bool, int]:
    """The complete top-level {…} and […] parts of a text in order, whether one is left open at the end, and
    how deep brackets are nested. Brackets inside double-quoted strings do not count."""
    blocks: list[str] = []
    stack: list[str] = []
    start = depth = 0
    in_string = escaped = False
    for position, char in enumerate(text):
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
        elif char in "{[":
            if not stack:
                start = position
            stack.append("}" if char == "{" else "]")
            depth = max(depth, len(stack))
        elif stack and char == '"':
            in_string = True
        elif stack and char == stack[-1]:
            stack.pop()
            if not stack:
                blocks.append(text[start : position + 1])
    return blocks, bool(stack), depth


def _closes(text: str) -> bool:
    """Whether the text, a fence or a tag aside, ends with a closing bracket."""
    return bool(re.search(r"[}\]]\s*(```|</\w+>)?\s*$", text))


def _inner(value: Any) -> Iterator[Any]:
    """A value and the objects inside it, outermost first (for answers wrapped as {"response": {…}})."""
    yield value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        if isinstance(part, dict | list):
            yield from _inner(part)


def _strict_candidates(blocks: list[str]) -> Iterator[Any]:
    for block in reversed(blocks):
        value = _load(block)
        if value is not None:
            yield from _inner(value)


def _mended_candidates(body: str, blocks: list[str]) -> Iterator[Any]:
    """json-repair on the last complete blocks, last first, then on everything between the outermost
    brackets."""
    span = re.search(r"[{\[].*[}\]]", body, re.DOTALL)
    for block in [*reversed(blocks[-MENDED_BLOCKS:]), *([span.group()] if span else [])]:
        if len(block) > MENDED_CHARS:
            continue
        try:
            value = json_repair.loads(block)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict | list):
            yield from _inner(value)


def _refuses(body: str) -> bool:
    return bool(_REFUSALS.match(body.replace("’", "'")))


def _echoes(body: str, prompt: str) -> bool:
    """Whether an answer is the prompt's text again, whole or from its beginning on (at least three words and
    half of it: an answer may well begin as a caption in the prompt does)."""
    said, asked = re.findall(r"\w+", body.casefold()), re.findall(r"\w+", prompt.casefold())
    return 3 <= len(said) >= len(asked) / 2 and said == asked[: len(said)]


def _unwrap(body: str) -> str:
    if len(body) >= 6 and body.startswith("```") and body.endswith("```"):
        body = re.sub(r"\A\w*[ \t]*\n", "", body[3:-3]).strip()  # the language stands on a line of its own
    value = _load(body)
    if isinstance(value, dict) and len(value) == 1:
        value = next(iter(value.values()))
    if isinstance(value, str):
        body = value
    body = " ".join(body.split())
    quoted = re.fullmatch(r"""(?:"([^"]+)"|'([^']+)'|“([^”]+)”)""", body)
    return next(filter(None, quoted.groups())).strip() if quoted else body
