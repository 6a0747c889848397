"""An MLLM behind a server: against a scripted faulty one here, against a real one in test_real_server.py."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import math
import time
import traceback
from pathlib import Path

import numpy as np
import pytest
from chat_server import KEY, ChatServer, chatting
from PIL import Image
from scripted import ScriptedMLLM
from small_world import Oracle, write_world

pytest.importorskip("openai", reason="the server extra is not installed")

from cir_utils import cli, doctor, mllm_server  # noqa: E402
from cir_utils.agents import Agents  # noqa: E402
from cir_utils.errors import InputError  # noqa: E402
from cir_utils.images import load_image  # noqa: E402
from cir_utils.mllm import Request, Unanswered, VerifyItem  # noqa: E402
from cir_utils.mllm_server import ServerMLLM, picture_url, read_settings  # noqa: E402
from cir_utils.response_cache import ResponseCache, answer_key  # noqa: E402
from cir_utils.schemas import Questions, SelectiveCoT, json_schema  # noqa: E402


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses, and none of the variables of whoever runs the tests."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(mllm_server, "READ_PAUSE", 0.01)
    for name in ("URL", "KEY", "NAME", "CONCURRENCY", "TIMEOUT", "PRICES"):
        monkeypatch.delenv(f"CIR_SERVER_{name}", raising=False)
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_LOG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch):
    with chatting() as running:
        monkeypatch.setenv("CIR_SERVER_URL", running.url)
        monkeypatch.setenv("CIR_SERVER_KEY", KEY)
        yield running


def asks(count: int) -> list[Request]:
    return [Request(f"question {number}", max_new_tokens=20) for number in range(count)]


def texts(count: int) -> list[str]:
    return [f"about question {number}" for number in range(count)]


# --- what is sent -------------------------------------------------------------------------------------------


def test_answers_keep_the_order_and_few_are_in_flight(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIR_SERVER_CONCURRENCY", "3")
    server.pause = 0.03
    mllm = ServerMLLM("server:m")
    answers = mllm.generate(asks(20))
    assert [answer.text for answer in answers] == texts(20)
    assert (answers[0].finish_reason, answers[0].prompt_tokens, answers[0].completion_tokens) == (
        "stop",
        10,
        3,
    )
    assert server.busy == 3
    assert mllm.usage.generate_calls == 20 and mllm.usage.prompt_tokens == 200
    assert mllm.identifier == f"server:m@{server.url.removeprefix('http://')}"


def test_settings_of_a_request_are_sent_and_recorded(server: ChatServer) -> None:
    mllm = ServerMLLM("server:m")
    schema = json_schema(SelectiveCoT)
    mllm.generate([Request("q", (), 77, 0.7, 9, schema), Request("q", (), 20)])
    sampled, greedy = sorted(server.bodies, key=lambda body: -body["temperature"])
    assert (sampled["temperature"], sampled["seed"], sampled["max_tokens"]) == (0.7, 9, 77)
    assert sampled["response_format"]["type"] == "json_schema"
    assert sampled["response_format"]["json_schema"]["schema"] == json.loads(schema)
    assert "response_format" not in greedy and greedy["temperature"] == 0 and greedy["model"] == "m"
    described = mllm.describe()
    assert described["sent"] == {"max_tokens": [20, 77], "seed": [9, 42], "temperature": [0.0, 0.7]}
    assert described["served"] == ["m-2026"]
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_schemas_are_closed_and_complete() -> None:
    schema = json.loads(json_schema(SelectiveCoT))
    assert schema["additionalProperties"] is False
    assert sorted(schema["required"]) == sorted(schema["properties"]) == sorted(SelectiveCoT.model_fields)
    assert schema["properties"]["description"]["type"] == "string"
    statement = json.loads(json_schema(Questions))["$defs"]["Statement"]
    assert statement["additionalProperties"] is False and statement["required"] == ["statement", "answer"]


def test_a_schema_is_part_of_the_key_and_sent_to_servers_alone() -> None:
    plain = answer_key("m", "p", [], 8, 0.0, 1)
    assert (
        len({plain, answer_key("m", "p", [], 8, 0.0, 1, "{}"), answer_key("m", "p", [], 8, 0.0, 1, "[]")})
        == 3
    )
    mllm = ScriptedMLLM(lambda request: "hm")
    Agents(mllm, prompt_set="mini").imagine_text(["a car"], ["make it red"])
    assert [request.schema for request in mllm.requests] == ["", ""]


def test_plain_pictures_travel_as_their_own_bytes(server: ChatServer, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    paths = [tmp_path / "a.jpg", tmp_path / "b.png", tmp_path / "c.webp"]
    for path in paths:
        Image.fromarray(pixels).save(path)
    ServerMLLM("server:m").generate([Request("look", tuple(paths))])
    *pictures, text = server.bodies[0]["messages"][0]["content"]
    assert text == {"type": "text", "text": "look"}
    for path, part, kind in zip(paths, pictures, ("jpeg", "png", "webp"), strict=True):
        head, data = part["image_url"]["url"].split(",")
        assert head == f"data:image/{kind};base64" and base64.b64decode(data) == path.read_bytes()


def test_other_pictures_travel_as_the_pixels_of_the_loader(tmp_path: Path) -> None:
    """A photo on its side, a transparent one, a palette: a server would read each in its own way."""
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (10, 16, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.jpg", exif=exif)
    image.convert("RGBA").save(tmp_path / "clear.png")
    image.quantize(8).save(tmp_path / "palette.gif")
    transparent = image.convert("RGBA")
    transparent.putalpha(100)
    transparent.save(tmp_path / "half.png")
    for name in ("turned.jpg", "clear.png", "palette.gif", "half.png"):
        head, data = picture_url(tmp_path / name).split(",")
        sent = Image.open(io.BytesIO(base64.b64decode(data)))
        assert head == "data:image/png;base64"
        assert np.array_equal(np.asarray(sent), np.asarray(load_image(tmp_path / name))), name


def test_inside_a_running_loop_as_in_a_notebook(server: ChatServer) -> None:
    async def cell() -> str:
        return ServerMLLM("server:m").generate(asks(1))[0].text

    assert asyncio.run(cell()) == "about question 0"


# --- fields that a server refuses ---------------------------------------------------------------------------


def test_a_refused_format_is_found_out_once(server: ChatServer) -> None:
    server.refuse = {"response_format": "response_format of type json_schema is not supported"}
    mllm = ServerMLLM("server:m")
    request = Request("q", (), 20, schema=json_schema(SelectiveCoT))
    assert mllm.generate([request])[0].text == "about q"
    assert ["response_format" in body for body in server.bodies] == [True, False]
    mllm.generate([request] * 3)
    assert len(server.log) == 5
    assert mllm.describe()["refused_fields"] == ["response_format"]


def test_newer_names_of_fields(server: ChatServer) -> None:
    server.refuse = {
        "max_tokens": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
        "seed": "Unknown field: seed",
    }
    mllm = ServerMLLM("server:m")
    assert mllm.generate([Request("q", (), 31)])[0].text == "about q"
    assert server.bodies[-1]["max_completion_tokens"] == 31
    assert "seed" not in server.bodies[-1] and "max_tokens" not in server.bodies[-1]
    with pytest.raises(Unanswered, match=r"answered 400 \(Unknown field: seed\)"):
        ServerMLLM("server:m").generate([Request("q", (), 31, temperature=0.5)])


def test_a_repetition_penalty_is_sent_or_said_to_be_refused(server: ChatServer) -> None:
    mllm = ServerMLLM("server:m")
    mllm.generate([Request("q", (), 31, repetition_penalty=1.05)])
    mllm.generate([Request("other", (), 31)])
    assert [body.get("repetition_penalty") for body in server.bodies] == [1.05, None]
    assert mllm.describe()["sent"]["repetition_penalty"] == [1.05]
    server.refuse = {"repetition_penalty": "Unexpected fields in the request: {'repetition_penalty'}"}
    strict = ServerMLLM("server:m")
    assert strict.generate([Request("q", (), 31, repetition_penalty=1.05)])[0].text == "about q"
    assert strict.describe()["refused_fields"] == ["repetition_penalty"]
    assert "repetition_penalty" not in strict.describe()["sent"]


# --- verification -------------------------------------------------------------------------------------------


def tokens(*rows: list[tuple[str, float]]) -> list[dict]:
    return [
        {
            "token": row[0][0],
            "logprob": math.log(row[0][1]),
            "top_logprobs": [{"token": token, "logprob": math.log(p)} for token, p in row],
        }
        for row in rows
    ]


def verdict(server: ChatServer, text: str, rows: list[dict] | None) -> float:
    server.answer, server.logprobs = (lambda prompt: text), (lambda prompt: rows)
    return ServerMLLM("server:m").verify([VerifyItem((), "is it? ", ("x",))])[0][0]


def test_probabilities_are_taken_where_they_are_offered(server: ChatServer) -> None:
    rows = tokens([("false", 0.5), ("true", 0.2), (" True", 0.2), ("maybe", 0.1)])
    assert verdict(server, "false", rows) == pytest.approx(0.4 / 0.9)
    assert server.bodies[-1]["logprobs"] is True and server.bodies[-1]["top_logprobs"] == 20
    assert server.bodies[-1]["messages"][0]["content"] == "is it? x"
    later = tokens([("**", 0.9), ("true", 0.1)], [("True", 0.6), ("False", 0.2)], [("**", 1.0)])
    assert verdict(server, "**True**", later) == pytest.approx(0.75)
    twice = tokens([("not", 0.9)], [("true", 0.9), ("false", 0.1)])
    assert verdict(server, "not true", twice) == 0.5


@pytest.mark.parametrize(
    ("text", "p"),
    [
        ("true", 1.0),
        ("False.", 0.0),
        ("**Yes**", 1.0),
        ("No, it is another dog", 0.0),
        ("Not sure", 0.5),
        ("Yes and no", 0.5),
        ("yesterday", 0.5),
        ("", 0.5),
        ("是", 0.5),
    ],
)
def test_else_the_answer_is_read_by_its_words(server: ChatServer, text: str, p: float) -> None:
    assert verdict(server, text, None) == p


def test_a_server_that_refuses_probabilities(server: ChatServer) -> None:
    server.refuse = {"logprobs": "logprobs are not available"}
    server.answer = lambda prompt: "true" if prompt.endswith("a") else "false"
    mllm = ServerMLLM("server:m")
    items = [VerifyItem((), "p ", ("a", "b")), VerifyItem((), "q ", ()), VerifyItem((), "r ", ("b",))]
    assert mllm.verify(items) == [[1.0, 0.0], [], [0.0]]
    assert mllm.describe()["verification"] == ["generated words"]
    assert mllm.describe()["verify_calls"] == 3


def test_unclear_verifications_are_counted(server: ChatServer) -> None:
    server.answer = lambda prompt: "perhaps" if "two" in prompt else "true"
    agents = Agents(ServerMLLM("server:m"), prompt_set="mini")
    assert agents.verify_captions([("a", "one"), ("a", "two")]) == [1.0, 0.5]
    assert agents.classes == {"unclear": 1}


# --- faults -------------------------------------------------------------------------------------------------


def test_429_waits_as_long_as_it_is_told(server: ChatServer) -> None:
    server.plan = ["429:0.3"]
    mllm = ServerMLLM("server:m")
    assert mllm.generate(asks(1))[0].text == "about question 0"
    (first, _), (second, _) = server.log
    assert second - first >= 0.3 and mllm.usage.retries == 1


def test_500s_and_then_success(server: ChatServer) -> None:
    server.plan = ["500", "break", "502"]
    mllm = ServerMLLM("server:m")
    assert [answer.text for answer in mllm.generate(asks(3))] == texts(3)
    assert mllm.usage.retries == 3 and len(server.log) == 6


@pytest.mark.parametrize("fault", ["empty", "html", "cut-json", "choices:0", "choices:2"])
def test_a_reply_that_cannot_be_read_is_asked_for_again(server: ChatServer, fault: str) -> None:
    server.plan = [fault, fault]
    mllm = ServerMLLM("server:m")
    assert mllm.generate(asks(1))[0].text == "about question 0"
    assert mllm.usage.unreadable == 2 and len(server.log) == 3


SAYS = {
    "empty": "gave an empty reply, 3 times",
    "html": "gave a reply that is not the JSON of a chat completion, 3 times",
    "break": "gave no reply (",
    "cut-json": "gave a reply that is not the JSON of a chat completion, 3 times",
    "choices:0": "gave 0 choices instead of one, 3 times",
    "choices:2": "gave 2 choices instead of one, 3 times",
    "huge": "gave a reply of more than 4,000,000 bytes",
    "500": "answered 500 (no: Bearer ***)",
    "429": "answered 429 (no: Bearer ***); lower CIR_SERVER_CONCURRENCY",
    "401": "answered 401 (no: Bearer ***); set the right key in CIR_SERVER_KEY",
    "404": "answered 404 (no: Bearer ***); check the model's name and CIR_SERVER_URL",
    "302": "answered 302",
    "hang": "did not answer in time; raise CIR_SERVER_TIMEOUT",
    "trickle": "did not answer in time; raise CIR_SERVER_TIMEOUT",
}


@pytest.mark.parametrize("fault", SAYS)
def test_a_fault_that_stays_is_one_clear_line(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv("CIR_SERVER_TIMEOUT", "1.5" if fault in ("hang", "trickle") else "60")
    server.plan = [fault] * 20
    begin = time.monotonic()
    with pytest.raises(Unanswered) as caught:
        ServerMLLM("server:m").generate(asks(1))
    message = str(caught.value)
    assert message.startswith(f"server {server.url} (model m) {SAYS[fault]}"), message
    assert "\n" not in message and len(message) < 600
    assert KEY not in "".join(traceback.format_exception(caught.value))
    if fault in ("hang", "trickle"):
        assert time.monotonic() - begin < 6


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with chatting() as gone:
        url = gone.url
    monkeypatch.setenv("CIR_SERVER_URL", url)
    with pytest.raises(Unanswered, match="gave no reply .*; start the server, or mend CIR_SERVER_URL"):
        ServerMLLM("server:m").generate(asks(1))


def test_finish_reasons_become_classes(server: ChatServer, tmp_path: Path) -> None:
    """Cut, filtered, declined, and filtered before it began: each asked for once more, then the fallback."""
    Image.new("RGB", (30, 30), "red").save(tmp_path / "a.png")
    for fault, kind in (
        ("length", "cut"),
        ("filter", "refusal"),
        ("refusal", "refusal"),
        ("policy", "refusal"),
    ):
        server.plan = [fault, fault]
        agents = Agents(ServerMLLM("server:m"), prompt_set="mini")
        caption = agents.caption([tmp_path / "a.png"])[0]
        assert caption.fallback and caption.trace["class"] == kind
        assert agents.classes == {kind: 2} and agents.cost.fallbacks == 1
        server.plan = [fault]
        agents = Agents(ServerMLLM("server:m"), prompt_set="mini")
        caption = agents.caption([tmp_path / "a.png"])[0]
        assert not caption.fallback and agents.classes == {kind: 1, "good": 1}
        assert agents.cost.parse_failures == 1


def test_answers_already_had_are_kept(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third of six captions fails for good: the run stops, and a second one asks for the rest alone."""
    monkeypatch.setenv("CIR_SERVER_CONCURRENCY", "1")
    paths = []
    for number in range(6):
        paths.append(tmp_path / f"{number}.png")
        Image.new("RGB", (30, 30 + number), "red").save(paths[-1])
    server.plan = ["well", "well", *["400"] * 20]
    with ResponseCache(tmp_path / "answers.sqlite") as cache:
        with pytest.raises(Unanswered, match=r"asked with 2\.png"):
            Agents(ServerMLLM("server:m"), cache, "mini").caption(paths)
        assert len(server.log) == 3 and cache.counts()["answers"] == 2
        server.plan = []
        agents = Agents(ServerMLLM("server:m"), cache, "mini")
        assert len(agents.caption(paths)) == 6
        assert len(server.log) == 7 and agents.cost.cached_calls == 2

        server.answer = lambda prompt: "true"
        server.plan = ["well", *["401"] * 20]
        pairs = [("a cat", "one"), ("a cat", "two"), ("a dog", "one")]
        with pytest.raises(Unanswered, match="answered 401"):
            agents.verify_captions(pairs)
        assert cache.counts()["verdicts"] == 1
        server.plan, before = [], len(server.log)
        assert agents.verify_captions(pairs) == [1.0, 1.0, 1.0] and len(server.log) == before + 2


