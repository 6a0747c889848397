"""What a second run reuses: everything where nothing changed, and where one input changed exactly what does
not depend on it.

Most runs ask an MLLM whose answers are known and do not change with the wording, so that what a changed
prompt or picture decides can be counted by hand; a tiny random one stands for changed weights. A stored batch
of pictures holds four here, so that one changed picture is told from all."""

from __future__ import annotations

import functools
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import load_file, save_file
from small_world import SCENE_OF, Oracle, write_world
from tiny_models import write_tiny_vlm

from cir_utils import feature_store, prompts, workbench
from cir_utils.cli import main
from cir_utils.methods import resolve_settings
from cir_utils.runs import Run, run_method
from cir_utils.workbench import ANSWERS, open_workbench

#: What X^R asks for four queries and gets texts for: the references are in the gallery, and two queries each
#: lead to the same question prompt.
TEXTS_ASKED = Counter(caption=24, imagine_text=4, imagine_vision=4, questions=2)


@dataclass
class Work:
    """A run, and what it did anew: calls of the MLLM by agent, pictures and texts encoded, each beside how
    many of them were reused."""

    run: Run
    asked: Counter[str]
    images: tuple[int, int]
    texts: tuple[int, int]

    def verified(self) -> set[tuple[int, str]]:
        """The pairs of picture and statement that this run of X^R needed."""
        return {
            (row["image"], statement["statement"])
            for trace in self.run.traces
            for row in trace["verified"]
            if not row["not_asked"]
            for statement in trace["questions"]
        }


@dataclass
class Place:
    """A folder with ``world``, ``clip``, ``prompts`` and ``cache``, and the first runs there by method."""

    folder: Path
    first: dict[str, Work]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_clip: Path) -> Place:
    """Never written to: tests work on copies."""
    folder = tmp_path_factory.mktemp("made")
    write_world(folder / "world")
    shutil.copytree(tiny_clip, folder / "clip")
    shutil.copytree(Path(prompts.__file__).parent / "prompts", folder / "prompts")
    with pytest.MonkeyPatch.context() as patch:
        prepare(folder, patch)
        return Place(folder, {method: work(folder, method) for method in ("xr", "sdr-cir")})


@pytest.fixture
def place(made: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A copy, to change one thing in."""
    shutil.copytree(made.folder, tmp_path / "copy")
    prepare(tmp_path / "copy", monkeypatch)
    yield Place(tmp_path / "copy", made.first)
    prompts.load_prompt.cache_clear()


def prepare(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Prompts come from ``folder``, and a stored batch of pictures holds four."""
    patch.setattr(prompts, "files", lambda package: folder)
    prompts.load_prompt.cache_clear()
    small = functools.partial(feature_store.image_features, shard_size=4)
    patch.setattr(workbench, "image_features", small)


def work(folder: Path, method: str = "xr", **options: object) -> Work:
    """Run on the first four queries."""
    oracle = Oracle()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workbench, "LocalMLLM", lambda spec, device: oracle.mllm())
        bench = open_workbench(
            "mini-circo", "mini", "val", root=folder / "world", device="cpu", limit=4,
            cache_dir=folder / "cache", encoder=f"local-dir:{folder / 'clip'}", mllm="known",
            **options,  # type: ignore[arg-type]
        )  # fmt: skip
        given = {"k_prime": 6} if method == "xr" else {}
        run = run_method(bench, method, resolve_settings(method, bench.settings, given))
    return Work(run, Counter(oracle.asked), *encoded(run.record["caches"]))


def encoded(said: list[str]) -> list[tuple[int, int]]:
    """Pictures, then texts: how many were computed and how many reused."""
    found = []
    for what in ("images", "texts"):
        rows = [re.search(rf"(\d+) {what} reused from the cache, (\d+) computed", text) for text in said]
        found.append((sum(int(row[2]) for row in rows if row), sum(int(row[1]) for row in rows if row)))
    return found


def verdicts(pairs: set[tuple[int, str]], known: set[tuple[int, str]], changed: int = -1) -> Counter[str]:
    """What is asked about ``pairs`` of picture and statement where ``known`` were asked before, and one
    picture was changed since, but not its caption."""
    fresh = pairs - known
    read = {(SCENE_OF[image], statement) for image, statement in fresh}
    seen = fresh | {pair for pair in pairs if pair[0] == changed}
    return Counter(verify_caption=len(read), verify_picture=len(seen))


def change_prompt(folder: Path, agent: str) -> None:
    """One space more in the file that this benchmark's agent reads."""
    path = folder / "prompts" / f"{prompts.load_prompt('mini', agent, 'scene').label}.txt"
    path.write_text(path.read_text().replace(" ", "  ", 1))
    prompts.load_prompt.cache_clear()


def change_weights(path: Path) -> None:
    """One weight of the file, a little."""
    state = load_file(path)
    weight = state[sorted(state)[0]]
    weight.view(-1)[0] += 0.5
    save_file(state, path, metadata={"format": "pt"})


def test_the_first_run_computes_everything_once(made: Place) -> None:
    first = made.first["xr"]
    pairs = first.verified()
    assert first.asked == TEXTS_ASKED + verdicts(pairs, set()) and len(pairs) > 20
    assert first.images == (24, 0) and first.texts[0] > 24
    assert made.first["sdr-cir"].asked == {"selective_cot": 4}


