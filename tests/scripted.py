"""An MLLM for tests that answers from a script. It has the interface of ``cir_utils.mllm.MLLM``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cir_utils.mllm import Answer, Request, Verdict, VerifyItem


class ScriptedMLLM:
    """``answer`` gives the text for a request (a text ending in "…" counts as cut at the limit, without that
    mark); ``truth`` gives p("true") for pictures, prefix and statement. What was asked stays in ``requests``
    and ``items``."""

    def __init__(
        self,
        answer: Callable[[Request], str] = lambda request: "a red car",
        truth: Callable[[tuple, str, str], float] = lambda images, prefix, statement: 0.5,
        identifier: str = "scripted@1",
    ) -> None:
        self.identifier = identifier
        self.answer, self.truth = answer, truth
        self.requests: list[Request] = []
        self.items: list[VerifyItem] = []

    def generate(self, requests: Sequence[Request]) -> list[Answer]:
        self.requests.extend(requests)
        answers = []
        for request in requests:
            text = self.answer(request)
            whole = text.removesuffix("…")
            answers.append(Answer(whole, "stop" if whole == text else "length", 10, len(whole.split())))
        return answers

    def verdicts(self, items: Sequence[VerifyItem]) -> list[list[Verdict]]:
        self.items.extend(items)
        return [
            [Verdict(self.truth(item.images, item.prefix, statement), 7) for statement in item.statements]
            for item in items
        ]