def test_a_server_that_takes_fewer_pictures(server: ChatServer, tmp_path: Path) -> None:
    server.refuse = {"messages": "At most 1 image(s) may be provided in one request."}
    paths = (tmp_path / "a.png", tmp_path / "b.png")
    for path in paths:
        Image.new("RGB", (30, 30), "red").save(path)
    with pytest.raises(Unanswered, match=r"400 \(At most 1 image.*asked with a\.png, b\.png") as caught:
        ServerMLLM("server:m").generate([Request("compare", paths)])
    assert str(caught.value).startswith(f"server {server.url} (model m) answered 400")


def test_a_broken_picture_stops_before_it_is_sent(server: ChatServer, tmp_path: Path) -> None:
    (tmp_path / "page.jpg").write_text("<html>not found</html>")
    with pytest.raises(Unanswered, match="page.jpg holds an HTML or XML page"):
        ServerMLLM("server:m").generate([Request("look", (tmp_path / "page.jpg",))])
    assert not server.log


def test_answers_without_token_counts_are_counted(server: ChatServer) -> None:
    server.plan = ["bare"]
    mllm = ServerMLLM("server:m")
    mllm.generate(asks(2))
    assert mllm.usage.uncounted == 1 and mllm.usage.prompt_tokens == 10


# --- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, "set CIR_SERVER_URL to its base URL"),
        ({"CIR_SERVER_URL": "localhost:8000"}, "CIR_SERVER_URL is no base URL"),
        ({"OPENAI_BASE_URL": "http://h/v1?key=1"}, "OPENAI_BASE_URL is no base URL"),
        ({"CIR_SERVER_URL": f"http://me:{KEY}@h/v1"}, "CIR_SERVER_URL holds a password"),
        ({"CIR_SERVER_URL": "http://h/v1", "CIR_SERVER_CONCURRENCY": "0"}, "CIR_SERVER_CONCURRENCY must be"),
        ({"CIR_SERVER_URL": "http://h/v1", "CIR_SERVER_TIMEOUT": "soon"}, "CIR_SERVER_TIMEOUT must be"),
        ({"CIR_SERVER_URL": "http://h/v1", "CIR_SERVER_PRICES": "1"}, "CIR_SERVER_PRICES must be"),
    ],
)
def test_wrong_settings_are_named(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], says: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=says) as caught:
        read_settings()
    assert KEY not in str(caught.value)