@pytest.mark.parametrize("method", ["xr", "sdr-cir"])
def test_changing_nothing_reuses_everything(place: Place, method: str) -> None:
    first, again = place.first[method], work(place.folder, method)
    cost = again.run.record["cost"]
    assert not again.asked and cost["cached_calls"] == cost["mllm_calls"] > 0
    assert again.images == (0, 24) and again.texts == (0, sum(first.texts))
    assert cost["mllm_calls"] == first.run.record["cost"]["mllm_calls"]
    assert again.run.rankings == first.run.rankings and again.run.traces == first.run.traces


@pytest.mark.parametrize(
    ("method", "agent"),
    [
        *(("xr", agent) for agent in (*TEXTS_ASKED, "verify_caption", "verify_picture")),
        ("sdr-cir", "selective_cot"),
    ],
)
def test_a_space_in_a_prompt_asks_its_agent_anew_and_nobody_else(
    place: Place, method: str, agent: str
) -> None:
    first = place.first[method]
    change_prompt(place.folder, agent)
    again = work(place.folder, method)
    assert again.asked == {agent: first.asked[agent]} and first.asked[agent] >= 2
    assert again.images == (0, 24) and again.texts == (0, sum(first.texts))
    assert again.run.rankings == first.run.rankings
    old, new = (run.record["inputs"]["prompts"] for run in (first.run, again.run))
    assert {name.partition(".")[0] for name in old if old[name] != new[name]} == {agent}


def test_a_space_in_a_prompt_that_is_not_used_asks_nothing(place: Place) -> None:
    change_prompt(place.folder, "selective_cot")
    assert not work(place.folder).asked


def test_generation_settings_ask_anew_for_texts_and_not_for_verdicts(place: Place) -> None:
    for options in ({"temperature": 0.5}, {"temperature": 0.5, "seed": 43}, {"max_tokens": 77}):
        again = work(place.folder, **options)  # type: ignore[arg-type]
        assert again.asked == TEXTS_ASKED, options
        assert again.images == (0, 24) and again.texts == (0, sum(place.first["xr"].texts))
        assert not work(place.folder, **options).asked, options  # type: ignore[arg-type]
    assert not work(place.folder, seed=43).asked  # greedy answers have no seed


def test_another_encoder_encodes_everything_and_asks_no_more_than_it_must(place: Place) -> None:
    first = place.first["xr"]
    texts, known = sum(first.texts), first.verified()
    for options in ({"precision": "bfloat16"}, {"preprocessing": "targetpad-1.25"}, {}):
        if not options:
            change_weights(place.folder / "clip" / "open_clip_model.safetensors")
        again = work(place.folder, **options)
        assert (again.images, again.texts) == ((24, 0), (texts, 0)), options
        # Another ranking can bring other candidates.
        assert again.asked == +verdicts(again.verified(), known), options
        known |= again.verified()
        repeated = work(place.folder, **options)
        assert (repeated.images, repeated.texts, repeated.asked) == ((0, 24), (0, texts), Counter()), options


@pytest.mark.parametrize("role", ["candidate", "reference"])
def test_the_bytes_of_a_picture_ask_and_encode_anew_what_saw_it(place: Place, role: str) -> None:
    first = place.first["xr"]
    known = first.verified()
    references = [trace["reference"] for trace in first.run.traces]
    image = references[0] if role == "reference" else min({i for i, _ in known} - set(references))
    uses = references.count(image)
    assert uses == (role == "reference")
    path = place.folder / "world" / "COCO2017_unlabeled" / "unlabeled2017" / f"{image:012d}.jpg"
    before = path.read_bytes()
    with Image.open(path) as picture:
        picture.save(path, quality=90)
    assert path.read_bytes() != before
    again = work(place.folder)
    expected = Counter(caption=1, imagine_vision=uses) + verdicts(again.verified(), known, image)
    assert again.asked == +expected and (role == "reference" or expected["verify_picture"] >= 1)
    assert again.images == (4, 20) and again.texts == (0, sum(first.texts))  # its batch alone
    assert not work(place.folder).asked


def test_the_command_shows_what_it_reused_and_other_weights_answer_for_themselves(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tiny random MLLM: its answers are of no use, but they are its own."""
    vlm = write_tiny_vlm(tmp_path / "vlm", pixels=56)
    world, clip = place.folder / "world", f"local-dir:{place.folder / 'clip'}"

    def run(cache: str) -> str:
        arguments = ["run", "xr", "--benchmark", "mini-circo", "--split", "val", "--device", "cpu"]
        arguments += ["--limit", "4", "--max-tokens", "2", "--set", "k_prime=2", "--mllm", str(vlm)]
        arguments += ["--root", str(world), "--encoder", clip]
        arguments += ["--cache", str(tmp_path / cache), "--out", str(tmp_path / "run")]
        assert main(arguments) == 0
        return capsys.readouterr().out

    def rows(cache: str) -> set[tuple[str, bytes]]:
        with sqlite3.connect(tmp_path / cache / ANSWERS) as file:
            tables = ("answers", "verdicts")
            return {(table, row[0]) for table in tables for row in file.execute(f"SELECT key FROM {table}")}

    run("shared")
    first = rows("shared")
    assert {table for table, _ in first} == {"answers", "verdicts"}
    shown = run("shared")
    calls, cached = re.findall(r"MLLM calls: ([\d,]+), of them ([\d,]+) from the cache", shown)[0]
    assert calls == cached and int(calls) >= len(first)
    assert rows("shared") == first
    assert "24 images reused from the cache, 0 computed" in shown
    assert set(re.findall(r"(\d+) computed", shown)) == {"0"}

    change_weights(vlm / "model.safetensors")
    run("shared")
    run("alone")
    assert rows("shared") == first | rows("alone") and not first & rows("alone")
