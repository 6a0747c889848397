"""An MLLM behind an OpenAI-compatible endpoint: vLLM, SGLang, ``transformers serve``, or a hosted one.

``server:MODEL`` names the model as the server does. Where the server is, and what it wants to see, comes from
the environment (docs/servers.md has the commands):

| variable | meaning |
|---|---|
| ``CIR_SERVER_URL`` | base URL, usually ending in ``/v1``; without it ``OPENAI_BASE_URL``. No default |
| ``CIR_SERVER_KEY`` | key for ``CIR_SERVER_URL``; ``OPENAI_API_KEY`` goes with ``OPENAI_BASE_URL`` alone |
| ``CIR_SERVER_NAME`` | stands for the address in cache keys and records, for servers that move |
| ``CIR_SERVER_CONCURRENCY`` | most requests in flight, 8 |
| ``CIR_SERVER_TIMEOUT`` | most seconds for one request with its retries, 900; one attempt has a third |
| ``CIR_SERVER_PRICES`` | ``PROMPT/COMPLETION``, US dollars a million tokens: the record says the cost |

The key is held in a ``SecretStr`` and in the headers of the official ``openai`` client, and is taken out of
every text that a server sends back.

What a reply becomes:

| reply | here |
|---|---|
| 408, 409, 429, 5xx, connection lost, over time | tried again (``RETRIES``), with back-off or Retry-After |
| 400/422 that names an optional field of ours | the field is left out from then on; the record lists it |
| 400 by a content filter, ``content_filter``, ``refusal`` | an answer of class refusal |
| ``finish_reason`` length | an answer of class cut |
| empty, too large, not JSON, not one choice with a message | tried again (``READ_TRIES``), counted |
| anything else, or still failing | :class:`cir_utils.mllm.Unanswered`, with the answers already had |
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import io
import json
import math
import os
import urllib.parse
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from PIL import Image
from pydantic import SecretStr

from cir_utils.errors import InputError
from cir_utils.files import whole_unicode
from cir_utils.images import FORMATS, load_image
from cir_utils.mllm import TRUTH_TOKENS, UNCLEAR, Answer, Request, Unanswered, Verdict, VerifyItem
from cir_utils.schemas import TRUTH_WORDS, parse_truth

Found = TypeVar("Found")

PREFIX = "server:"
#: Attempts after the first that the openai client makes, with back-off, at a reply that may pass.
RETRIES = 4
#: How often a reply that cannot be read is asked for in all, and the first pause between, in seconds.
READ_TRIES = 3
READ_PAUSE = 0.5
#: A reply above this many bytes is broken off.
MAX_REPLY_BYTES = 4_000_000
#: A number of tokens above this is no count of one request.
MAX_TOKENS = 100_000_000
TOP_LOGPROBS = 20
#: Requests handed over at a time, for each one in flight.
BLOCK_TURNS = 16
#: Fields that a server may refuse, and the words of its message that mean them.
OPTIONAL = {
    "response_format": ("response_format", "json_schema", "guided", "structured output"),
    "logprobs": ("logprobs",),
    "seed": ("seed",),
    "max_tokens": ("max_tokens", "max_completion_tokens"),
    "repetition_penalty": ("repetition_penalty",),
}
#: Fields beside OpenAI's own, which vLLM and SGLang know.
BEYOND = ("repetition_penalty",)
#: Formats whose bytes every server reads as our loader does, where they hold upright RGB or grey pixels.
PLAIN_FORMATS = ("JPEG", "PNG", "WEBP")


@dataclass(frozen=True)
class ServerSettings:
    """Where and how to ask. ``prices`` are US dollars a million prompt and completion tokens."""

    url: str
    key: SecretStr
    key_variable: str
    name: str
    concurrency: int
    timeout: float
    prices: tuple[float, float] | None


@dataclass
class ServerUsage:
    """What was asked since the account began: requests that were answered, by kind; tokens as the server
    counts them; attempts made again; replies that could not be read; answers without token counts."""

    generate_calls: int = 0
    verify_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    retries: int = 0
    unreadable: int = 0
    uncounted: int = 0
    sent: dict[str, set[float]] = field(default_factory=dict)


class _Ask(NamedTuple):
    """A request as it is sent; ``verify`` asks for the probabilities of its first tokens."""

    request: Request
    verify: bool


class _Reply(NamedTuple):
    """What is read from a reply; ``logprobs`` has one list of (token, natural logarithm) a position, the
    token that was taken first, and is empty where the server gives none."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    logprobs: list[list[tuple[str, float]]]


