"""The cache of answers: what its key holds, what it keeps, several processes, and speed."""

import multiprocessing
import os
import sqlite3
import time

import numpy as np
import pytest

from cir_utils.errors import InputError
from cir_utils.response_cache import (
    ImageHashes,
    ResponseCache,
    StoredAnswer,
    StoredVerdict,
    answer_key,
    verdict_key,
    verdict_keys,
)

KEY = {
    "model": "m@1",
    "prompt": "p",
    "images": ("a", "b"),
    "max_new_tokens": 8,
    "temperature": 0.5,
    "seed": 1,
}


@pytest.mark.parametrize(
    "change",
    [
        {"model": "m@2"},
        {"prompt": "p "},
        {"images": ("b", "a")},
        {"images": ("a",)},
        {"images": ("ab",)},
        {"max_new_tokens": 9},
        {"temperature": 0.0},
        {"seed": 2},
        {"repetition_penalty": 1.05},
    ],
)
def test_everything_that_decides_the_answer_is_in_the_key(change):
    assert len(answer_key(**KEY)) == 32 and answer_key(**KEY) == answer_key(**KEY)
    assert answer_key(**{**KEY, **change}) != answer_key(**KEY)


def test_keys_are_those_of_earlier_versions():
    """Answers that were published under a key are found again."""
    assert answer_key(**KEY).hex() == "2918ab69144290886744ae158140edcdb79b932f6438264ac74dba637151d8c4"
    assert answer_key(**KEY, repetition_penalty=1.0) == answer_key(**KEY)


def test_a_greedy_answer_does_not_depend_on_the_seed():
    greedy = {**KEY, "temperature": 0.0}
    assert answer_key(**greedy) == answer_key(**{**greedy, "seed": 9})


def test_verdict_keys_tell_prefix_from_statement():
    assert verdict_keys("m", "ab", ["i"], ["c", "d"]) == [
        verdict_key("m", "ab", ["i"], "c"),
        verdict_key("m", "ab", ["i"], "d"),
    ]
    assert verdict_key("m", "ab", [], "c") != verdict_key("m", "a", [], "bc")
    assert verdict_key("m", "ab", ["i"], "c") != verdict_key("m", "ab", [], "c")


def test_answers_and_verdicts_come_back_and_are_counted(tmp_path):
    answer = StoredAnswer(
        '{"a": "ü \ud83d"}'.encode("utf-8", "replace").decode(), "length", 7, 3, "cut", "caption"
    )
    with ResponseCache(tmp_path / "deep" / "answers.sqlite") as cache:
        assert cache.get_answers([b"1" * 32]) == {}
        cache.put_answers({b"1" * 32: answer})
        cache.put_verdicts({b"1" * 32: StoredVerdict(0.25, 40)})
    with ResponseCache(tmp_path / "deep" / "answers.sqlite") as cache:
        assert cache.get_answers([b"2" * 32, b"1" * 32, b"1" * 32]) == {b"1" * 32: answer}
        assert (cache.hits, cache.misses) == (2, 1)
        assert cache.get_verdicts([b"1" * 32])[b"1" * 32].p_true == 0.25
        assert cache.counts() == {"answers": 1, "verdicts": 1}
        cache.put_verdicts({b"1" * 32: StoredVerdict(0.5, 41)})
        assert cache.get_verdicts([b"1" * 32]) == {b"1" * 32: StoredVerdict(0.5, 41)}


def test_in_memory_without_a_path():
    cache = ResponseCache()
    cache.put_verdicts({b"k": StoredVerdict(1.0, 1)})
    assert cache.counts() == {"answers": 0, "verdicts": 1}


def test_many_verdicts_at_once(tmp_path):
    cache = ResponseCache(tmp_path / "answers.sqlite")
    keys = verdict_keys("m", "prefix", ["i"], [f"statement {i}" for i in range(20_000)])
    cache.put_verdicts({key: StoredVerdict(i / 20_000, i) for i, key in enumerate(keys)})
    found = cache.get_verdicts(keys)
    assert [found[key] for key in keys] == [StoredVerdict(i / 20_000, i) for i in range(20_000)]


