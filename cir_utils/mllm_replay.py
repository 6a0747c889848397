"""An MLLM that is not there: ``replay:IDENTIFIER`` answers from the response cache alone.

Cache keys hold the identifier of the model that answered. A run with this stand-in asks under the same keys,
so that whoever has the answers (``cir cache import``) gets the rankings without the model. What the cache
does not hold cannot be answered, and the run stops there.
"""

from __future__ import annotations

from collections.abc import Sequence

from cir_utils.errors import InputError
from cir_utils.mllm import Answer, Request, Unanswered, Verdict, VerifyItem
from cir_utils.mllm_server import PREFIX as SERVER

PREFIX = "replay:"


class ReplayMLLM:
    """The model that ``spec`` names after ``replay:``, without its weights; ``known`` are the models of the
    cache, for messages. Every question raises :class:`cir_utils.mllm.Unanswered`, which says what is
    missing: agents only ask what the cache does not hold."""

    def __init__(self, spec: str, known: Sequence[str] = ()) -> None:
        self.identifier = identifier_of(spec)
        #: Servers are asked with the schema of the answer, which is then part of the key.
        self.structured = self.identifier.startswith(SERVER)
        self.known = list(known)

    def generate(self, requests: Sequence[Request]) -> list[Answer]:
        if not requests:
            return []
        prompt = " ".join(requests[0].prompt.split())
        pictures = ", ".join(image.name for image in requests[0].images)
        about = f"the prompt {prompt[:60]!r}..." + (f" with {pictures}" if pictures else "")
        raise self._missing(f"{len(requests):,} answers, the first to {about}")

    def verdicts(self, items: Sequence[VerifyItem]) -> list[list[Verdict]]:
        if not items:
            return []
        count = sum(len(item.statements) for item in items)
        pictures = ", ".join(image.name for image in items[0].images) or "a caption"
        raise self._missing(f"{count:,} verdicts, the first about {pictures}: {items[0].statements[0]!r}")

    def _missing(self, what: str) -> Unanswered:
        held = f"it holds answers of {', '.join(self.known)}" if self.known else "it names no model"
        advice = (
            "benchmark, pictures, method, settings and prompts must be those of the exported run"
            if self.identifier in self.known
            else f"{held}; copy the model's identifier from `cir cache ls`"
        )
        return Unanswered(
            f"replay of {self.identifier}: the response cache lacks {what}; import the file that has them "
            f"(cir cache import FILE); {advice}",
            {},
        )


def identifier_of(spec: str) -> str:
    """The identifier in ``replay:IDENTIFIER``; :class:`InputError` where it is empty."""
    identifier = spec.removeprefix(PREFIX).strip()
    if not identifier:
        raise InputError(f"MLLM {spec} names no model; give {PREFIX}IDENTIFIER as `cir cache ls` lists it")
    return identifier