class _Unreadable(Exception):
    """A reply without what a reply must hold; the text says what is wrong."""


class _TooLarge(Exception):
    """A reply above ``MAX_REPLY_BYTES``."""


class _Encoded(Exception):
    """A reply in a content encoding: a few bytes may unfold into any number."""


class ServerMLLM:
    """The model ``server:MODEL`` at the server that the environment names; the interface of
    :class:`cir_utils.mllm.LocalMLLM`.

    Nothing is sent before the first question. ``identifier`` is ``server:MODEL@ADDRESS`` (or
    ``CIR_SERVER_NAME`` for the address): a server does not say which weights it runs, so the address stands
    for them in cache keys.

    Raises :class:`InputError` for wrong settings, and when the ``openai`` package is not installed.
    """

    #: JSON answers are asked for with their schema (until a server refuses it).
    structured = True

    def __init__(self, spec: str, settings: ServerSettings | None = None) -> None:
        self.settings = read_settings() if settings is None else settings
        self.model = check_spec(spec)
        _openai()
        self.identifier = f"{PREFIX}{self.model}@{self.settings.name}"
        self.usage = ServerUsage()
        #: Optional fields that the server refused, model names that it answers with, and how it verifies.
        self.refused: set[str] = set()
        self.served: set[str] = set()
        self.verification: set[str] = set()

    @property
    def block(self) -> int:
        """How many requests are best handed over at a time: enough to keep the server busy, few enough to
        lose little when the process is killed."""
        return BLOCK_TURNS * self.settings.concurrency

    def generate(self, requests: Sequence[Request]) -> list[Answer]:
        """Answers in the order of ``requests``; at most ``concurrency`` are in flight.

        Raises :class:`Unanswered` (an :class:`InputError`) when a request stays without an answer: no other
        is then begun, those in flight are waited for, and the error holds all answers."""

        def read(reply: _Reply) -> Answer:
            self.usage.generate_calls += 1
            finish: Any = reply.finish_reason
            return Answer(reply.text, finish, reply.prompt_tokens, reply.completion_tokens)

        return _run(self._all([_Ask(request, False) for request in requests], read))

    def verdicts(self, items: Sequence[VerifyItem]) -> list[list[Verdict]]:
        """The probability of "true" for every statement of every item, in order.

        Where the server gives the probabilities of its tokens, that of the words true and yes against false
        and no, at the first token that is one of them. Elsewhere the answer is read by its words: 1, 0, or
        ``UNCLEAR`` (one half). Raises as :meth:`generate`."""

        def read(reply: _Reply) -> Verdict:
            self.usage.verify_calls += 1
            self.verification.add("probabilities" if reply.logprobs else "generated words")
            return Verdict(_probability(reply), reply.prompt_tokens)

        asks = [
            _Ask(Request(item.prefix + statement, item.images, TRUTH_TOKENS), True)
            for item in items
            for statement in item.statements
        ]
        found = iter(_run(self._all(asks, read)))
        return [[next(found) for _ in item.statements] for item in items]

    def verify(self, items: Sequence[VerifyItem]) -> list[list[float]]:
        """:meth:`verdicts` without the token counts."""
        return [[verdict.p_true for verdict in row] for row in self.verdicts(items)]

    def models(self, timeout: float = 5.0) -> list[str]:
        """The names that the server lists. Raises :class:`InputError` when it does not answer in ``timeout``
        seconds, or not with a list."""

        async def look() -> list[str]:
            async with self._client(retries=0, timeout=timeout) as client:
                async with asyncio.timeout(timeout):
                    raw = await client.models.with_raw_response.list()
            return [_short(self._clean(str(entry["id"]))) for entry in json.loads(raw.content)["data"]]

        try:
            return _run(look())
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InputError(
                f"{self._where} does not list models; check that {_url_variable()} is the base URL (it "
                "usually ends in /v1)"
            ) from None
        except Exception as error:
            raise self._failure(error) from None

    def start(self) -> None:
        """Begin a new account, as every run does."""
        self.usage = ServerUsage()

    def describe(self) -> dict[str, Any]:
        """The server and the account since :meth:`start`, for the run record (no key, no user's secrets)."""
        usage = asdict(self.usage)
        found: dict[str, Any] = {
            "model": self.model,
            "address": self.settings.name,
            "served": sorted(self.served),
            "concurrency": self.settings.concurrency,
            "timeout": self.settings.timeout,
            "refused_fields": sorted(self.refused),
            "verification": sorted(self.verification),
            **usage,
            "sent": {name: sorted(values) for name, values in sorted(self.usage.sent.items())},
        }
        if self.settings.prices is not None:
            prompt, completion = self.settings.prices
            found["prices"] = {"prompt": prompt, "completion": completion}
            dollars = self.usage.prompt_tokens * prompt + self.usage.completion_tokens * completion
            found["cost_dollars"] = round(dollars / 1e6, 6)
        return found

    # --- asking -----------------------------------------------------------------------------------------

    async def _all(self, asks: Sequence[_Ask], read: Callable[[_Reply], Found]) -> list[Found]:
        found: dict[int, Found] = {}
        failed: list[InputError] = []
        gate = asyncio.Semaphore(self.settings.concurrency)

        async def one(number: int, ask: _Ask) -> None:
            async with gate:
                if failed:
                    return
                try:
                    async with asyncio.timeout(self.settings.timeout):
                        found[number] = read(await self._ask(client, ask))
                except InputError as error:  # a picture that cannot be read
                    failed.append(error)
                except Exception as error:
                    failed.append(self._failure(error, ask.request))

        async with self._client(RETRIES, self.settings.timeout / 3) as client:
            await asyncio.gather(*(one(number, ask) for number, ask in enumerate(asks)))
        if failed:
            raise Unanswered(str(failed[0]), found) from None
        return [found[number] for number in range(len(asks))]

    async def _ask(self, client: Any, ask: _Ask) -> _Reply:
        """Send one request until its reply can be read."""
        openai = _openai()
        unreadable = 0
        while True:
            body = self._body(ask)
            try:
                own = {name: value for name, value in body.items() if name not in BEYOND}
                beyond = {name: body[name] for name in BEYOND if name in body}
                raw = await client.chat.completions.with_raw_response.create(**own, extra_body=beyond)
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                refused = self._refused_field(body, error)
                if refused:
                    self.refused.add(refused)
                    continue
                if _filtered(error):
                    return _Reply("", "refusal", 0, 0, [])
                raise
            except Exception as error:
                if not isinstance(error, _TooLarge) and not isinstance(error.__cause__, _TooLarge):
                    raise
                raw = None
            try:
                if raw is None:
                    raise _Unreadable(f"a reply of more than {MAX_REPLY_BYTES:,} bytes")
                self.usage.retries += raw.retries_taken
                reply = self._read(raw.content)
            except _Unreadable:
                self.usage.unreadable += 1
                unreadable += 1
                if unreadable == READ_TRIES:
                    raise
                await asyncio.sleep(READ_PAUSE * 2 ** (unreadable - 1))
                continue
            for name in ("temperature", "seed", "max_tokens", "max_completion_tokens", *BEYOND):
                if name in body:
                    self.usage.sent.setdefault(name, set()).add(body[name])
            self.usage.prompt_tokens += reply.prompt_tokens
            self.usage.completion_tokens += reply.completion_tokens
            self.usage.uncounted += not reply.prompt_tokens
            return reply

    def _body(self, ask: _Ask) -> dict[str, Any]:
        request = ask.request
        content: Any = request.prompt
        if request.images:
            pictures = [picture_url(path) for path in request.images]
            content = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
            content.append({"type": "text", "text": request.prompt})
        limit = "max_completion_tokens" if "max_tokens" in self.refused else "max_tokens"
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": request.temperature,
            "seed": request.seed,
            limit: request.max_new_tokens,
        }
        if request.schema:
            schema = json.loads(request.schema)
            named = {"name": schema.get("title", "answer"), "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        if request.repetition_penalty != 1:
            body["repetition_penalty"] = request.repetition_penalty
        if ask.verify:
            body |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        for name in self.refused:
            body.pop(name, None)
        if "logprobs" in self.refused:
            body.pop("top_logprobs", None)
        return body

    def _refused_field(self, body: dict[str, Any], error: Any) -> str:
        """The optional field of ``body`` that the server's message names, if any. A seed that decides the
        sample is not optional."""
        said = _reason(error).casefold()
        for name, words in OPTIONAL.items():
            needed = name == "seed" and body["temperature"] > 0
            if name in body and not needed and any(word in said for word in words):
                return name
        return ""

    def _read(self, content: bytes) -> _Reply:
        if not content.strip():
            raise _Unreadable("an empty reply")
        try:
            data = json.loads(content)
            choices = data["choices"]
        except (ValueError, RecursionError, KeyError, TypeError):
            raise _Unreadable("a reply that is not the JSON of a chat completion") from None
        if not isinstance(choices, list) or len(choices) != 1:
            count = len(choices) if isinstance(choices, list) else "no list of"
            raise _Unreadable(f"{count} choices instead of one")
        try:
            message, finish = choices[0]["message"], choices[0].get("finish_reason")
            declined = message.get("refusal") or ""
            text = message.get("content") or ""
            usage = data.get("usage") or {}
            read, written = (_count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
            logprobs = _logprobs(choices[0].get("logprobs"))
            if not isinstance(text, str) or not isinstance(declined, str):
                raise TypeError
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
            raise _Unreadable("a choice that is not a chat message") from None
        if isinstance(data.get("model"), str):
            self.served.add(_short(self._clean(data["model"])))
        if declined or finish == "content_filter":
            return _Reply(self._clean(declined or text), "refusal", read, written, [])
        return _Reply(self._clean(text), "length" if finish == "length" else "stop", read, written, logprobs)

    # --- the client and its failures --------------------------------------------------------------------

    def _client(self, retries: int, timeout: float) -> Any:
        openai = _openai()
        client = openai.AsyncOpenAI(
            base_url=self.settings.url,
            api_key=self.settings.key.get_secret_value() or "none",
            max_retries=retries,
            timeout=timeout,
            default_headers={"Accept-Encoding": "identity"},  # what is counted is what is held
            http_client=openai.DefaultAsyncHttpxClient(
                event_hooks={"response": [_bound]}, follow_redirects=False
            ),
        )
        if self.settings.key_variable != "OPENAI_API_KEY":  # what the environment says belongs to OpenAI
            client.organization = client.project = None
        return client

    @property
    def _where(self) -> str:
        return f"server {self.settings.url} (model {self.model})"

    def _clean(self, text: str) -> str:
        """A server's text without the key, should it repeat it; halves of surrogate pairs, which no file can
        hold, become U+FFFD."""
        key = self.settings.key.get_secret_value()
        text = whole_unicode(text)
        return text.replace(key, "***") if len(key) >= 6 else text

    def _failure(self, error: Exception, request: Request | None = None) -> InputError:
        """One line about what went wrong and how to mend it."""
        openai = _openai()
        said = _short(self._clean(_reason(error)))
        again = "answers already had are kept: run again"
        if isinstance(error, _Unreadable):
            what, mend = f"gave {said}, {READ_TRIES} times", f"look at the server's log; {again}"
        elif isinstance(error, _TooLarge) or isinstance(error.__cause__, _TooLarge):
            what = f"gave a reply of more than {MAX_REPLY_BYTES:,} bytes"
            mend = f"look at the server's log; {again}"
        elif isinstance(error, _Encoded) or isinstance(error.__cause__, _Encoded):
            what = "gave an encoded reply, which was not asked for"
            mend = f"switch compression off in the server, or in what stands before it; {again}"
        elif isinstance(error, TimeoutError | openai.APITimeoutError):
            what = "did not answer in time"
            mend = f"raise CIR_SERVER_TIMEOUT or lower CIR_SERVER_CONCURRENCY; {again}"
        elif isinstance(error, openai.APIStatusError):
            what = f"answered {error.status_code} ({said})"
            mend = {
                401: f"set the right key in {self.settings.key_variable}",
                403: f"set a key with access in {self.settings.key_variable}",
                404: f"check the model's name and {_url_variable()} (it usually ends in /v1)",
                429: f"lower CIR_SERVER_CONCURRENCY or wait; {again}",
            }.get(error.status_code, f"look at the server's log; {again}")
            if error.status_code < 500 and request is not None and request.images:
                mend += f"; asked with {', '.join(path.name for path in request.images)}"
        elif isinstance(error, openai.APIConnectionError):
            reason = _short(self._clean(str(error.__cause__ or error)))
            what = f"gave no reply ({reason})"
            mend = f"start the server, or mend {_url_variable()}; {again}"
        else:
            what, mend = f"failed ({type(error).__name__}: {said})", f"look at the server's log; {again}"
        return InputError(f"{self._where} {what}; {mend}")


def check_spec(spec: str) -> str:
    """The model's name in ``server:MODEL``; :class:`InputError` when there is none."""
    name = spec.removeprefix(PREFIX)
    if not spec.startswith(PREFIX) or not name.strip() or any(char.isspace() for char in name):
        raise InputError(f"MLLM {spec!r} names no model; give {PREFIX}MODEL, as the server lists it")
    return name


def read_settings() -> ServerSettings:
    """The settings from the environment. Raises :class:`InputError` that names the variable at fault."""
    variable = _url_variable()
    url = os.environ.get(variable, "").strip().rstrip("/")
    if not url:
        raise InputError(
            "no MLLM server is named; set CIR_SERVER_URL to its base URL, such as http://127.0.0.1:8000/v1"
        )
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InputError(f"{variable} is no base URL; give http(s)://HOST[:PORT]/v1, without a query")
    if parts.username or parts.password:
        raise InputError(f"{variable} holds a password; put the key into CIR_SERVER_KEY instead")
    key_variable = "CIR_SERVER_KEY" if variable == "CIR_SERVER_URL" else "OPENAI_API_KEY"
    prices = None
    if os.environ.get("CIR_SERVER_PRICES"):
        shares = os.environ["CIR_SERVER_PRICES"].split("/")
        try:
            prices = (float(shares[0]), float(shares[1]))
        except (ValueError, IndexError):
            prices = (math.nan, math.nan)
        if len(shares) != 2 or not all(math.isfinite(price) and price >= 0 for price in prices):
            raise InputError(
                "CIR_SERVER_PRICES must be PROMPT/COMPLETION, US dollars a million tokens, such as 0.15/0.60"
            )
    return ServerSettings(
        url=url,
        key=SecretStr(os.environ.get(key_variable, "").strip()),
        key_variable=key_variable,
        name=os.environ.get("CIR_SERVER_NAME", "").strip() or f"{parts.netloc}{parts.path}",
        concurrency=int(_number("CIR_SERVER_CONCURRENCY", 8)),
        timeout=_number("CIR_SERVER_TIMEOUT", 900),
        prices=prices,
    )


def picture_url(path: Path) -> str:
    """The picture as a data URL: the bytes of the file (those that cache keys hash) where they hold upright
    RGB or grey pixels in a format that every server reads, else a PNG of the pixels that
    :func:`cir_utils.images.load_image` gives. Raises :class:`InputError` as that function does."""
    try:
        stat = os.stat(path)
    except OSError:
        load_image(path)  # says what is wrong
        raise
    return _picture_url(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)
def _picture_url(path: Path, size: int, modified: int) -> str:
    pixels = load_image(path)
    data = path.read_bytes()
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        plain = (
            image.format in PLAIN_FORMATS
            and image.mode in ("RGB", "L")
            and not image.has_transparency_data
            and getattr(image, "n_frames", 1) == 1
            and image.getexif().get(0x0112, 1) == 1
        )
        kind = Image.MIME[str(image.format)] if plain else "image/png"
    if not plain:
        buffer = io.BytesIO()
        pixels.save(buffer, format="PNG")
        data = buffer.getvalue()
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


# --- how it is done -----------------------------------------------------------------------------------------


def _openai() -> Any:
    try:
        import openai
    except ModuleNotFoundError:
        raise InputError(
            f"{PREFIX}MODEL needs the openai package; install it with pip install 'cir-utils[server]'"
        ) from None
    return openai


def _url_variable() -> str:
    own = os.environ.get("CIR_SERVER_URL", "").strip()
    return "CIR_SERVER_URL" if own or not os.environ.get("OPENAI_BASE_URL", "").strip() else "OPENAI_BASE_URL"


def _number(variable: str, default: float) -> float:
    """A number from 1 on out of the environment."""
    text = os.environ.get(variable, "").strip()
    try:
        value = float(text) if text else float(default)
    except ValueError:
        value = math.nan
    if not 1 <= value < math.inf:
        raise InputError(f"{variable} must be a number, 1 or more, not {text!r}")
    return value


def _run(work: Coroutine[Any, Any, Found]) -> Found:
    """Run a coroutine to its end, also where this thread has a running loop already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def held() -> Found:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        return await work

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(asyncio.run, held())
        try:
            return future.result()
        except KeyboardInterrupt:
            for loop, task in running:
                loop.call_soon_threadsafe(task.cancel)
            raise


async def _bound(response: Any) -> None:
    """Let no reply grow beyond ``MAX_REPLY_BYTES``, whatever its length field says, and none unfold."""
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise _Encoded
    response.stream = _bounded()(response.stream)


@cache
def _bounded() -> Any:
    base: Any = importlib.import_module("httpx2").AsyncByteStream

    class Bounded(base):
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for part in self.stream:
                size += len(part)
                if size > MAX_REPLY_BYTES:
                    raise _TooLarge
                yield part

        async def aclose(self) -> None:
            await self.stream.aclose()

    return Bounded


def _reason(error: Exception) -> str:
    """What the server says, or the exception: one line, of any length."""
    body = getattr(error, "body", None)
    while isinstance(body, dict):
        body = next((body[name] for name in ("error", "message", "detail") if body.get(name)), str(body))
    text = body if isinstance(body, str) and body else str(body or error)
    return " ".join(text.split())


def _short(text: str) -> str:
    """At most 300 characters. A key goes out first: cut in two, nobody would find it."""
    return text[:300]


def _filtered(error: Any) -> bool:
    """Whether a 400 is a content filter's."""
    code = str(getattr(error, "code", "") or "")
    return code in ("content_filter", "content_policy_violation") or "content management" in _reason(error)


def _count(value: Any) -> int:
    """A number of tokens as a server states it; 0 (not counted) for what can be none."""
    count = int(value or 0)
    return count if 0 <= count <= MAX_TOKENS else 0


def _logprobs(value: Any) -> list[list[tuple[str, float]]]:
    rows = []
    for position in (value or {}).get("content") or []:
        taken = (str(position["token"]), float(position["logprob"]))
        others = [(str(one["token"]), float(one["logprob"])) for one in position.get("top_logprobs") or []]
        if any(math.isnan(logprob) for _, logprob in (taken, *others)):
            raise ValueError("a probability that is no number")
        rows.append([taken, *(pair for pair in others if pair[0] != taken[0])])
    return rows


def _probability(reply: _Reply) -> float:
    """p("true") of a reply: from the probabilities at its first token that is a truth word, else by its
    words."""
    said = parse_truth(reply.text)
    for place, row in enumerate(reply.logprobs):
        if _truth(row[0][0]) is None:
            continue
        if place and said is None:
            break  # "not true", "true or false": the word alone does not decide
        shares = {True: 0.0, False: 0.0}
        for token, logprob in row:
            truth = _truth(token)
            if truth is not None:
                shares[truth] += math.exp(min(logprob, 0.0))
        return shares[True] / (shares[True] + shares[False]) if any(shares.values()) else UNCLEAR
    return UNCLEAR if said is None else float(said)


def _truth(token: str) -> bool | None:
    return TRUTH_WORDS.get(token.strip(" \t\r\n.,*\"'`").casefold())
