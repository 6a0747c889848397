"""What a run will ask of the MLLM, the GPU and the disk, before anybody starts it.

The calls follow from the benchmark's sizes and the method's settings alone, so the mini runs show them as
they are at any size:

| agent | SDR-CIR | X^R (Algorithm 1, by line) |
|---|---|---|
| selective_cot | Q | |
| caption | | N (1), gallery_captions; Q (2), reference_captions |
| imagine_text, imagine_vision, questions | | Q each (3, 4, 11) |
| verify_caption, verify_picture | | Q * k' * statements each (13, 14) |

What a call takes depends on model, pictures and machine. It is measured on a few queries and multiplied: no
speed and no price is built in here.

The counts are those of run records: every request that the method makes. Requests that are equal, or were
answered before, come from the response cache, so the model answers fewer (``cached_calls`` of a record). One
such saving is certain: where references are gallery pictures, as in all three benchmarks, their captions are
among the N already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cir_utils.benchmarks import BENCHMARKS
from cir_utils.errors import InputError
from cir_utils.runs import NOT_ASKED, VERIFIERS

#: The methods whose calls are planned, and those that make none.
PLANNED = ("description-only", "sdr-cir", "xr", "xr-sdr")
PLAIN = ("random", "image-only", "text-only", "image+text")
#: The stages of a run record (``stages``) in which nothing but the MLLM works.
MLLM_STAGES = (
    "describing", "imagination", "captioning the gallery", "questions", "verification from captions",
    "verification from pictures",
)  # fmt: skip
PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Tokens:
    """Tokens of one call of an agent: of the whole prompt, pictures included, and of the answer. ``shared``
    of the prompt's are the same for all statements about one candidate."""

    prompt: float
    completion: float
    shared: float = 0.0


@dataclass(frozen=True)
class Speed:
    """Tokens a second of one machine (all its requests in flight together): ``prompt`` tokens that are read,
    ``completion`` tokens that are written. One of the two happens at a time."""

    prompt: float
    completion: float


@dataclass(frozen=True)
class Plan:
    """The whole run: ``calls`` by agent; prompt tokens ``sent``; of these ``computed``, where a server keeps
    what the statements about one candidate share; tokens ``generated``."""

    calls: dict[str, float]
    sent: float
    computed: float
    generated: float

    @property
    def total_calls(self) -> float:
        return sum(self.calls.values())

    def hours(self, speed: Speed) -> float:
        """Hours of the machine whose ``speed`` was measured."""
        return (self.computed / speed.prompt + self.generated / speed.completion) / 3600

    def hosted(self, per_million: tuple[float, float]) -> float:
        """The price at a hosted endpoint that takes ``per_million`` prompt and completion tokens so much, in
        that currency."""
        return (self.sent * per_million[0] + self.generated * per_million[1]) / 1e6


# --- calls ------------------------------------------------------------------------------------------------


def sdr_cir_calls(queries: int) -> dict[str, float]:
    """Calls of SDR-CIR by agent: one a query, whatever the gallery's size. (A description that repeats the
    reference is asked for again, and so is an answer that cannot be read: a few more.)"""
    return {"selective_cot": float(_whole("queries", queries))}


def xr_calls(
    queries: int,
    gallery: int,
    k_prime: int,
    statements: float,
    *,
    text: bool = True,
    vision: bool = True,
) -> dict[str, float]:
    """Calls of X^R by agent.

    ``gallery`` counts all pictures that are captioned (FashionIQ: those of its categories together),
    ``statements`` is their mean number a query. ``k_prime`` above the gallery's size means all of it, 0 the
    coarse stage alone (lines 1 to 10). ``text`` and ``vision`` False leave that side out, as the settings of
    :mod:`cir_utils.methods.xr` do. Raises :class:`InputError` for negative numbers and for no side at all.
    """
    Q, N = _whole("queries", queries), _whole("gallery", gallery)
    checked = min(_whole("k_prime", k_prime), N)
    if not (text or vision):
        raise InputError("X^R needs a side: leave text or vision on")
    if not 0 <= statements < float("inf"):
        raise InputError(f"statements must be a number from 0, their mean a query, not {statements}")
    calls: dict[str, float] = {}
    if text:
        calls |= {"gallery_captions": N, "reference_captions": Q, "imagine_text": Q}
    if vision:
        calls["imagine_vision"] = Q
    if checked:
        calls["questions"] = Q
        calls |= {
            agent: Q * checked * statements for agent, on in zip(VERIFIERS, (text, vision), strict=True) if on
        }
    return {agent: float(count) for agent, count in calls.items()}


