"""The server client against a real server: ``transformers serve`` with the shipped mini-VLM on loopback.

Both clients run `cir run sdr-cir` and `xr` on four queries of mini-circo over a gallery of 22 pictures. What
must be equal: every answer's text, every True/False decision, and the rankings, position by position (the
CLIP features and the scoring are the same code on the same texts, so no tolerance is needed for them).
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from cir_utils import cli
from cir_utils.mllm import LocalMLLM, Request, VerifyItem, generated_verdicts
from cir_utils.profiles import PACKAGE
from cir_utils.runs import load_run

SERVING = ("openai", "fastapi", "uvicorn", "accelerate")
MISSING = [name for name in SERVING if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (the dev extra has them)"),
]
VLM = PACKAGE / "mini" / "models" / "mini-vlm"
CIRCO = PACKAGE / "mini" / "circo"
PICTURES = Path("COCO2017_unlabeled") / "unlabeled2017"
LISTING = Path("COCO2017_unlabeled") / "annotations" / "image_info_unlabeled2017.json"
#: Seconds to wait for the server: importing the libraries takes some on a busy machine.
PATIENCE = 600


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first four queries of mini-circo test, with their own pictures and some others as the gallery."""
    root = tmp_path_factory.mktemp("small")
    rows = json.loads((CIRCO / "annotations" / "test.json").read_text())[:4]
    kept = dict.fromkeys(i for row in rows for i in (row["reference_img_id"], *row["gt_img_ids"][:2]))
    for row in rows:
        row["gt_img_ids"] = row["gt_img_ids"][:2]
        row["target_img_id"] = row["gt_img_ids"][0]
    listed = json.loads((CIRCO / LISTING).read_text())["images"]
    others = (entry["id"] for entry in listed[:: len(listed) // 20])
    ids = sorted({*kept, *[i for i in others if i not in kept][:10]})[: len(kept) + 10]
    for folder in (PICTURES, LISTING.parent, Path("annotations")):
        (root / folder).mkdir(parents=True)
    for image in ids:
        shutil.copy(CIRCO / PICTURES / f"{image:012d}.jpg", root / PICTURES)
    entries = [entry for entry in listed if entry["id"] in ids]
    (root / LISTING).write_text(json.dumps({"images": entries}))
    (root / "annotations" / "test.json").write_text(json.dumps(rows))
    return root


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    """The base URL of the running server; it is stopped at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "server.log"
    command = [
        sys.executable, "-c", "from transformers.cli.transformers import main; main()", "serve", str(VLM),
        "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32",
    ]  # fmt: skip
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with open(log, "wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env=os.environ | quiet)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                direct.open(f"http://127.0.0.1:{port}/health", timeout=2).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    pytest.fail(f"transformers serve did not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.mark.parametrize("method", ["sdr-cir", "xr"])
def test_both_clients_give_the_same_rankings(
    method: str, server: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("CIR_SERVER_URL", server)
    monkeypatch.setenv("CIR_SERVER_KEY", "sk-nobody-needs-this")
    monkeypatch.delenv("CIR_SERVER_NAME", raising=False)
    runs = {}
    for name, mllm in (("local", str(VLM)), ("server", f"server:{VLM}")):
        arguments = ["run", method, "-b", "mini-circo", "--root", str(small), "--mllm", mllm]
        arguments += ["--limit", "4", "--set", "alpha=0.15"] if method == "sdr-cir" else ["--limit", "2"]
        arguments += ["--set", "k_prime=3"] if method == "xr" else []
        arguments += ["--device", "cpu", "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / name)]
        assert cli.main(arguments) == 0
        runs[name] = load_run(tmp_path / name, whole=True)
    local, served = runs["local"], runs["server"]
    assert len(local.rankings) == (4 if method == "sdr-cir" else 2)
    assert served.rankings == local.rankings
    assert served.metrics == local.metrics
    for mine, other in zip(local.traces, served.traces, strict=True):
        assert mine["said"] == other["said"]
        assert [answer["attempts"] for answer in mine["agents"]] == [
            answer["attempts"] for answer in other["agents"]
        ]
        if method == "xr":
            for one, two in zip(mine["verified"], other["verified"], strict=True):
                decided = [[p > 0.5 for p in own] for own in one["p_true"].values()]
                assert decided == [[p > 0.5 for p in own] for own in two["p_true"].values()]
                assert all(p in (0.0, 1.0) for own in two["p_true"].values() for p in own)
    account = served.record["inputs"]["server"]
    asked = local.record["cost"]["mllm_calls"] - local.record["cost"]["cached_calls"]
    assert account["generate_calls"] + account["verify_calls"] == asked > 0
    # Tokens are counted by the server as by us; for verification it also counts the tokens that it generated.
    assert served.record["cost"]["prompt_tokens"] == local.record["cost"]["prompt_tokens"]
    assert served.record["answers"] == local.record["answers"]
    assert b"sk-nobody-needs-this" not in b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )


def test_doctor_sees_the_server(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cir_utils.doctor import _server

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("CIR_SERVER_URL", server)
    check = _server(f"server:{VLM}")
    assert check.ok and check.found.startswith(f"{server} answers")


def test_generated_and_computed_verdicts_agree() -> None:
    """Verification by generation and from one forward pass: the same decisions on pictures and captions."""
    mllm = LocalMLLM(VLM)
    rows = json.loads((CIRCO / "annotations" / "test.json").read_text())[:6]
    statements = ("it is a drawing", "there are two of them", "the picture shows a red car", "it is night")
    items = [
        VerifyItem((CIRCO / PICTURES / f"{row['reference_img_id']:012d}.jpg",), "true or false: ", statements)
        for row in rows
    ]
    items.append(VerifyItem((), "caption: a red car at night\ntrue or false: ", statements))
    computed, generated = mllm.verdicts(items), generated_verdicts(mllm, items)
    assert {verdict.p_true for row in generated for verdict in row} == {0.0, 1.0}
    for one, two in zip(computed, generated, strict=True):
        assert [verdict.p_true > 0.5 for verdict in one] == [verdict.p_true == 1.0 for verdict in two]
        assert [verdict.prompt_tokens for verdict in one] == [verdict.prompt_tokens for verdict in two]
    assert mllm.generate([Request("true or false: it is night", items[0].images)])[0].text in (
        "true",
        "false",
    )
