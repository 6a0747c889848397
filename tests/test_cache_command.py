"""``cir cache``: what it lists, what it finds damaged, and answers that travel to a place without an MLLM."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_world import write_world

from cir_utils import cache, doctor, workbench
from cir_utils.cli import main
from cir_utils.encoder import TextFeatures
from cir_utils.errors import InputError
from cir_utils.feature_store import image_features, text_features
from cir_utils.mllm import Request, Unanswered, VerifyItem
from cir_utils.mllm_replay import ReplayMLLM
from cir_utils.response_cache import Entry, ResponseCache, StoredAnswer, StoredVerdict, reading, stored
from cir_utils.runs import load_run

Cir = Callable[..., tuple[int, str, str]]
RED, CUT = b"\x01" * 32, b"\x02" * 32
SEEN, SAID = b"\x03" * 32, b"\x04" * 32
#: Texts that JSON lines, SQLite or a reader of lines could get wrong.
ANSWERS = {
    RED: StoredAnswer('a "red"\ncar \u2028\u0085 ü 🚗 \0', "stop", 80, 4, "good", "caption"),
    CUT: StoredAnswer("", "length", 90, 64, "cut", "questions"),
}
VERDICTS = {SEEN: StoredVerdict(0.1 + 0.2, 91), SAID: StoredVerdict(1.0, 92)}


class Encoder:
    """As much of a CLIP model as the feature store asks for."""

    identifier, width, device = "tiny@1", 2, torch.device("cpu")

    def describe(self) -> dict[str, Any]:
        return {"encoder": "tiny@1", "precision": "float32", "preprocessing": {"name": "clip"}, "width": 2}

    def encode_images(self, paths: list[Path], batch_size: int) -> torch.Tensor:
        return torch.eye(2)[[len(path.read_bytes()) % 2 for path in paths]]

    def encode_texts(self, texts: list[str], batch_size: int) -> TextFeatures:
        features = torch.eye(2)[[len(text) % 2 for text in texts]]
        return TextFeatures(features, [False] * len(texts), [3] * len(texts), [[]] * len(texts))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache folder: two answers and two verdicts of two models, three pictures in two shards, two texts."""
    place = tmp_path / "cache"
    with ResponseCache(place / "answers.sqlite") as responses:
        responses.put_answers(ANSWERS, "a@1")
        responses.put_verdicts({SEEN: VERDICTS[SEEN]}, "a@1")
        responses.put_verdicts({SAID: VERDICTS[SAID]}, "b@1")
    fill_features(tmp_path, place)
    return place


def fill_features(tmp_path: Path, place: Path) -> list[str]:
    """Ask for the features of three pictures and two texts; what was said about it."""
    paths = [tmp_path / f"{name}.png" for name in "abc"]
    for number, path in enumerate(paths):
        path.write_bytes(b"." * (number + 1))
    said: list[str] = []
    encoder: Any = Encoder()
    found = image_features(encoder, ["a", "b", "c"], paths, place, shard_size=2, say=said.append)
    assert found.tolist() == [[0, 1], [1, 0], [0, 1]]
    text_features(encoder, ["one", "four"], place, say=said.append)
    return said


@pytest.fixture
def cir(capsys: pytest.CaptureFixture[str]) -> Cir:
    def call(*arguments: str | Path) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