def calls_of_record(record: Mapping[str, Any]) -> tuple[int, int]:
    """The fewest and the most MLLM calls that a run record's sizes, settings and counts allow; the same
    number twice where they decide it.

    Beyond the plan stand what the record counts: answers that could not be read and were asked for again, and
    descriptions asked for again because they repeat the reference. The two numbers differ where a count does
    not say which query it fell on: in CIRR's runs, whose queries verify up to five candidates more than k'
    (the members of the subset that are not among the k'), and where an agent that sees a picture fell back to
    that picture's caption, which is one call if it was not asked for yet. What lossless pruning left out,
    which the record counts, is taken off. Raises :class:`InputError` for a method without a plan."""
    method, settings, counts, cost = (record[key] for key in ("method", "settings", "counts", "cost"))
    protocol = record["protocol"]
    Q, sizes = protocol["queries"], protocol["gallery_size"]
    galleries = list(sizes.values()) if isinstance(sizes, dict) else [sizes]
    again, failures = counts.get("asked_again", 0), cost["parse_failures"]
    captions = cost["fallbacks"]
    if method in ("description-only", "sdr-cir"):
        least = most = Q
    elif method in ("xr", "xr-sdr"):
        text, vision = settings.get("text") != "off", settings.get("vision") != "off"
        fine = settings["stages"] == "full"
        # Statements and candidates are counted over all queries below: here only whether they are asked.
        plan = xr_calls(Q, sum(galleries), int(fine), 0.0, text=text, vision=vision)
        least = most = int(sum(plan.values()))
        if fine:
            removed = protocol["reference"] == "removed"
            members = (5 if removed else 6) if BENCHMARKS[protocol["benchmark"]].family == "cirr" else 0
            ranked = [size - removed for size in galleries]
            asked = counts["questions"] * (text + vision)
            least += asked * min(settings["k_prime"], *ranked)
            most += asked * min(settings["k_prime"] + members, max(ranked))
            saved = sum(counts.get(name, 0) for name in NOT_ASKED)
            least, most = least - saved, most - saved
        captions = captions if vision else 0
    elif method in PLAIN:
        return 0, 0
    else:
        raise InputError(f"method {method} has no plan of its calls; plans are of {', '.join(PLANNED)}")
    # The second question of Selective CoT is not asked a third time when its answer cannot be read.
    return least + again + max(0, failures - again), most + again + failures + captions


# --- tokens, hours, bytes -----------------------------------------------------------------------------------


def plan(calls: Mapping[str, float], tokens: Mapping[str, Tokens], statements: float = 1.0) -> Plan:
    """The tokens of ``calls``, at ``tokens`` a call; ``statements`` a query are put about each candidate.

    Raises :class:`InputError` for an agent without tokens."""
    missing = [agent for agent in calls if agent not in tokens]
    if missing:
        raise InputError(f"tokens of {', '.join(missing)} are not given; give them for {', '.join(calls)}")
    sent = sum(count * tokens[agent].prompt for agent, count in calls.items())
    saved = sum(
        count * tokens[agent].shared * (1 - 1 / max(1.0, statements))
        for agent, count in calls.items()
        if agent in VERIFIERS
    )
    generated = sum(count * tokens[agent].completion for agent, count in calls.items())
    return Plan(dict(calls), sent, sent - saved, generated)


def fit_speed(records: Iterable[Mapping[str, Any]]) -> Speed:
    """The speed behind run records: the seconds of their MLLM stages as so much a prompt token and so much a
    completion token, by least squares of the relative errors, neither negative.

    Only records whose calls were all answered by the model count, for the tokens of cached answers took no
    time. Raises :class:`InputError` where there are fewer than two of them or they do not tell the two apart
    (runs of the same method have the same mix of tokens)."""
    from scipy.optimize import nnls

    rows, seconds = [], []
    for record in records:
        cost = record["cost"]
        took = sum(record["stages"].get(stage, 0.0) for stage in MLLM_STAGES)
        if cost["mllm_calls"] and not cost["cached_calls"] and took:
            rows.append([cost["prompt_tokens"] / took, cost["completion_tokens"] / took])
            seconds.append(1.0)
    if len(rows) < 2:
        raise InputError(
            f"{len(rows)} run records have no answer from the cache, where two are needed; run sdr-cir and "
            "description-only with --set description=plain on a new --cache"
        )
    (per_prompt, per_completion), _ = nnls(np.array(rows), np.array(seconds))
    if not per_prompt or not per_completion:
        raise InputError(
            "the run records do not tell prompt and completion tokens apart; add one with another mix, such "
            "as description-only with --set description=plain"
        )
    return Speed(float(1 / per_prompt), float(1 / per_completion))


def feature_bytes(rows: int, width: int, precision: str = "float32") -> int:
    """Bytes of ``rows`` features of ``width`` numbers. Raises :class:`InputError` for an unknown
    ``precision``."""
    if precision not in PRECISIONS:
        raise InputError(f"unknown precision {precision!r}: choose {', '.join(PRECISIONS)}")
    return _whole("rows", rows) * _whole("width", width) * PRECISIONS[precision].itemsize


def _whole(name: str, value: int) -> int:
    if value < 0 or value != int(value):
        raise InputError(f"{name} must be a whole number from 0, not {value}")
    return int(value)
