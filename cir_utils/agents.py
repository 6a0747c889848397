"""The agents of both methods: prompt, ask, read, mend once, fall back, and account for it.

Every agent works on lists and answers in their order. Requests that are equal, or answered in an earlier run,
are not asked again. An answer that cannot be used is asked for once more (a cut one with twice the room, any
other with the problem named); if that fails too, a documented fallback stands in, is marked ``fallback`` and
counted. Every answer carries a trace: a dictionary for JSON with the agent, the prompt's hash, the inputs,
the raw answers and their classes.

| agent | fallback |
|---|---|
| caption, dense caption | what is whole of a cut answer, else "an image" |
| describe_target, Selective CoT, vision imagination | caption of the reference + ", " + modification text |
| text imagination, edit_caption | the given caption + ", " + modification text |
| target_levels | the same, on all three levels |
| questions | one statement, the modification text itself, expected true |

An empty modification text is replaced by "the same image" (as X^R's code does), and the trace says so.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from tqdm import tqdm

from cir_utils.files import whole_unicode
from cir_utils.mllm import MLLM, UNCLEAR, Answer, Request, Unanswered, VerifyItem
from cir_utils.prompts import Prompt, load_prompt, prompts_of
from cir_utils.response_cache import (
    ImageHashes,
    ResponseCache,
    StoredAnswer,
    StoredVerdict,
    answer_key,
    verdict_keys,
)
from cir_utils.schemas import (
    Answered,
    Parsed,
    Questions,
    SelectiveCoT,
    Statement,
    TargetLevels,
    TextImagination,
    VisionImagination,
    cut_text,
    json_schema,
    parse_json,
    parse_text,
)

EMPTY_TEXT = "the same image"
CAPTION_FALLBACK = "an image"
#: What a person could say about a picture, where the model's answer names nothing.
GENERAL_ATTRIBUTES = ("object", "number", "colour", "pattern", "action", "background", "style")
#: Token limits by agent. The ``mini`` set's answers are short, and a runaway answer should end early.
MAX_NEW_TOKENS = {
    "caption": 256,
    "caption_dense": 512,
    "describe_target": 128,
    "selective_cot": 1024,
    "imagine_text": 512,
    "imagine_vision": 512,
    "questions": 1024,
    "edit_caption": 128,
    "target_levels": 512,
}
MINI_MAX_NEW_TOKENS = {
    "caption": 64,
    "caption_dense": 128,
    "describe_target": 64,
    "selective_cot": 256,
    "imagine_text": 128,
    "imagine_vision": 128,
    "questions": 256,
    "edit_caption": 64,
    "target_levels": 192,
}
#: Requests or verification pairs that go to the model and into the cache at a time.
BLOCK_REQUESTS = 256
BLOCK_PAIRS = 8192
#: Descriptions at least this similar to the reference (0 to 1, over words) repeat it, unless a target shows.
REPEAT_RATIO = 0.9


@dataclass
class Cost:
    """What a run asked of the MLLM.

    ``mllm_calls`` counts every request that the methods make, so that it does not depend on what the cache
    holds; ``cached_calls`` is how many of them were answered without the model. Tokens are those of all
    calls, whole prompts. ``parse_failures`` counts answers that could not be used when they first came;
    ``fallbacks`` those of them that the second question did not mend either.
    """

    mllm_calls: int = 0
    cached_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    parse_failures: int = 0
    fallbacks: int = 0

    def since(self, earlier: Cost) -> Cost:
        """The cost added since the copy ``earlier`` was taken."""
        return Cost(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def copy(self) -> Cost:
        return replace(self)


@dataclass(frozen=True)
class Text:
    """A plain-text answer: a caption or a description."""

    text: str
    fallback: bool
    trace: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Described:
    """A target description by Selective CoT.

    ``answer`` holds the four stages (None after a fallback). ``vague``: the text names no change that can be
    seen, so the method should rank by the reference image and say so with ``note``; ``could_specify`` lists
    attributes that one could name instead. ``retried``: the description merely repeated the reference and was
    asked for again with the stronger prompt; ``repeats_reference``: it still does.
    """

    description: str
    answer: SelectiveCoT | None
    vague: bool
    could_specify: tuple[str, ...]
    retried: bool
    repeats_reference: bool
    fallback: bool
    note: str
    trace: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Imagined:
    """A target caption (C_t or C_v) with what the agent says beside it: ``modifications`` (M_t) from the text
    agent, ``present`` and ``absent`` (M_v) from the vision agent; the others are empty."""

    target_caption: str
    modifications: tuple[str, ...]
    present: tuple[str, ...]
    absent: tuple[str, ...]
    fallback: bool
    trace: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Levels:
    """A target described on three levels of detail, ``core`` the shortest, and the atomic ``instructions``
    of the modification text; ``present`` and ``absent`` as far as an agent named them. ``fallback``: at least
    one of the texts is a stand-in. ``traces`` are those of all agents that were asked."""

    core: str
    enhanced: str
    comprehensive: str
    instructions: tuple[str, ...]
    present: tuple[str, ...]
    absent: tuple[str, ...]
    fallback: bool
    traces: tuple[dict[str, Any], ...] = field(repr=False)

    @property
    def texts(self) -> tuple[str, str, str]:
        return self.core, self.enhanced, self.comprehensive


@dataclass(frozen=True)
class Asked:
    """True/False statements with the answers that the ideal target gives: at least one, no statement twice
    (of equal ones the first stays)."""

    statements: tuple[Statement, ...]
    fallback: bool
    trace: dict[str, Any] = field(repr=False)


Value = TypeVar("Value")
Schema = TypeVar("Schema", bound=Answered)


@dataclass(frozen=True)
class _Outcome(Generic[Value]):
    """A read answer or None, the last raw answer, and the trace so far."""

    value: Value | None
    last: StoredAnswer
    trace: dict[str, Any]


class Agents:
    """All agents on one MLLM with one prompt set, sharing one cache; ``cost`` adds up over the object's life.

    ``cache`` None keeps answers in memory only. ``domain`` ("fashion" or "scene") chooses the wording where
    the prompt set has several. ``temperature`` and ``seed`` are those of every agent but the dense captioner;
    ``max_tokens`` those limits of answers that are not the usual ones (see :func:`token_limits`);
    ``repetition_penalty`` is that of the agents it names, 1 (none) elsewhere.
    """

    def __init__(
        self,
        mllm: MLLM,
        cache: ResponseCache | None = None,
        prompt_set: str = "default",
        domain: str = "",
        temperature: float = 0.0,
        seed: int = 42,
        max_tokens: Mapping[str, int] | None = None,
        repetition_penalty: Mapping[str, float] | None = None,
    ) -> None:
        self.mllm = mllm
        self.cache = ResponseCache() if cache is None else cache
        self.prompt_set = prompt_set
        self.domain = domain
        self.cost = Cost()
        #: The same by the prompt's name, "verify_caption" and so on; fallbacks are in ``cost`` alone.
        self.by_agent: defaultdict[str, Cost] = defaultdict(Cost)
        #: Answers by class (``schemas.Kind``), the first and the second ones, and "unclear" verifications.
        self.classes: Counter[str] = Counter()
        self.temperature, self.seed = temperature, seed
        self.max_new_tokens = token_limits(prompt_set, max_tokens)
        self.repetition_penalty = dict(repetition_penalty or {})
        self._hash = ImageHashes()
        self._reask = self._prompt("reask")

    # --- captions and descriptions ----------------------------------------------------------------------

    def caption(self, paths: Sequence[Path]) -> list[Text]:
        """C_a or C_r: one caption a picture (X^R, Algorithm 1, lines 1 and 2)."""
        prompt = self._prompt("caption")
        outcomes = self._ask_text(prompt, [{}] * len(paths), [(path,) for path in paths])
        return [self._text_or(outcome, _whole_part(outcome)) for outcome in outcomes]

    def caption_dense(
        self, paths: Sequence[Path], samples: int, temperature: float = 0.7, seed: int = 42
    ) -> list[list[Text]]:
        """``samples`` detailed captions a picture, sampled with the seeds ``seed``, ``seed + 1``, …"""
        prompt = self._prompt("caption_dense")
        images = [(path,) for path in paths for _ in range(samples)]
        seeds = [seed + number for _ in paths for number in range(samples)]
        outcomes = self._ask_text(prompt, [{}] * len(images), images, temperature=temperature, seeds=seeds)
        texts = [self._text_or(outcome, _whole_part(outcome)) for outcome in outcomes]
        return [texts[start : start + samples] for start in range(0, len(texts), samples)] if samples else []

    def describe_target(self, paths: Sequence[Path], modifications: Sequence[str]) -> list[Text]:
        """A target description asked for directly, without stages (SDR-CIR's ablation "without CoT")."""
        prompt = self._prompt("describe_target")
        outcomes = self._ask_text(prompt, _texts(modifications), [(path,) for path in paths])
        stand_ins = self._captioned(outcomes, paths, modifications)
        return [
            self._text_or(outcome, stand_in) for outcome, stand_in in zip(outcomes, stand_ins, strict=True)
        ]

    def edit_caption(self, captions: Sequence[str], modifications: Sequence[str]) -> list[Text]:
        """A caption rewritten by a modification text, without any picture."""
        prompt = self._prompt("edit_caption")
        outcomes = self._ask_text(prompt, _texts(modifications, caption=captions))
        return [
            self._text_or(outcome, _joined(caption, text))
            for outcome, caption, text in zip(outcomes, captions, modifications, strict=True)
        ]

    def selective_cot(self, paths: Sequence[Path], modifications: Sequence[str]) -> list[Described]:
        """The four stages of Selective CoT for each reference picture and modification text (SDR-CIR, section
        3).

        A description that merely repeats the reference is asked for once more with the stronger prompt
        ``selective_cot_retry``; the second answer is taken if it is usable and better. An answer without
        explicit and implicit targets makes the query vague, and so does an empty modification text.
        """
        prompt, retry = self._prompt("selective_cot"), self._prompt("selective_cot_retry")
        values, images = _texts(modifications), [(path,) for path in paths]
        outcomes = self._ask_json(prompt, SelectiveCoT, values, images)
        stand_ins = self._captioned(outcomes, paths, modifications)
        repeating = [
            i
            for i, outcome in enumerate(outcomes)
            if outcome.value and not _without_targets(outcome.value) and repeats_reference(outcome.value)
        ]
        second = self._ask_json(
            retry, SelectiveCoT, [values[i] for i in repeating], [images[i] for i in repeating], again=False
        )
        retries = dict(zip(repeating, second, strict=True))
        return [
            self._described(outcome, retries.get(i), modifications[i], stand_ins[i])
            for i, outcome in enumerate(outcomes)
        ]

    def _described(
        self,
        first: _Outcome[SelectiveCoT],
        second: _Outcome[SelectiveCoT] | None,
        modification: str,
        stand_in: str,
    ) -> Described:
        answer, trace = first.value, first.trace
        if second is not None:
            better = second.value is not None and not repeats_reference(second.value)
            answer = second.value if better else answer
            trace = {**trace, "retry": second.trace, "parsed": answer.model_dump() if answer else None}
        vague = not modification.strip() or (answer is not None and _without_targets(answer))
        could_specify = (_attributes(answer) if answer else GENERAL_ATTRIBUTES) if vague else ()
        repeats = not vague and answer is not None and repeats_reference(answer)
        note = ""
        if vague:
            note = (
                f"the text {modification.strip()!r} names no change that can be seen, so the ranking is by "
                f"the reference image alone; one could say what happens to: {', '.join(could_specify)}"
            )
        elif repeats:
            note = "the description repeats the reference, also after the stronger instruction"
        trace = {**trace, "vague": vague, "retried": second is not None, "repeats_reference": repeats}
        if answer is None:
            self.cost.fallbacks += 1
            trace["fallback"] = stand_in
        return Described(
            description=stand_in if answer is None else answer.description,
            answer=answer,
            vague=vague,
            could_specify=could_specify,
            retried=second is not None,
            repeats_reference=repeats,
            fallback=answer is None,
            note=note,
            trace=trace,
        )

    # --- ImageScope's reasoner --------------------------------------------------------------------------

    def target_levels(
        self, paths: Sequence[Path], captions: Sequence[str], modifications: Sequence[str]
    ) -> list[Levels]:
        """The target on three levels of detail, with the atomic instructions (ImageScope, stage 1).

        One question from (C_r, T_m), texts alone, where the prompt set has the prompt ``target_levels``. A
        set without it (``mini``) asks for what its model knows instead, and looks at the reference ``paths``
        for it: text imagination gives the instructions and the comprehensive level, vision imagination the
        core (the subject and what changes, nothing that nobody mentioned) with what is present and absent,
        and Selective CoT the enhanced level (what changes, and what it selects of the reference)."""
        if "target_levels" in prompts_of(self.prompt_set):
            return self._levels_asked(captions, modifications)
        text = self.imagine_text(captions, modifications)
        vision = self.imagine_vision(paths, modifications)
        selected = self.selective_cot(paths, modifications)
        return [
            Levels(
                core=v.target_caption,
                enhanced=s.description,
                comprehensive=t.target_caption,
                instructions=t.modifications,
                present=v.present,
                absent=v.absent,
                fallback=t.fallback or v.fallback or s.fallback,
                traces=(t.trace, v.trace, s.trace),
            )
            for t, v, s in zip(text, vision, selected, strict=True)
        ]

    def _levels_asked(self, captions: Sequence[str], modifications: Sequence[str]) -> list[Levels]:
        values = _texts(modifications, caption=captions)
        outcomes = self._ask_json(self._prompt("target_levels"), TargetLevels, values)
        levels = []
        for outcome, caption, text in zip(outcomes, captions, modifications, strict=True):
            stand_in = _joined(caption, text)
            value = outcome.value
            levels.append(
                Levels(
                    core=value.core if value else stand_in,
                    enhanced=value.enhanced if value else stand_in,
                    comprehensive=value.comprehensive if value else stand_in,
                    instructions=tuple(value.instructions) if value else (_said(text),),
                    present=(),
                    absent=(),
                    fallback=value is None,
                    traces=(outcome.trace if value else self._fell_back(outcome, stand_in),),
                )
            )
        return levels

    # --- X^R's imagination and questions ----------------------------------------------------------------

    def imagine_text(self, captions: Sequence[str], modifications: Sequence[str]) -> list[Imagined]:
        """(C_t, M_t) from (C_r, T_m), from texts alone (X^R, Algorithm 1, line 3)."""
        values = _texts(modifications, caption=captions)
        outcomes = self._ask_json(self._prompt("imagine_text"), TextImagination, values)
        stand_ins = [_joined(*pair) for pair in zip(captions, modifications, strict=True)]
        imagined = []
        for outcome, stand_in, text in zip(outcomes, stand_ins, modifications, strict=True):
            if outcome.value is not None:
                answer = outcome.value
                imagined.append(
                    Imagined(answer.target_caption, tuple(answer.modifications), (), (), False, outcome.trace)
                )
            else:
                trace = self._fell_back(outcome, stand_in)
                imagined.append(Imagined(stand_in, (_said(text),), (), (), True, trace))
        return imagined

    def imagine_vision(self, paths: Sequence[Path], modifications: Sequence[str]) -> list[Imagined]:
        """(C_v, M_v) from (I_r, T_m) (X^R, Algorithm 1, line 4)."""
        images = [(path,) for path in paths]
        prompt = self._prompt("imagine_vision")
        outcomes = self._ask_json(prompt, VisionImagination, _texts(modifications), images)
        stand_ins = self._captioned(outcomes, paths, modifications)
        imagined = []
        for outcome, stand_in in zip(outcomes, stand_ins, strict=True):
            if outcome.value is not None:
                caption, present, absent = (
                    outcome.value.target_caption,
                    outcome.value.present,
                    outcome.value.absent,
                )
                imagined.append(Imagined(caption, (), tuple(present), tuple(absent), False, outcome.trace))
            else:
                trace = self._fell_back(outcome, stand_in)
                imagined.append(Imagined(stand_in, (), (), (), True, trace))
        return imagined

    def questions(
        self,
        modifications: Sequence[str],
        M_t: Sequence[Sequence[str]],
        present: Sequence[Sequence[str]],
        absent: Sequence[Sequence[str]],
    ) -> list[Asked]:
        """(Q, A) from (T_m, M_t, M_v) (X^R, Algorithm 1, line 11); the number of statements is not
        limited."""
        values = _texts(modifications, modifications=M_t, present=present, absent=absent)
        asked = []
        outcomes = self._ask_json(self._prompt("questions"), Questions, values)
        for outcome, text in zip(outcomes, modifications, strict=True):
            if outcome.value is not None:
                unique: dict[str, Statement] = {}
                for statement in outcome.value.statements:
                    unique.setdefault(_plain(statement.statement), statement)
                asked.append(Asked(tuple(unique.values()), False, outcome.trace))
            else:
                statement = Statement(statement=_said(text), answer=True)
                asked.append(Asked((statement,), True, self._fell_back(outcome, statement.statement)))
        return asked

    # --- verification -----------------------------------------------------------------------------------

    def verify_captions(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The probability that a statement is true of a caption, for (caption, statement) pairs.

        Pairs of one caption share its prefix, so give all pairs at once. Read a probability above 0.5 as
        true.
        """
        prompt = self._prompt("verify_caption")
        prefixes = {caption: prompt.prefix(caption=caption) for caption in {caption for caption, _ in pairs}}
        return self._verify("verify_caption", [((), prefixes[caption], said) for caption, said in pairs])

    def verify_pictures(self, pairs: Sequence[tuple[Path, str]]) -> list[float]:
        """The probability that a statement is true of a picture, for (path, statement) pairs."""
        prefix = self._prompt("verify_picture").prefix()
        return self._verify("verify_picture", [((Path(path),), prefix, said) for path, said in pairs])

    def compare_pictures(self, triples: Sequence[tuple[Path, Path, str]]) -> list[float]:
        """The probability that the second picture is the first with the modification made, for (reference,
        candidate, modification text)."""
        prompt = self._prompt("compare_pictures")
        items = [
            ((Path(first), Path(second)), prompt.fill(modification=_said(text)), "")
            for first, second, text in triples
        ]
        return self._verify("compare_pictures", items)

    def _verify(self, agent: str, triples: Sequence[tuple[tuple[Path, ...], str, str]]) -> list[float]:
        """p("true") for (pictures, prefix, statement), from the cache or the model, equal ones once."""
        numbers: dict[tuple[tuple[Path, ...], str], dict[str, bytes]] = {}
        for images, prefix, statement in triples:
            numbers.setdefault((images, prefix), {})[statement] = b""
        for (images, prefix), statements in numbers.items():
            hashes = [self._hash(image) for image in images]
            keys = verdict_keys(self.mllm.identifier, prefix, hashes, list(statements))
            statements.update(zip(list(statements), keys, strict=True))
        wanted = [numbers[images, prefix][statement] for images, prefix, statement in triples]
        known = self.cache.get_verdicts(list(dict.fromkeys(wanted)))
        asked = 0
        items: list[tuple[VerifyItem, list[bytes]]] = []
        seen = set(known)
        for (images, prefix), statements in numbers.items():
            new = {said: key for said, key in statements.items() if key not in seen}
            seen.update(new.values())
            asked += len(new)
            if new:
                items.append((VerifyItem(images, prefix, tuple(new)), list(new.values())))
        with self._progress(agent, asked) as bar:
            for block in _blocks(items, getattr(self.mllm, "block", BLOCK_PAIRS)):
                flat = [key for _, keys in block for key in keys]
                with self.cache.alone(flat):
                    there = self.cache.get_verdicts(flat)
                    found = self._judged(_without(block, there))
                asked -= len(there)
                known.update(there | found)
                bar.update(len(flat))
        spent = Cost(
            mllm_calls=len(triples),
            cached_calls=len(triples) - asked,
            prompt_tokens=sum(known[key].prompt_tokens for key in wanted),
            completion_tokens=len(triples),
        )
        self._spend(agent, spent)
        self.classes["unclear"] += sum(known[key].p_true == UNCLEAR for key in wanted)
        return [known[key].p_true for key in wanted]

    def _judged(self, block: Sequence[tuple[VerifyItem, list[bytes]]]) -> dict[bytes, StoredVerdict]:
        """The model's verdicts of a block, kept before anything else is asked."""
        keys = [key for _, own in block for key in own]
        try:
            rows = self.mllm.verdicts([item for item, _ in block]) if block else []
        except Unanswered as error:
            came = {keys[place]: StoredVerdict(*verdict) for place, verdict in error.answers.items()}
            self.cache.put_verdicts(came, self.mllm.identifier)
            raise
        verdicts = (StoredVerdict(*verdict) for row in rows for verdict in row)
        found = dict(zip(keys, verdicts, strict=True))
        self.cache.put_verdicts(found, self.mllm.identifier)
        return found

    # --- asking -----------------------------------------------------------------------------------------

    def _prompt(self, name: str) -> Prompt:
        return load_prompt(self.prompt_set, name, self.domain)

    def _ask_text(
        self, prompt: Prompt, values: Sequence[dict[str, Any]], *rest: Any, **more: Any
    ) -> list[_Outcome[str]]:
        return self._ask(prompt, parse_text, values, *rest, **more)

    def _ask_json(
        self,
        prompt: Prompt,
        schema: type[Schema],
        values: Sequence[dict[str, Any]],
        images: Sequence[tuple[Path, ...]] | None = None,
        again: bool = True,
    ) -> list[_Outcome[Schema]]:
        def parse(text: str, finish_reason: str, asked: str) -> Parsed[Schema]:
            return parse_json(text, schema, finish_reason, asked)

        form = json_schema(schema) if getattr(self.mllm, "structured", False) else ""
        return self._ask(prompt, parse, values, images, again=again, schema=form)

    def _ask(
        self,
        prompt: Prompt,
        parse: Callable[[str, str, str], Parsed[Value]],
        values: Sequence[dict[str, Any]],
        images: Sequence[tuple[Path, ...]] | None = None,
        temperature: float | None = None,
        seeds: Sequence[int] | None = None,
        again: bool = True,
        schema: str = "",
    ) -> list[_Outcome[Value]]:
        """Ask for every filling of ``prompt``; what cannot be used is asked for once more, if ``again``."""
        agent = prompt.name
        limit = self.max_new_tokens.get(agent, self.max_new_tokens["selective_cot"])
        images = [()] * len(values) if images is None else images
        requests = [
            Request(
                prompt.fill(**_slots(value)),
                tuple(map(Path, own)),
                limit,
                self.temperature if temperature is None else temperature,
                seeds[i] if seeds else self.seed,
                schema,
                self.repetition_penalty.get(agent, 1.0),
            )
            for i, (value, own) in enumerate(zip(values, images, strict=True))
        ]
        answers = self._answers(agent, requests, parse)
        parsed = [
            parse(answer.text, answer.finish_reason, request.prompt)
            for answer, request in zip(answers, requests, strict=True)
        ]
        self.classes.update(read.kind for read in parsed)
        attempts = [[_attempt(answer, read)] for answer, read in zip(answers, parsed, strict=True)]
        failed = [i for i, read in enumerate(parsed) if read.value is None]
        self._spend(agent, Cost(parse_failures=len(failed)))
        if again and failed:
            second = [self._again(requests[i], parsed[i]) for i in failed]
            for i, asked, answer in zip(failed, second, self._answers(agent, second, parse), strict=True):
                answers[i], parsed[i] = answer, parse(answer.text, answer.finish_reason, asked.prompt)
                self.classes[parsed[i].kind] += 1
                attempts[i].append(_attempt(answer, parsed[i]))
        return [
            _Outcome(
                parsed[i].value, answers[i], self._trace(prompt, values[i], images[i], parsed[i], attempts[i])
            )
            for i in range(len(requests))
        ]

    def _again(self, request: Request, read: Parsed[Any]) -> Request:
        """The second question: twice the room after a cut answer, else the problem named behind the
        prompt."""
        if read.kind == "cut":
            return replace(request, max_new_tokens=2 * request.max_new_tokens)
        return replace(request, prompt=request.prompt + self._reask.fill(problem=read.problem))

    def _answers(
        self, agent: str, requests: Sequence[Request], parse: Callable[[str, str, str], Parsed[Any]]
    ) -> list[StoredAnswer]:
        """Answers from the cache or the model, in order; equal requests go to the model once."""
        keys = [
            answer_key(
                self.mllm.identifier,
                request.prompt,
                [self._hash(image) for image in request.images],
                request.max_new_tokens,
                request.temperature,
                request.seed,
                request.schema,
                request.repetition_penalty,
            )
            for request in requests
        ]
        known = self.cache.get_answers(list(dict.fromkeys(keys)))
        new = {key: request for key, request in zip(keys, requests, strict=True) if key not in known}
        asked = len(new)
        with self._progress(agent, len(new)) as bar:
            pending = list(new.items())
            size = getattr(self.mllm, "block", BLOCK_REQUESTS)
            for start in range(0, len(pending), size):
                block = dict(pending[start : start + size])
                with self.cache.alone(list(block)):
                    there = self.cache.get_answers(list(block))
                    rest = {key: request for key, request in block.items() if key not in there}
                    found = self._generated(agent, rest, parse)
                asked -= len(there)
                known.update(there | found)
                bar.update(len(block))
        answers = [known[key] for key in keys]
        spent = Cost(
            mllm_calls=len(requests),
            cached_calls=len(requests) - asked,
            prompt_tokens=sum(answer.prompt_tokens for answer in answers),
            completion_tokens=sum(answer.completion_tokens for answer in answers),
        )
        self._spend(agent, spent)
        return answers

    def _generated(
        self, agent: str, block: Mapping[bytes, Request], parse: Callable[[str, str, str], Parsed[Any]]
    ) -> dict[bytes, StoredAnswer]:
        """The model's answers to a block, kept before anything else is asked."""
        keys = list(block)
        failed: Unanswered | None = None
        try:
            given = dict(enumerate(self.mllm.generate(list(block.values())))) if block else {}
        except Unanswered as error:
            given, failed = dict(error.answers), error
        found = {
            keys[place]: _stored(answer, agent, parse, block[keys[place]]) for place, answer in given.items()
        }
        self.cache.put_answers(found, self.mllm.identifier)
        if failed is not None:
            raise failed
        return found

    def _spend(self, agent: str, spent: Cost) -> None:
        self.cost += spent
        self.by_agent[agent] += spent

    def _trace(
        self,
        prompt: Prompt,
        values: dict[str, Any],
        images: tuple[Path, ...],
        read: Parsed[Any],
        attempts: list[dict[str, Any]],
    ) -> dict[str, Any]:
        inputs = {
            name: value if isinstance(value, str) else list(value) for name, value in _slots(values).items()
        }
        trace: dict[str, Any] = {
            "agent": prompt.name,
            "prompt": prompt.label,
            "prompt_sha256": prompt.sha256,
            "inputs": {**inputs, "images": [Path(image).name for image in images]},
            "attempts": attempts,
            "class": read.kind,
            "parsed": read.value.model_dump() if isinstance(read.value, Answered) else read.value,
        }
        if values.get("empty_text"):
            trace["empty_text"] = True
        return trace

    def _captioned(
        self, outcomes: Sequence[_Outcome[Any]], paths: Sequence[Path], modifications: Sequence[str]
    ) -> list[str]:
        """For outcomes without a value: caption of the reference + ", " + modification text; "" for the
        others."""
        failed = [i for i, outcome in enumerate(outcomes) if outcome.value is None]
        captions = self.caption([paths[i] for i in failed]) if failed else []
        stand_ins = [""] * len(outcomes)
        for i, caption in zip(failed, captions, strict=True):
            stand_ins[i] = _joined(caption.text, modifications[i])
        return stand_ins

    def _text_or(self, outcome: _Outcome[str], stand_in: str) -> Text:
        if outcome.value is not None:
            return Text(outcome.value, False, outcome.trace)
        return Text(stand_in, True, self._fell_back(outcome, stand_in))

    def _fell_back(self, outcome: _Outcome[Any], stand_in: str) -> dict[str, Any]:
        self.cost.fallbacks += 1
        return {**outcome.trace, "fallback": stand_in}

    def _progress(self, agent: str, total: int) -> tqdm:
        return tqdm(
            total=total, desc=agent, unit="call", disable=not sys.stderr.isatty() or not total, leave=False
        )


def token_limits(prompt_set: str, chosen: Mapping[str, int] | None = None) -> dict[str, int]:
    """The most tokens of an answer by agent: what is ``chosen`` for it, else for "other", else the usual
    limit of agents that are asked with ``prompt_set``."""
    usual = MINI_MAX_NEW_TOKENS if prompt_set == "mini" else MAX_NEW_TOKENS
    chosen = chosen or {}
    return {agent: chosen.get(agent, chosen.get("other", limit)) for agent, limit in usual.items()}


def repeats_reference(answer: SelectiveCoT) -> bool:
    """Whether a target description merely repeats the reference as understood.

    True when both have the same words in the same order (articles aside), and when they are nearly the same
    (at least ``REPEAT_RATIO``) and no word that came or went belongs to a target: the change is not in it.
    Word order counts, for "a dog left of a cat" is another picture than "a cat left of a dog".
    """
    old, new = _words(answer.understanding), _words(answer.description)
    if not old:
        return False
    if old == new:
        return True
    if difflib.SequenceMatcher(None, old, new, autojunk=False).ratio() < REPEAT_RATIO:
        return False
    targets = set(_words(" ".join([*answer.explicit_targets, *answer.implicit_targets])))
    return not targets & (set(old) ^ set(new)) and sorted(old) != sorted(new)


def _words(text: str) -> list[str]:
    return [word for word in re.findall(r"\w+", text.casefold()) if word not in ("a", "an", "the")]


def _without_targets(answer: SelectiveCoT) -> bool:
    return not answer.explicit_targets and not answer.implicit_targets


def _attributes(answer: SelectiveCoT) -> tuple[str, ...]:
    """Names of attributes that the answer sees in the reference ("colour: red" gives colour), else the
    general ones."""
    names = (entry.partition(":")[0].strip() for entry in answer.preserved)
    return tuple(dict.fromkeys(name for name in names if name)) or GENERAL_ATTRIBUTES


def _said(modification: str) -> str:
    return " ".join(modification.split()) or EMPTY_TEXT


def _joined(caption: str, modification: str) -> str:
    return f"{caption.strip().rstrip('.')}, {_said(modification)}"


def _texts(texts: Sequence[str], /, **lists: Sequence[Any]) -> list[dict[str, Any]]:
    """One dictionary of slots a query; an empty modification text is replaced and marked."""
    for name, values in lists.items():
        if len(values) != len(texts):
            raise ValueError(f"{len(values)} {name} for {len(texts)} modification texts")
    rows = []
    for i, text in enumerate(texts):
        row: dict[str, Any] = {"modification": _said(text), **{name: lists[name][i] for name in lists}}
        if not text.strip():
            row["empty_text"] = True
        rows.append(row)
    return rows


def _slots(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "empty_text"}


def _plain(text: str) -> str:
    return " ".join(_words(text))


def _whole_part(outcome: _Outcome[str]) -> str:
    return (cut_text(outcome.last.text) if outcome.trace["class"] == "cut" else "") or CAPTION_FALLBACK


def _attempt(answer: StoredAnswer, read: Parsed[Any]) -> dict[str, Any]:
    attempt = {"raw": answer.text, "class": read.kind, "finish_reason": answer.finish_reason}
    return {**attempt, "problem": read.problem} if read.problem else attempt


def _stored(
    answer: Answer, agent: str, parse: Callable[[str, str, str], Parsed[Any]], request: Request
) -> StoredAnswer:
    text = whole_unicode(answer.text)
    kind = parse(text, answer.finish_reason, request.prompt).kind
    return StoredAnswer(
        text, answer.finish_reason, answer.prompt_tokens, answer.completion_tokens, kind, agent
    )


def _without(
    block: Sequence[tuple[VerifyItem, list[bytes]]], there: Mapping[bytes, StoredVerdict]
) -> list[tuple[VerifyItem, list[bytes]]]:
    """A block without the statements whose verdicts are there."""
    rest = []
    for item, keys in block:
        new = {key: said for key, said in zip(keys, item.statements, strict=True) if key not in there}
        if new:
            rest.append((replace(item, statements=tuple(new.values())), list(new)))
    return rest


def _blocks(
    items: Sequence[tuple[VerifyItem, list[bytes]]], size: int
) -> list[list[tuple[VerifyItem, list[bytes]]]]:
    """Items cut into blocks of about ``size`` pairs; an item is never split."""
    blocks: list[list[tuple[VerifyItem, list[bytes]]]] = []
    count = size
    for item in items:
        if count >= size:
            blocks.append([])
            count = 0
        blocks[-1].append(item)
        count += len(item[1])
    return blocks