def bytes_below(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def rows(place: Path) -> list[Entry]:
    with reading(place / "answers.sqlite") as connection:
        return [entry for table in cache.TABLES for entry in stored(connection, table)]


def change(place: Path, statement: str, *values: Any) -> None:
    connection = sqlite3.connect(place / "answers.sqlite")
    with connection:
        connection.execute(statement, values)
    connection.close()


def shards(place: Path, kind: str, suffix: str = "safetensors") -> list[Path]:
    return sorted((place / "features").glob(f"*/{kind}-*.{suffix}"))


# --- looking ------------------------------------------------------------------------------------------------


def test_ls_says_what_is_there(folder: Path, cir: Cir) -> None:
    before = bytes_below(folder)
    code, out, _ = cir("cache", "ls", "--cache", folder, "--json")
    found = json.loads(out)
    features = next((folder / "features").iterdir())
    size = sum(path.stat().st_size for path in features.glob("*-*"))
    assert code == 0 and found == {
        "cache": str(folder),
        "responses": {
            "file": "answers.sqlite",
            "bytes": (folder / "answers.sqlite").stat().st_size,
            "damaged": "",
            "answers": 2,
            "verdicts": 2,
            "by_class": {"good": 1, "cut": 1},
            "by_agent": {"caption": 1, "questions": 1},
            "models": {"a@1": {"answers": 2, "verdicts": 1}, "b@1": {"verdicts": 1}},
        },
        "features": [
            {
                "folder": features.name,
                "encoder": "tiny@1",
                "precision": "float32",
                "preprocessing": "clip",
                "shards": 3,
                "images": 3,
                "texts": 2,
                "bytes": size,
                "damaged": [],
            }
        ],
        "left_over": [],
    }
    code, out, _ = cir("cache", "ls", "--cache", folder)
    assert code == 0
    assert "  2 answers, 2 verdicts\n  answers by class: 1 good, 1 cut\n" in out
    assert "  of a@1: 2 answers, 1 verdicts\n  of b@1: 1 verdicts\n" in out
    shown = f"tiny@1, float32, clip: 3 images, 2 texts in 3 shards, {size / 1000:.1f} kB\n"
    assert f"features/{features.name}  {shown}" in out
    assert bytes_below(folder) == before


def test_an_empty_folder_and_none(tmp_path: Path, cir: Cir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIR_CACHE", str(tmp_path / "none"))
    for command in (["ls"], ["verify"], ["export", str(tmp_path / "x.jsonl")]):
        code, out, err = cir("cache", *command)
        assert (code, out) == (2, "") and "none does not exist" in err and "CIR_CACHE" in err
    (tmp_path / "none").mkdir()
    assert cir("cache", "ls")[1] == f"{tmp_path / 'none'}\nnothing is kept here yet\n"
    assert cir("cache", "verify")[0] == 0
    assert (
        "holds no answers (answers.sqlite); run a method" in cir("cache", "export", tmp_path / "x.jsonl")[2]
    )
    assert list((tmp_path / "none").iterdir()) == []


def test_ls_lists_damaged_things_as_damaged(folder: Path, cir: Cir) -> None:
    (folder / "answers.sqlite").write_bytes(b"these are notes, and no database " * 200)
    features = next((folder / "features").iterdir())
    (features / "encoder.json").write_text("[" * 100_000)
    first, second = shards(folder, "image", "json")
    first.write_text('["no record"]')
    shards(folder, "text")[0].unlink()
    (folder / "features" / "empty").mkdir()
    (features / ".x.safetensors.1.part").write_bytes(b"half")
    code, out, _ = cir("cache", "ls", "--cache", folder, "--json")
    found = json.loads(out)
    assert code == 0
    assert "damaged or no cache (file is not a database)" in found["responses"]["damaged"]
    own, empty = sorted(found["features"], key=lambda row: row["folder"] == "empty")
    assert (own["encoder"], own["images"], own["shards"]) == ("unknown encoder", len_of(second), 3)
    assert own["damaged"][0].startswith("encoder.json: it cannot be read")
    assert own["damaged"][1].startswith(f"{first.name}: it cannot be read")
    assert own["damaged"][2] == f"{shards(folder, 'text', 'json')[0].stem}.safetensors: " + (
        "it is missing, and its record is there"
    )
    assert (empty["damaged"], empty["shards"]) == (["encoder.json: it is missing"], 0)
    assert found["left_over"] == [f"features/{features.name}/.x.safetensors.1.part"]
    code, out, _ = cir("cache", "ls", "--cache", folder)
    assert code == 0 and "  damaged: response cache" in out and "left over: features/" in out


def len_of(record: Path) -> int:
    return len(json.loads(record.read_text())["content"])


def test_verify_reads_everything_and_changes_nothing(folder: Path, cir: Cir) -> None:
    before = bytes_below(folder)
    code, out, _ = cir("cache", "verify", "--cache", folder)
    assert code == 0
    assert "2 answers, 2 verdicts and 3 shards" in out and "all as they were written" in out
    assert bytes_below(folder) == before


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def of_another(record: Path) -> None:
    """The record of another shard, under this one's name."""
    other = next(path for path in record.parent.glob("image-*.json") if path != record)
    shutil.copyfile(other, record)


@pytest.mark.parametrize(
    ("kind", "suffix", "damage", "named", "fault"),
    [
        ("image", "safetensors", flip, "safetensors", "its SHA-256 differs from its record"),
        ("text", "safetensors", lambda path: path.write_bytes(b""), "safetensors", "its SHA-256 differs"),
        ("image", "safetensors", lambda path: path.unlink(), "safetensors", "it is missing, and its record"),
        ("image", "json", of_another, "json", "it is of another shard"),
        ("text", "json", lambda path: path.write_text("{"), "json", "it cannot be read"),
        ("text", "json", lambda path: path.write_text('{"content": []}'), "json", "it is of another shard"),
    ],
)
def test_verify_names_damaged_features_and_the_next_run_mends_them(
    folder: Path,
    tmp_path: Path,
    cir: Cir,
    kind: str,
    suffix: str,
    damage: Callable[[Path], None],
    named: str,
    fault: str,
) -> None:
    path = shards(folder, kind, suffix)[0]
    damage(path)
    code, out, _ = cir("cache", "verify", "--cache", folder)
    name = path.with_suffix(f".{named}").relative_to(folder)
    assert code == 1 and f"{name}: {fault}" in out and "problems: 1" in out
    assert "  -> nothing to do: the next run that needs it computes it again\n" in out
    assert any("are damaged" in text or "1 computed" in text for text in fill_features(tmp_path, folder))
    assert cir("cache", "verify", "--cache", folder)[0] == 0


def test_verify_names_what_killed_writers_left(folder: Path, tmp_path: Path, cir: Cir) -> None:
    shards(folder, "image", "json")[0].unlink()
    orphan = shards(folder, "image")[0].relative_to(folder).as_posix()
    half = orphan.rpartition("/")[0] + "/.image-1.json.x.part"
    (folder / half).write_bytes(b"half")
    code, out, _ = cir("cache", "verify", "--cache", folder, "--json")
    problems = json.loads(out)["problems"]
    assert code == 1
    assert [problem["file"] for problem in problems] == [orphan, half]
    assert problems[0]["fault"] == "it has no record beside it"
    assert all("can be deleted" in problem["mend"] for problem in problems)
    (folder / orphan).unlink(), (folder / half).unlink()
    assert cir("cache", "verify", "--cache", folder)[0] == 0


def test_verify_names_a_wrong_description_of_the_encoder(folder: Path, tmp_path: Path, cir: Cir) -> None:
    description = next((folder / "features").glob("*/encoder.json"))
    description.write_text(description.read_text().replace("float32", "float16"))
    code, out, _ = cir("cache", "verify", "--cache", folder)
    assert code == 1 and "problems: 1" in out
    assert "encoder.json: it belongs to a folder of another name\n  -> delete it" in out
    description.unlink()
    fill_features(tmp_path, folder)
    assert cir("cache", "verify", "--cache", folder)[0] == 0


@pytest.mark.parametrize(
    ("statement", "values", "fault"),
    [
        ("UPDATE verdicts SET p_true = 1.5 WHERE key = ?", [SEEN], "1 of its verdicts: p_true is no number"),
        ("UPDATE verdicts SET p_true = 'x' WHERE key = ?", [SEEN], "1 of its verdicts: p_true is no number"),
        ("UPDATE verdicts SET prompt_tokens = -1 WHERE key = ?", [SEEN], "1 of its verdicts: a number of"),
        ("UPDATE verdicts SET key = x'0303' WHERE key = ?", [SEEN], "1 of its verdicts: its key has not 32"),
        ("UPDATE answers SET kind = 'fine' WHERE key = ?", [RED], "1 of its answers: class is none of good"),
        ("UPDATE answers SET finish_reason = '' WHERE key = ?", [RED], "1 of its answers: finish_reason is"),
        ("UPDATE answers SET text = x'00ff' WHERE key = ?", [RED], "1 of its answers: text or agent is no"),
    ],
)
def test_damaged_rows_are_named_not_used_not_exported_and_asked_again(
    folder: Path, tmp_path: Path, cir: Cir, statement: str, values: list[Any], fault: str
) -> None:
    change(folder, statement, *values)
    code, out, _ = cir("cache", "verify", "--cache", folder)
    assert code == 1 and f"answers.sqlite: {fault}" in out and "asks again" in out
    assert ("0303" if "key = x" in statement else values[0].hex()) in out
    with ResponseCache(folder / "answers.sqlite") as responses:
        assert set(responses.get_answers(list(ANSWERS))) | set(responses.get_verdicts(list(VERDICTS))) == (
            {RED, CUT, SEEN, SAID} - set(values)
        )
    code, out, _ = cir("cache", "export", tmp_path / "out.jsonl", "--cache", folder)
    assert code == 0 and "note: 1 damaged rows were left out" in out
    assert cir("cache", "import", tmp_path / "out.jsonl", "--cache", tmp_path / "other")[0] == 0
    assert {entry.key for entry in rows(tmp_path / "other")} == {RED, CUT, SEEN, SAID} - set(values)


def test_a_broken_database_is_named_with_its_mend(folder: Path, cir: Cir) -> None:
    with ResponseCache(folder / "answers.sqlite") as responses:
        responses.put_verdicts({bytes([i]) * 32: StoredVerdict(0.5, 1) for i in range(9, 255)})
    data = bytearray((folder / "answers.sqlite").read_bytes())
    pages = len(data) // 4096
    data[-4096:] = b"\xff" * 4096
    (folder / "answers.sqlite").write_bytes(data)
    code, out, _ = cir("cache", "verify", "--cache", folder)
    assert pages > 6 and code == 1
    assert "answers.sqlite: " in out and "-> move it away: a new one is made" in out
    change_version = sqlite3.connect(folder / "new.sqlite")
    change_version.execute("PRAGMA user_version=7")
    change_version.close()
    (folder / "new.sqlite").replace(folder / "answers.sqlite")
    code, out, _ = cir("cache", "verify", "--cache", folder)
    assert code == 1 and "answers.sqlite: it has format 7, not 1\n  -> move it away" in out


# --- files from before models were noted --------------------------------------------------------------------


def make_old(place: Path) -> None:
    place.mkdir()
    connection = sqlite3.connect(place / "answers.sqlite")
    connection.executescript(
        "CREATE TABLE answers (key BLOB PRIMARY KEY, text TEXT NOT NULL, finish_reason TEXT NOT NULL, "
        "prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, kind TEXT NOT NULL, "
        "agent TEXT NOT NULL) WITHOUT ROWID;"
        "CREATE TABLE verdicts (key BLOB PRIMARY KEY, p_true REAL NOT NULL, prompt_tokens INTEGER NOT NULL) "
        "WITHOUT ROWID; PRAGMA user_version=1;"
    )
    with connection:
        connection.execute("INSERT INTO verdicts VALUES (?, 0.25, 9)", [SEEN])
    connection.close()


def test_an_old_file_is_read_as_it_is_and_gets_models_on_writing(tmp_path: Path, cir: Cir) -> None:
    old, file = tmp_path / "old", tmp_path / "out.jsonl"
    make_old(old)
    before = bytes_below(old)
    code, out, _ = cir("cache", "export", file, "--cache", old)
    assert code == 0 and "of models that were not noted: 1 verdicts" in out
    assert '"models": {}' in file.read_text().splitlines()[0]
    assert cir("cache", "ls", "--cache", old)[1].endswith("of models that were not noted: 1 verdicts\n")
    assert cir("cache", "verify", "--cache", old)[0] == 0
    assert bytes_below(old) == before
    with ResponseCache(old / "answers.sqlite") as responses:
        assert responses.get_verdicts([SEEN]) == {SEEN: StoredVerdict(0.25, 9)}
        responses.put_verdicts({SAID: StoredVerdict(0.75, 9)}, "a@1")
        assert responses.models() == ["a@1"]
    assert rows(old) == [
        Entry(SEEN, StoredVerdict(0.25, 9), ""),
        Entry(SAID, StoredVerdict(0.75, 9), "a@1"),
    ]
    # The same verdict with its model, from elsewhere: the model is noted, and nothing else changes.
    with ResponseCache(old / "answers.sqlite") as responses:
        merged = responses.merge([Entry(SEEN, StoredVerdict(0.25, 9), "a@1")])
    assert (merged.new, merged.there, merged.replaced) == (0, 1, 0)
    assert [entry.model for entry in rows(old)] == ["a@1", "a@1"]


# --- out and in ---------------------------------------------------------------------------------------------


def test_an_export_is_these_lines_and_comes_back_whole(folder: Path, tmp_path: Path, cir: Cir) -> None:
    file, again = tmp_path / "out.jsonl", tmp_path / "again.jsonl"
    code, out, _ = cir("cache", "export", file, "--cache", folder)
    assert code == 0
    assert out == (
        f"{file}: 2 answers, 2 verdicts\nof a@1: 2 answers, 1 verdicts\nof b@1: 0 answers, 1 verdicts\n"
        "replay: cir run METHOD --benchmark BENCHMARK --mllm replay:a@1\n"
    )
    lines = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
    assert lines[0].pop("cir_utils")
    assert lines == [
        {
            "format": "cir-answers",
            "version": 1,
            "answers": 2,
            "verdicts": 2,
            "models": {"a@1": {"answers": 2, "verdicts": 1}, "b@1": {"answers": 0, "verdicts": 1}},
        },
        {
            "answer": "01" * 32,
            "text": ANSWERS[RED].text,
            "finish_reason": "stop",
            "prompt_tokens": 80,
            "completion_tokens": 4,
            "class": "good",
            "agent": "caption",
            "model": "a@1",
        },
        {
            "answer": "02" * 32,
            "text": "",
            "finish_reason": "length",
            "prompt_tokens": 90,
            "completion_tokens": 64,
            "class": "cut",
            "agent": "questions",
            "model": "a@1",
        },
        {"verdict": "03" * 32, "p_true": 0.1 + 0.2, "prompt_tokens": 91, "model": "a@1"},
        {"verdict": "04" * 32, "p_true": 1.0, "prompt_tokens": 92, "model": "b@1"},
    ]
    other = tmp_path / "other"
    code, out, _ = cir("cache", "import", file, "--cache", other)
    assert code == 0 and out.startswith(f"{file}: 4 rows new, 0 already there\n")
    assert rows(other) == rows(folder)
    assert cir("cache", "import", file, "--cache", other)[1].startswith(f"{file}: 0 rows new, 4 already")
    assert rows(other) == rows(folder)
    assert cir("cache", "export", again, "--cache", other)[0] == 0
    assert again.read_bytes() == file.read_bytes()


def test_one_model_alone(folder: Path, tmp_path: Path, cir: Cir) -> None:
    file = tmp_path / "b.jsonl"
    assert cir("cache", "export", file, "--model", "b@1", "--cache", folder)[0] == 0
    assert [json.loads(line).get("verdict") for line in file.open()] == [None, "04" * 32]
    code, out, err = cir("cache", "export", file, "--model", "c@1", "--cache", folder)
    assert (code, out) == (2, "") and "nothing of model 'c@1': choose a@1, b@1; or leave out" in err
    assert cir("cache", "import", file, "--cache", tmp_path / "other")[0] == 0
    assert rows(tmp_path / "other") == [Entry(SAID, VERDICTS[SAID], "b@1")]


def test_an_export_replaces_an_export_and_nothing_else(folder: Path, tmp_path: Path, cir: Cir) -> None:
    code, _, err = cir("cache", "export", folder / "answers.sqlite", "--cache", folder)
    assert code == 2 and "answers.sqlite exists and is no export; name a new file" in err
    assert len(rows(folder)) == 4
    (tmp_path / "file").write_text("a file\n")
    code, _, err = cir("cache", "export", tmp_path / "file" / "x.jsonl", "--cache", folder)
    assert code == 2 and "x.jsonl cannot be written" in err
    file = tmp_path / "out.jsonl"
    for _ in range(2):
        assert cir("cache", "export", file, "--cache", folder)[0] == 0
    assert not list(tmp_path.glob(".*"))


GOOD_ANSWER = {
    "answer": "0a" * 32,
    "text": "x",
    "finish_reason": "stop",
    "prompt_tokens": 1,
    "completion_tokens": 1,
    "class": "good",
    "agent": "caption",
}
GOOD_VERDICT = {"verdict": "0b" * 32, "p_true": 0.5, "prompt_tokens": 1, "model": "m"}


def write_export(file: Path, *lines: dict[str, Any] | str, answers: int = 1, verdicts: int = 1) -> Path:
    header = {"format": "cir-answers", "version": 1, "answers": answers, "verdicts": verdicts, "models": {}}
    texts = [line if isinstance(line, str) else json.dumps(line) + "\n" for line in (header, *lines)]
    file.write_text("".join(texts))
    return file


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        ("{not json}\n", "line 3 cannot be read (Expecting property name"),
        ('{"verdict": "0b0b', "line 3 cannot be read (Unterminated string starting at) and ends the file"),
        ("\n", "line 3 cannot be read (Expecting value)"),
        ("[1]\n", "line 3 cannot be read (it is no JSON object)"),
        ("[" * 100_000 + "\n", "line 3 cannot be read (maximum recursion"),
        (
            GOOD_VERDICT | {"verdict": "0b" * 31},
            "line 3 is no row of a response cache: its key has not 32 by",
        ),
        (
            GOOD_VERDICT | {"verdict": "0z" * 32},
            "line 3 is no row of a response cache: its key has not 32 by",
        ),
        (GOOD_VERDICT | {"verdict": 7}, "line 3 is no row of a response cache: its key has not 32 bytes"),
        (GOOD_VERDICT | {"p_true": 1.0001}, "line 3 is no row of a response cache: p_true is no number in"),
        (GOOD_VERDICT | {"p_true": float("nan")}, "line 3 is no row of a response cache: p_true is no numb"),
        (GOOD_VERDICT | {"p_true": True}, "line 3 is no row of a response cache: p_true is no number in"),
        (GOOD_VERDICT | {"p_true": "0.5"}, "line 3 is no row of a response cache: p_true is no number in"),
        (GOOD_VERDICT | {"prompt_tokens": 2**70}, "line 3 is no row of a response cache: a number of tokens"),
        (GOOD_VERDICT | {"model": 1}, "line 3 has a model that is no text"),
        (GOOD_VERDICT | {"model": "\ud800"}, "line 3 has a text with half of a surrogate pair"),
        (GOOD_ANSWER | {"class": "fine"}, "line 3 is no row of a response cache: class is none of good,"),
        (GOOD_ANSWER | {"class": ["good"]}, "line 3 is no row of a response cache: class is none of good,"),
        (GOOD_ANSWER | {"finish_reason": "end"}, "line 3 is no row of a response cache: finish_reason is"),
        (GOOD_ANSWER | {"text": None}, "line 3 is no row of a response cache: text or agent is no text"),
        (GOOD_ANSWER | {"text": "\udfff"}, "line 3 has a text with half of a surrogate pair"),
        (GOOD_ANSWER | {"prompt": "x"}, "line 3 has the fields agent, answer, class"),
        ({"verdict": "0b" * 32, "p_true": 0.5}, "line 3 has the fields p_true, verdict, not p_true, prompt"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_imported(
    folder: Path, tmp_path: Path, cir: Cir, bad: dict[str, Any] | str, fault: str
) -> None:
    before = rows(folder)
    file = write_export(tmp_path / "in.jsonl", GOOD_ANSWER, bad, GOOD_VERDICT)
    if isinstance(bad, str) and not bad.endswith("\n"):
        file = write_export(tmp_path / "in.jsonl", GOOD_ANSWER, bad)
    code, out, err = cir("cache", "import", file, "--cache", folder)
    assert (code, out) == (2, "") and "Traceback" not in err
    assert f"in.jsonl, {fault}" in err and "nothing was taken over" in err
    assert rows(folder) == before


def test_files_that_are_no_whole_export(folder: Path, tmp_path: Path, cir: Cir) -> None:
    before = rows(folder)

    def refusal(file: Path) -> str:
        code, out, err = cir("cache", "import", file, "--cache", folder)
        assert (code, out) == (2, "") and "Traceback" not in err
        assert rows(folder) == before
        return err

    cut = write_export(tmp_path / "cut.jsonl", GOOD_ANSWER, answers=1, verdicts=1)
    assert (
        "ends after line 2 with 1 answers, 0 verdicts, and its first line promises 1 answers, 1 verdicts"
        in (refusal(cut))
    )
    other = tmp_path / "other.jsonl"
    other.write_text('{"format": "rankings"}\n')
    assert "line 1 is not that of an export" in refusal(other)
    other.write_text("")
    assert "line 1 is not that of an export" in refusal(other)
    other.write_text('{"format": "cir-answers", "version": 2}\n')
    assert "has version 2, not 1: take it in with the version of cir_utils that wrote it" in refusal(other)
    other.write_text('{"format": "cir-answers", "version": 1, "models": {}}\n')
    assert "line 1 lacks the numbers" in refusal(other)
    other.write_bytes(b'{"format": "\xff"}\n')
    assert "line 1 cannot be read ('utf-8' codec" in refusal(other)
    assert "nowhere.jsonl cannot be read (No such file" in refusal(tmp_path / "nowhere.jsonl")


def test_rows_that_differ_are_refused_unless_replaced(folder: Path, tmp_path: Path, cir: Cir) -> None:
    before = rows(folder)
    same = {"verdict": SAID.hex(), **VERDICTS[SAID]._asdict()}
    other = {"verdict": SEEN.hex(), "p_true": 0.75, "prompt_tokens": 91, "model": "a@1"}
    file = write_export(tmp_path / "in.jsonl", GOOD_VERDICT, other, same, answers=0, verdicts=3)
    code, out, err = cir("cache", "import", file, "--cache", folder)
    assert (code, out) == (2, "")
    assert f"1 rows differ from those that the response cache {folder / 'answers.sqlite'} holds" in err
    assert f"(first: verdicts, key {SEEN.hex()})" in err and "--replace" in err
    assert rows(folder) == before
    code, out, _ = cir("cache", "import", file, "--cache", folder, "--replace")
    assert code == 0 and out.startswith(f"{file}: 1 rows new, 1 already there, 1 replaced\n")
    after = {entry.key: entry for entry in rows(folder)}
    assert after[SEEN] == Entry(SEEN, StoredVerdict(0.75, 91), "a@1")
    assert after[SAID] == Entry(SAID, VERDICTS[SAID], "b@1")
    assert after[b"\x0b" * 32] == Entry(b"\x0b" * 32, StoredVerdict(0.5, 1), "m")
    # A file that contradicts itself is refused too.
    file = write_export(tmp_path / "twice.jsonl", other, other | {"p_true": 0.5}, answers=0, verdicts=2)
    assert cir("cache", "import", file, "--cache", tmp_path / "fresh")[0] == 2
    assert rows(tmp_path / "fresh") == []


# --- replay -------------------------------------------------------------------------------------------------


def test_a_run_is_replayed_from_an_export_without_the_mllm(
    tmp_path: Path, cir: Cir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X^R with the shipped models on a small gallery, and again elsewhere from the exported answers alone."""
    world = write_world(tmp_path / "world", splits=("val",))

    def run(name: str, *more: str | Path) -> tuple[int, str, str]:
        usual = ("--benchmark", "mini-circo", "--split", "val", "--root", world, "--limit", "2")
        return cir(
            "run", "xr", *usual, "--set", "k_prime=3", "--device", "cpu", "--out", tmp_path / name, *more
        )

    code, _, err = run("first", "--cache", tmp_path / "here")
    assert code == 0, err
    first = load_run(tmp_path / "first")
    model = first.record["inputs"]["mllm"]
    cost = first.record["cost"]
    assert model.startswith("mini-vlm@") and cost["cached_calls"] < cost["mllm_calls"]

    def unwanted(*_: Any) -> None:
        raise AssertionError("the MLLM was loaded")

    monkeypatch.setattr(workbench.LocalMLLM, "__init__", unwanted)
    file, there = tmp_path / "answers.jsonl", tmp_path / "there"
    assert cir("cache", "export", file, "--cache", tmp_path / "here", "--model", model)[0] == 0
    code, out, _ = cir("cache", "import", file, "--cache", there)
    assert code == 0 and out.endswith(f"--mllm replay:{model}\n")
    code, _, err = run("second", "--cache", there, "--mllm", f"replay:{model}")
    assert code == 0, err
    second = load_run(tmp_path / "second")
    again = second.record["cost"]
    assert again["cached_calls"] == again["mllm_calls"] == cost["mllm_calls"]
    assert (again["prompt_tokens"], again["completion_tokens"]) == (
        cost["prompt_tokens"],
        cost["completion_tokens"],
    )
    assert second.record["inputs"]["mllm"] == model
    assert second.record["choices"]["mllm"]["value"] == f"replay:{model}"
    for name in ("rankings.parquet", "metrics.json", "traces.jsonl"):
        assert (tmp_path / "second" / name).read_bytes() == (tmp_path / "first" / name).read_bytes(), name

    # More than was exported cannot be had, and the run says what is missing.
    code, out, err = run("third", "--cache", there, "--mllm", f"replay:{model}", "--limit", "3")
    assert (code, out) == (2, "") and f"replay of {model}: the response cache lacks" in err
    assert "the first to the prompt" in err and "cir cache import FILE" in err
    code, out, err = run("third", "--cache", there, "--mllm", "replay:other@1")
    assert code == 2 and f"it holds answers of {model}; copy the model's identifier" in err
    code, out, err = run("third", "--cache", there, "--mllm", "replay:")
    assert code == 2 and "MLLM replay: names no model" in err
    assert not (tmp_path / "third").exists()


def test_what_the_stand_in_says_of_questions_that_nobody_answered() -> None:
    mllm = ReplayMLLM("replay:server:m@host/v1", ["server:m@host/v1"])
    assert mllm.identifier == "server:m@host/v1" and mllm.structured
    assert not ReplayMLLM("replay:mini-vlm@1/float32").structured
    assert mllm.generate([]) == [] and mllm.verdicts([]) == []
    with pytest.raises(Unanswered, match=r"lacks 2 answers, the first to the prompt 'Say it\.'\.\.\. with a"):
        mllm.generate([Request("Say it.", (Path("x/a.png"),))] * 2)
    with pytest.raises(InputError, match="lacks 2 verdicts, the first about a caption: 'it is red'"):
        mllm.verdicts([VerifyItem((), "a car", ("it is red", "it is blue"))])


def test_doctor_knows_whether_the_answers_are_there(folder: Path, tmp_path: Path) -> None:
    found = doctor._replay("replay:a@1", folder)
    assert found.ok and found.found == f"2 answers, 1 verdicts in {folder}"
    found = doctor._replay("replay:c@1", folder)
    assert not found.ok and found.found.endswith("it has those of: a@1, b@1") and "import" in found.mend
    assert not doctor._replay("replay:a@1", tmp_path / "none").ok