def test_a_key_goes_to_its_own_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    monkeypatch.setenv("CIR_SERVER_URL", "http://127.0.0.1:9/v1/")
    settings = read_settings()
    assert settings.key.get_secret_value() == "" and settings.url == "http://127.0.0.1:9/v1"
    monkeypatch.delenv("CIR_SERVER_URL")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://api.example.org/v1")
    settings = read_settings()
    assert settings.key.get_secret_value() == "sk-of-openai" and settings.name == "api.example.org/v1"
    assert "sk-of" not in repr(settings)


def test_names_of_models() -> None:
    assert mllm_server.check_spec("server:Qwen/Qwen2.5-VL-7B-Instruct") == "Qwen/Qwen2.5-VL-7B-Instruct"
    for spec in ("server:", "server: ", "server:two words"):
        with pytest.raises(InputError, match="names no model"):
            mllm_server.check_spec(spec)


def test_doctor_asks_the_server(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    check = doctor._server("server:m")
    assert check.ok and check.mend == "" and check.found == f"{server.url} answers, key from CIR_SERVER_KEY"
    server.listed = ["other"]
    assert doctor._server("server:m").mend == "it does not list m; it lists other"
    server.plan = ["401"]
    check = doctor._server("server:m")
    assert not check.ok and "answered 401 (no: Bearer ***)" in check.found
    assert check.mend.startswith("set the right key in CIR_SERVER_KEY")
    server.plan = ["hang"]
    begin = time.monotonic()
    monkeypatch.setattr(ServerMLLM.models, "__defaults__", (0.5,))
    assert not doctor._server("server:m").ok and time.monotonic() - begin < 5
    monkeypatch.delenv("CIR_SERVER_URL")
    check = doctor._server("server:m")
    assert not check.ok and check.mend.startswith("set CIR_SERVER_URL to its base URL")


# --- a whole run --------------------------------------------------------------------------------------------


def test_a_run_records_everything_but_the_key(
    server: ChatServer,
    tmp_path: Path,
    tiny_clip: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`cir run xr` on the small world; the server repeats the key in answers and errors."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("CIR_SERVER_PRICES", "2/10")
    monkeypatch.chdir(tmp_path)
    world = write_world(tmp_path / "world")
    oracle = Oracle()
    scenes = {picture_url(path): path for path in (world / "COCO2017_unlabeled").rglob("*.jpg")}

    def look(body: dict) -> str:
        content = body["messages"][0]["content"]
        parts = content if isinstance(content, list) else [{"text": content}]
        images = tuple(scenes[part["image_url"]["url"]] for part in parts[:-1])
        before, verified, statement = parts[-1]["text"].rpartition("true or false: ")
        if verified:
            return f"{oracle.truth(images, before, statement) > 0.5}. Sent with {KEY}"
        return oracle.answer(Request(parts[-1]["text"], images))

    server.look = look
    arguments = [
        "run", "xr", "-b", "mini-circo", "--root", str(world), "--encoder", f"local-dir:{tiny_clip}",
        "--mllm", "server:m", "--device", "cpu", "--cache", str(tmp_path / "cache"), "--limit", "3",
        "--set", "k_prime=4", "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    assert cli.main(arguments) == 0
    told = capsys.readouterr().out
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    account = record["inputs"]["server"]
    assert record["inputs"]["mllm"] == f"server:m@{server.url.removeprefix('http://')}"
    calls = account["generate_calls"] + account["verify_calls"]
    assert calls == len(server.log) == record["cost"]["mllm_calls"] - record["cost"]["cached_calls"]
    assert account["prompt_tokens"] == 10 * calls
    assert account["cost_dollars"] == pytest.approx(calls * (10 * 2 + 3 * 10) / 1e6)
    assert record["answers"] == {"good": 24 + 4 * 3}
    assert account["verification"] == ["generated words"]
    dollars = f"{account['cost_dollars']:.4f} US dollars"
    assert f"{calls:,} requests answered, {10 * calls:,} + {3 * calls:,} tokens, {dollars}" in told

    before = len(server.log)
    assert cli.main(arguments) == 0
    assert len(server.log) == before, "a second run asks nothing"
    account = json.loads((tmp_path / "run" / "run.json").read_text())["inputs"]["server"]
    assert account["generate_calls"] == account["verify_calls"] == 0

    # Another server is another key: everything would be asked anew.
    monkeypatch.setenv("CIR_SERVER_NAME", "elsewhere")
    server.plan = ["401"]
    assert cli.main(arguments) == 2
    told = capsys.readouterr()
    assert "answered 401 (no: Bearer ***); set the right key in CIR_SERVER_KEY" in told.err
    assert "Traceback" not in told.err
    for text in (told.out, told.err, caplog.text):
        assert KEY not in text
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        assert KEY.encode() not in path.read_bytes(), path


def test_a_key_repeated_by_the_server_is_taken_out(server: ChatServer, tmp_path: Path) -> None:
    server.answer = lambda prompt: f"you sent {KEY}"
    with ResponseCache(tmp_path / "answers.sqlite") as cache:
        agents = Agents(ServerMLLM("server:m"), cache, "mini")
        Image.new("RGB", (30, 30)).save(tmp_path / "a.png")
        assert agents.caption([tmp_path / "a.png"])[0].text == "you sent ***"
    for path in tmp_path.iterdir():
        assert KEY.encode() not in path.read_bytes()


def test_wrong_settings_show_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = write_world(tmp_path / "world")
    monkeypatch.setattr("cir_utils.workbench.load_encoder", lambda *_: pytest.fail("a model was loaded"))
    arguments = ["run", "sdr-cir", "-b", "mini-circo", "--root", str(world), "--mllm", "server:m"]
    assert cli.main(arguments) == 2
    assert "no MLLM server is named; set CIR_SERVER_URL" in capsys.readouterr().err