def _write(path, worker):
    with ResponseCache(path) as cache:
        for block in range(10):
            cache.put_verdicts(
                {f"{worker} {block} {i}".encode(): StoredVerdict(0.5, worker) for i in range(50)}
            )


def test_several_processes_write_one_file(tmp_path):
    path = tmp_path / "answers.sqlite"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write, args=(path, worker)) for worker in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert ResponseCache(path).counts()["verdicts"] == 1500


def test_a_failed_write_leaves_nothing(tmp_path):
    cache = ResponseCache(tmp_path / "answers.sqlite")

    class Broken(dict):
        def items(self):
            yield b"good", StoredVerdict(0.5, 1)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        cache.put_verdicts(Broken())
    assert cache.counts()["verdicts"] == 0
    cache.put_verdicts({b"next": StoredVerdict(0.5, 1)})


def test_damaged_foreign_and_unwritable_files_are_input_errors(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("these are notes, and no database at all " * 50)
    with pytest.raises(InputError, match="notes.txt is damaged or no cache .*; move it away"):
        ResponseCache(text)
    newer = tmp_path / "newer.sqlite"
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version=99")
    with pytest.raises(InputError, match="has format 99, not 1"):
        ResponseCache(newer)
    with pytest.raises(InputError, match="notes.txt.*choose another place"):
        ResponseCache(text / "answers.sqlite")


def test_a_file_that_was_emptied_is_said_and_made_anew(tmp_path):
    path = tmp_path / "answers.sqlite"
    path.write_bytes(b"")
    said = []
    with ResponseCache(path, said.append) as cache:
        cache.put_verdicts({b"k": StoredVerdict(0.5, 1)})
    assert said == [f"response cache {path} is an empty file: it is made anew"]
    with ResponseCache(path, said.append) as cache:
        assert cache.get_verdicts([b"k"]) == {b"k": StoredVerdict(0.5, 1)}
    assert len(said) == 1


def test_whole_numbers_and_numpy_numbers_come_back_sound(tmp_path):
    said = []
    with ResponseCache(tmp_path / "answers.sqlite", said.append) as cache:
        cache.put_verdicts({b"a": StoredVerdict(1, 3), b"b": StoredVerdict(np.float32(0.5), np.int64(4))})
        assert cache.get_verdicts([b"a", b"b"]) == {b"a": StoredVerdict(1.0, 3), b"b": StoredVerdict(0.5, 4)}
    assert said == []


def _hold(path, log):
    with ResponseCache(path) as cache, cache.alone([b"one", b"two"]):
        with open(log, "a") as stream:
            stream.write(f"in {os.getpid()}\n")
            stream.flush()
            time.sleep(0.05)
            stream.write(f"out {os.getpid()}\n")


def test_one_process_at_a_time_computes_a_block(tmp_path):
    context = multiprocessing.get_context("spawn")
    log = tmp_path / "log"
    workers = [context.Process(target=_hold, args=(tmp_path / "c.sqlite", log)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    lines = log.read_text().split()
    assert lines[::2] == ["in", "out"] * 3 and lines[1::4] == lines[3::4]


def test_image_hashes_follow_the_bytes(tmp_path):
    hashes = ImageHashes()
    picture = tmp_path / "a.png"
    picture.write_bytes(b"one")
    first = hashes(picture)
    assert hashes(str(picture)) == first and len(first) == 64
    picture.write_bytes(b"three")
    os.utime(picture, ns=(1, 1))
    assert hashes(picture) != first
    with pytest.raises(InputError, match="b.png cannot be read"):
        hashes(tmp_path / "b.png")


def test_a_schema_that_is_no_text_is_one_line(tmp_path):
    path = tmp_path / "answers.sqlite"
    with ResponseCache(path) as cache:
        cache.get_answers([b"k" * 32])
    data = bytearray(path.read_bytes())
    place = data.index(b"CREATE TABLE answers")
    data[place + 8] = 0xFC  # within TABLE: the message of the syntax error quotes it
    path.write_bytes(data)
    with pytest.raises(InputError, match="answers.sqlite is damaged or no cache .*; move it away"):
        ResponseCache(path).get_answers([b"k" * 32])
