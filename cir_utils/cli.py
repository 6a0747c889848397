"""The command line: ``cir`` (also ``python -m cir_utils``).

Names are checked here, before any model library is imported, so that ``cir --help`` and a wrong name answer
at once. Exit codes: 0 done, 2 wrong usage or input (one line on stderr that says how to mend it), 1 anything
else."""

from __future__ import annotations

import contextlib
import errno
import json
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from cir_utils import __version__
from cir_utils.errors import InputError
from cir_utils.methods import (
    METHODS,
    PROFILE_METHODS,
    check_tunable,
    get_method,
    parse_assignments,
    resolve_settings,
    tunable,
)  # fmt: skip
from cir_utils.profiles import check_split, choose, default_cache_dir, load_profile

app = typer.Typer(
    name="cir",
    help="Training-free composed image retrieval: SDR-CIR and X^R beside their baselines.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

cache_app = typer.Typer(help="What the cache folder holds, and answers out of it and into another.",
                        no_args_is_help=True)  # fmt: skip
app.add_typer(cache_app, name="cache")

BenchmarkOption = Annotated[
    str, typer.Option("--benchmark", "-b", help="Benchmark, for instance mini-circo.")
]
ProfileOption = Annotated[str, typer.Option("--profile", "-p", help="Profile: mini, laptop or paper.")]
SplitOption = Annotated[
    str | None, typer.Option("--split", "-s", help="Split; default: the one that is reported.")
]
RootOption = Annotated[
    Path | None, typer.Option("--root", help="The benchmark's folder, instead of the profile's.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda[:index].")]
CacheOption = Annotated[
    Path | None, typer.Option("--cache", help="Folder for features and answers; default: CIR_CACHE.")
]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Only the first LIMIT queries.")]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else.")
]
EncoderOption = Annotated[str | None, typer.Option("--encoder", help="CLIP model, instead of the profile's.")]
MllmOption = Annotated[
    str | None,
    typer.Option(
        "--mllm", help="MLLM, instead of the profile's: a folder, hub id, server:MODEL or replay:MODEL."
    ),
]
PrecisionOption = Annotated[
    str | None, typer.Option("--precision", help="CLIP's: float32, bfloat16, or on a GPU float16.")
]
PreprocessingOption = Annotated[
    str | None, typer.Option("--preprocessing", help="CLIP's: clip (the model's own) or targetpad-1.25.")
]
PromptsOption = Annotated[
    str | None, typer.Option("--prompts", help="Prompt set, instead of the profile's: default or mini.")
]
TemperatureOption = Annotated[
    float | None,
    typer.Option("--temperature", help="Of the MLLM, 0 (greedy) to 2, instead of the profile's."),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", help="Of the MLLM's sampling, instead of the profile's.")
]
TokensOption = Annotated[
    int | None,
    typer.Option("--max-tokens", help="Most tokens of an answer, all agents, instead of the profile's."),
]
ConceptOption = Annotated[
    bool, typer.Option("--shared-concept", help="CIRCO: put the shared concept into the text.")
]
GalleryOption = Annotated[
    str, typer.Option("--gallery", help="FashionIQ: original (the split files) or union (the VAL protocol).")
]
ReferenceOption = Annotated[
    bool | None,
    typer.Option(
        "--keep-reference/--remove-reference",
        help="The reference image stays in the ranking, or not; default: the benchmark's rule.",
        show_default=False,
    ),
]
OrdersOption = Annotated[
    bool, typer.Option("--both-orders", help="FashionIQ: average the features of both caption orders.")
]
MissingOption = Annotated[
    str, typer.Option("--missing", help="Pictures that are not there: stop, or leave-out.")
]

#: Errors of a disk that is full, over quota or read-only, and of a file above the size that is allowed.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
#: What wrong usage raises, in every version of typer (some bring their own copy of click).
_USAGE_ERROR: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``argv`` defaults to the process's arguments."""
    warnings.showwarning = _warn
    try:
        code = app(args=None if argv is None else list(argv), prog_name="cir", standalone_mode=False)
        sys.stdout.flush()  # a reader that has gone is found here, not at exit
        if code == 130:  # how typer reports an interruption
            return _fail("interrupted", 1)
        return {None: 0, 0: 0, 2: 2}.get(code, 1)
    except InputError as error:
        return _fail(str(error), 2)
    except _USAGE_ERROR as error:
        message = error.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message, file=sys.stderr)
            return 2
        command = error.ctx.command_path if getattr(error, "ctx", None) else "cir"
        return _fail(f"{' '.join(message.split()).rstrip('.')}; see `{command} --help`", 2)
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted", 1)
    except BrokenPipeError:
        sys.stdout = open("/dev/null", "w")  # nobody reads: do not fail again at exit
        return 1
    except OSError as error:
        if error.errno not in UNWRITABLE:
            traceback.print_exc()
            return 1
        place = error.filename or "a file"
        mend = "make room or name another place, and run again: what was stored before is kept"
        return _fail(f"{place} cannot be written ({error.strerror or error}); {mend}", 2)
    except Exception:
        traceback.print_exc()
        return 1


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit()


@app.command("run")
def run_command(
    method: Annotated[str, typer.Argument(help=f"One of {', '.join(METHODS)}.", metavar="METHOD")],
    benchmark: BenchmarkOption,
    profile: ProfileOption = "mini",
    split: SplitOption = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method, name=value; may be repeated.")
    ] = None,
    limit: LimitOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Run folder; default: a new one under runs/.")
    ] = None,
    root: RootOption = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    encoder: EncoderOption = None,
    precision: PrecisionOption = None,
    preprocessing: PreprocessingOption = None,
    mllm: MllmOption = None,
    prompts: PromptsOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    max_tokens: TokensOption = None,
    shared_concept: ConceptOption = False,
    gallery: GalleryOption = "original",
    keep_reference: ReferenceOption = None,
    both_orders: OrdersOption = False,
    missing: MissingOption = "stop",
    as_json: JsonOption = False,
) -> None:
    """Run one method on one benchmark: a table here, and a run folder with everything."""
    get_method(method)
    chosen = load_profile(profile)
    spec = chosen.benchmark(benchmark)
    check_split(spec, split)
    choose(chosen, prompts=prompts, temperature=temperature, seed=seed, max_tokens=max_tokens)
    resolved = resolve_settings(method, spec.settings, parse_assignments(settings or []))
    with _only_result_on_stdout():
        from cir_utils import runs
        from cir_utils.workbench import open_workbench

        runs.check_out(out)
        bench = open_workbench(
            benchmark, profile, split, root=root, device=device, cache_dir=cache, limit=limit,
            encoder=encoder, precision=precision, preprocessing=preprocessing, mllm=mllm, prompts=prompts,
            temperature=temperature, seed=seed, max_tokens=max_tokens, shared_concept=shared_concept,
            gallery=gallery, reference=_reference(keep_reference), both_orders=both_orders, missing=missing,
        )  # fmt: skip
        run = runs.run_method(bench, method, resolved)
        folder = run.save(out)
    if as_json:
        print(json.dumps(run.summary(), ensure_ascii=False, allow_nan=False))
    else:
        print(runs.describe(run, folder))


@app.command("extract")
def extract_command(
    benchmark: BenchmarkOption,
    profile: ProfileOption = "mini",
    split: SplitOption = None,
    captions: Annotated[
        bool, typer.Option("--captions", help="The MLLM's captions too, which X^R reads.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Spread the work over this many Ray workers.", min=1)
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option("--ray", help="Ray cluster of the workers: auto or HOST:PORT; default: this machine."),
    ] = None,
    root: RootOption = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    encoder: EncoderOption = None,
    precision: PrecisionOption = None,
    preprocessing: PreprocessingOption = None,
    mllm: MllmOption = None,
    prompts: PromptsOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    max_tokens: TokensOption = None,
    gallery: GalleryOption = "original",
    missing: MissingOption = "stop",
    as_json: JsonOption = False,
) -> None:
    """Compute what runs read of the pictures, features and captions, and keep it in the cache."""
    if ray is not None and workers is None:
        raise InputError("--ray names the cluster of Ray workers; say how many with --workers")
    chosen = load_profile(profile)
    spec = chosen.benchmark(benchmark)
    check_split(spec, split)
    choose(chosen, prompts=prompts, temperature=temperature, seed=seed, max_tokens=max_tokens)
    with _only_result_on_stdout():
        from cir_utils import distributed
        from cir_utils.workbench import open_workbench

        bench = open_workbench(
            benchmark, profile, split, root=root, device=device, cache_dir=cache, encoder=encoder,
            precision=precision, preprocessing=preprocessing, mllm=mllm, prompts=prompts,
            temperature=temperature, seed=seed, max_tokens=max_tokens, gallery=gallery, missing=missing,
        )  # fmt: skip
        spread = distributed.Workers(workers, address=ray) if workers is not None else None
        done = distributed.extract(
            bench, captions=captions, workers=spread, device=device, say=lambda text: print(text)
        )
    if as_json:
        print(json.dumps(asdict(done)))
        return
    print(f"{done.pictures:,} pictures, {done.seconds:.1f} s; cache: {bench.cache_dir}")
    print(f"features: {done.reused:,} reused, {done.computed:,} computed")
    if captions:
        print(f"captions: {done.captions:,}; MLLM calls: {done.known:,} known, {done.asked:,} asked")


@app.command("evaluate")
def evaluate_command(
    file: Annotated[
        Path, typer.Argument(help="Rankings {query id: [image ids]} or a server file.", metavar="FILE")
    ],
    benchmark: BenchmarkOption,
    split: Annotated[str, typer.Option("--split", "-s", help="Split that the file is about.")],
    root: RootOption = None,
    gallery: GalleryOption = "original",
    keep_reference: ReferenceOption = None,
    shared_concept: Annotated[bool, typer.Option("--shared-concept", hidden=True)] = False,
    both_orders: Annotated[bool, typer.Option("--both-orders", hidden=True)] = False,
    as_json: JsonOption = False,
) -> None:
    """Score a rankings or server file against annotations. Needs no images and no model."""
    with _only_result_on_stdout():
        from cir_utils.evaluation import evaluate_file

        result = evaluate_file(
            file, benchmark, split, root, shared_concept=shared_concept, gallery=gallery,
            reference=_reference(keep_reference), both_orders=both_orders,
        )  # fmt: skip
    if as_json:
        print(json.dumps(result, ensure_ascii=False, allow_nan=False))
        return
    from cir_utils.tables import metrics_lines, protocol_line

    print(protocol_line(result["protocol"]))
    print(metrics_lines(result["metrics"]))
    for note in result.get("notes", []):
        print(f"note: {note}")


@app.command("submit")
def submit_command(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder whose rankings are written.", metavar="RUN")
    ] = None,
    to: Annotated[str, typer.Option("--to", help="Server: cirr or circo.")] = "",
    validate: Annotated[
        Path | None, typer.Option("--validate", help="Check this server file; nothing is written.")
    ] = None,
    root: RootOption = None,
    split: Annotated[
        str | None, typer.Option("--split", "-s", help="Split of FILE; default: the one the server takes.")
    ] = None,
    benchmark: Annotated[
        str | None, typer.Option("--benchmark", "-b", help="Benchmark of FILE, for instance mini-cirr.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the files; default: RUN.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the server files of a run, checked, or check a file: every broken rule in words."""
    from cir_utils import submissions

    if not to:
        raise InputError(f"submit needs --to: choose {', '.join(submissions.SERVERS)}")
    submissions.check_server(to)
    if (run is None) == (validate is None):
        raise InputError("submit takes a run folder or --validate FILE: give one of the two")
    if validate is not None:
        verdict = submissions.validate_file(validate, to, root, split=split, benchmark=benchmark)
        if as_json:
            print(json.dumps({"file": validate.name, "to": to} | verdict.as_dict(), ensure_ascii=False))
        if not verdict.valid:
            raise InputError(submissions.refusal(validate, to, verdict))
        if not as_json:
            lines = [f"{validate}: valid for {to}", *(f"warning: {text}" for text in verdict.warnings)]
            print("\n".join([*lines, *(f"note: {text}" for text in verdict.notes)]))
        return
    if split is not None or benchmark is not None:
        raise InputError("--split and --benchmark belong to --validate; a run folder knows its own")
    assert run is not None
    with _only_result_on_stdout():
        written = submissions.submit_run(run, to, root, out)
    if as_json:
        files = [{"file": str(one.path), "bytes": one.size} | one.verdict.as_dict() for one in written]
        print(json.dumps({"to": to, "files": files}, ensure_ascii=False))
    else:
        print(submissions.describe_written(written, to))


@app.command("tune")
def tune_command(
    benchmark: BenchmarkOption,
    method: Annotated[
        str | None,
        typer.Argument(
            help=f"One of {', '.join(tunable())}; default: {', '.join(PROFILE_METHODS)}.", metavar="[METHOD]"
        ),
    ] = None,
    profile: ProfileOption = "mini",
    split: SplitOption = "val",
    metric: Annotated[
        str | None, typer.Option("--metric", help="What is maximised; default: the headline.")
    ] = None,
    search: Annotated[
        str, typer.Option("--search", help="grid: all points; random: some, drawn between the grid's ends.")
    ] = "grid",
    points: Annotated[
        int | None, typer.Option("--points", help="How many points --search random draws; default: 200.")
    ] = None,
    random_seed: Annotated[
        int | None, typer.Option("--random-seed", help="Of the draws of --search random; default: 42.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of METHOD's tuning; default: a new one in runs/.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Keep the result as the mini profile's settings.")
    ] = False,
    limit: LimitOption = None,
    root: RootOption = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    encoder: EncoderOption = None,
    precision: PrecisionOption = None,
    preprocessing: PreprocessingOption = None,
    mllm: MllmOption = None,
    prompts: PromptsOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    max_tokens: TokensOption = None,
    shared_concept: ConceptOption = False,
    gallery: GalleryOption = "original",
    keep_reference: ReferenceOption = None,
    both_orders: OrdersOption = False,
    missing: MissingOption = "stop",
    as_json: JsonOption = False,
) -> None:
    """Choose a method's settings (alpha, beta, lambda, k', kappa) on val alone.

    Every method leaves a folder: the record, all points, and the heat map with the stability band."""
    if method is not None:
        check_tunable(method)
    if search not in ("grid", "random"):
        raise InputError(f"unknown search {search!r}: choose grid, random")
    if search == "grid" and (points is not None or random_seed is not None):
        raise InputError("--points and --random-seed belong to --search random; leave them out")
    if write and search != "grid":
        raise InputError("--write keeps what the grid chose; leave out --search random")
    if write and method not in (None, *PROFILE_METHODS):
        raise InputError(
            f"--write keeps settings of {', '.join(PROFILE_METHODS)} alone; leave it out, and give those of "
            f"{method} with --set"
        )
    if out is not None and method is None:
        raise InputError("--out is the folder of one method's tuning; give METHOD")
    chosen = load_profile(profile)
    spec = chosen.benchmark(benchmark)
    choose(chosen, prompts=prompts, temperature=temperature, seed=seed, max_tokens=max_tokens)
    if split != "val":
        raise InputError(f"cir tune refuses split {split!r}: settings are chosen on val alone")
    check_split(spec, split)
    if write and (profile != "mini" or limit is not None):
        raise InputError(
            "--write keeps settings of the mini profile tuned on all of val; leave out --limit and --profile"
        )
    given = {
        "--encoder": encoder, "--precision": precision, "--preprocessing": preprocessing, "--mllm": mllm,
        "--prompts": prompts, "--temperature": temperature, "--seed": seed, "--max-tokens": max_tokens,
        "--shared-concept": shared_concept or None, "--gallery": None if gallery == "original" else gallery,
        "--keep-reference or --remove-reference": keep_reference, "--both-orders": both_orders or None,
        "--missing": None if missing == "stop" else missing,
    }  # fmt: skip
    changed = [name for name, value in given.items() if value is not None]
    if write and changed:
        raise InputError(
            "--write keeps settings for runs of the mini profile as it is, which takes other models, prompts "
            f"or rules than these; leave out {', '.join(changed)}, or leave out --write"
        )
    with _only_result_on_stdout():
        from cir_utils import runs, tuning
        from cir_utils.workbench import open_workbench

        runs.check_out(out, tuning.RECORD)
        bench = open_workbench(
            benchmark, profile, split, root=root, device=device, cache_dir=cache, limit=limit,
            encoder=encoder, precision=precision, preprocessing=preprocessing, mllm=mllm, prompts=prompts,
            temperature=temperature, seed=seed, max_tokens=max_tokens, shared_concept=shared_concept,
            gallery=gallery, reference=_reference(keep_reference), both_orders=both_orders, missing=missing,
        )  # fmt: skip
        tuned = tuning.tune(
            bench, metric, PROFILE_METHODS if method is None else (method,), search=search,
            count=tuning.DRAWN if points is None else points,
            seed=tuning.SEED if random_seed is None else random_seed,
        )  # fmt: skip
        folders = [one.save(out) for one in tuned.methods.values()]
        if write:
            tuning.write_settings(tuned)
    if as_json:
        print(json.dumps(tuned.as_dict(), ensure_ascii=False))
    else:
        print("\n".join([tuned.describe(written=write), *(f"tuning folder: {path}" for path in folders)]))


@app.command("compare")
def compare_command(
    runs_given: Annotated[
        list[Path], typer.Argument(help="Run folders, the baseline first.", metavar="RUN RUN ...")
    ],
    metric: Annotated[
        str | None, typer.Option("--metric", help="What is compared; default: the headline.")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="text, markdown, latex or csv; default: text.")
    ] = None,
    per_query: Annotated[
        bool, typer.Option("--per-query", help="Who won which query, instead of the table.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="File that is written, instead of the terminal.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """One table of several runs, with intervals, paired tests and effects."""
    if len(runs_given) < 2:
        raise InputError("compare needs two run folders or more; give their paths")
    if as_json and (form or out or per_query):
        raise InputError("--json prints one object; leave it out, or leave out --format, --out, --per-query")
    with _only_result_on_stdout():
        from cir_utils import runs, tables

        chosen = tables.check_format(form or "text")
        table = tables.comparison([runs.load_run(path) for path in runs_given], metric)
        text = table.query_text(chosen) if per_query else table.text(chosen)
        if out is not None:
            tables.write_table(out, text)
    if as_json:
        print(json.dumps(table.as_dict(), ensure_ascii=False))
    else:
        print(f"written to {out}" if out is not None else text.rstrip("\n"))


@app.command("reproduce")
def reproduce_command(
    list_: Annotated[
        bool, typer.Option("--list", help="Every expected figure beside ours, with its verdict.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands and what they need; run nothing.")
    ] = False,
    run: Annotated[
        str | None,
        typer.Option(
            "--run", help="Run this condition, or all that match: 'mini-*/sdr-cir'.", metavar="COND"
        ),
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="The whole matrix as Markdown.")] = False,
    runs: Annotated[
        list[Path] | None,
        typer.Option("--runs", help="Folder of our runs; may be repeated; default: runs/ and results/."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Run folder of --run; default: a new one under runs/.")
    ] = None,
    root: RootOption = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """What was published, what our runs give, and whether they agree."""
    if list_ + report + (dry_run or run is not None) != 1:
        raise InputError("reproduce does one thing: give --list, --dry-run, --run COND or --report")
    if as_json and (report or dry_run):
        raise InputError("--json belongs to --list and --run; --report is Markdown, --dry-run is a script")
    with _only_result_on_stdout():
        from cir_utils import reproduce

        chosen = reproduce.conditions()
        if run is not None:
            chosen = reproduce.select(chosen, run)
        if out is not None and (run is None or len(chosen) > 1):
            raise InputError("--out names the folder of one run: give --run with one condition")
        if run is not None and not dry_run:
            kept = reproduce.run_conditions(chosen, root=root, device=device, cache_dir=cache, out=out)
        elif not dry_run:
            kept = reproduce.find_kept(runs or [reproduce.RUNS, reproduce.RESULTS])
    if dry_run:
        print(reproduce.dry_run(chosen))
        return
    if report:
        print(reproduce.report(kept=kept))
        return
    rows = reproduce.result_rows(chosen, kept)
    print(json.dumps({"rows": rows}, ensure_ascii=False) if as_json else reproduce.listing(rows))
    if run is not None and any(row["verdict"] == "off" for row in rows):
        raise typer.Exit(1)


@app.command("tutorial")
def tutorial_command(
    out: Annotated[
        Path, typer.Option("--out", help="Work folder: executed notebooks, runs and the report.")
    ] = Path("report"),
    notebooks: Annotated[Path | None, typer.Option("--notebooks", help="Folder of the notebooks.")] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only notebooks whose name starts so; may be repeated.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A notebook parameter, NAME=value; may be repeated.")
    ] = None,
    profile: ProfileOption = "mini",
    limit: LimitOption = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    timeout: Annotated[int, typer.Option("--timeout", help="Most seconds for one cell.", min=1)] = 1800,
) -> None:
    """Run all notebooks in order, print the results and write the HTML report."""
    load_profile(profile)
    try:
        import papermill  # noqa: F401
    except ModuleNotFoundError:
        raise InputError(
            "cir tutorial needs papermill; install it with pip install 'cir-utils[notebooks]'"
        ) from None
    from cir_utils import tutorial
    from cir_utils.notebooks import NotebookFailed

    try:
        with _only_result_on_stdout():
            text = tutorial.run_tutorial(
                out, notebooks, only=only or [], parameters=parse_assignments(settings or []),
                profile=profile, limit=limit, device=device, cache_dir=cache, timeout=timeout,
            )  # fmt: skip
    except NotebookFailed as failure:
        print(f"cir: {failure}; its executed copy: {failure.executed}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(text)


@app.command("doctor")
def doctor_command(
    profile: ProfileOption = "mini",
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    encoder: EncoderOption = None,
    mllm: MllmOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check versions, memory, models, data and disk: OK, or the command that mends it."""
    load_profile(profile)
    with _only_result_on_stdout():
        from cir_utils import doctor

        checks = doctor.check(profile, device=device, cache_dir=cache, encoder=encoder, mllm=mllm)
    if as_json:
        print(json.dumps(doctor.as_dict(profile, checks), ensure_ascii=False))
    else:
        print(doctor.describe(profile, checks))
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


@cache_app.command("ls")
def cache_ls_command(cache: CacheOption = None, as_json: JsonOption = False) -> None:
    """What is kept: answers by class, agent and model, and features by encoder."""
    from cir_utils import cache as caches

    found = caches.survey(cache or default_cache_dir())
    print(json.dumps(found, ensure_ascii=False) if as_json else caches.describe_survey(found))


@cache_app.command("verify")
def cache_verify_command(cache: CacheOption = None, as_json: JsonOption = False) -> None:
    """Read everything that is kept; exit 1 with the name of each file that is damaged, and its mend."""
    from cir_utils import cache as caches

    folder = cache or default_cache_dir()
    done = caches.verify(folder)
    print(json.dumps(asdict(done), ensure_ascii=False) if as_json else caches.describe_verified(folder, done))
    if done.problems:
        raise typer.Exit(1)


@cache_app.command("export")
def cache_export_command(
    file: Annotated[Path, typer.Argument(help="JSON Lines file to write.", metavar="FILE")],
    model: Annotated[
        str | None,
        typer.Option("--model", help="Only the answers of this model, as `cir cache ls` lists it."),
    ] = None,
    cache: CacheOption = None,
) -> None:
    """Write the MLLM's answers and verdicts to FILE, for others to replay without an MLLM."""
    from cir_utils import cache as caches

    exported = caches.export_answers(cache or default_cache_dir(), file, model)
    header = exported.header
    print(f"{file}: {header['answers']:,} answers, {header['verdicts']:,} verdicts")
    print("\n".join(caches.describe_models(header)))
    if exported.left_out:
        print(f"note: {exported.left_out:,} damaged rows were left out; see `cir cache verify`")


@cache_app.command("import")
def cache_import_command(
    file: Annotated[Path, typer.Argument(help="What `cir cache export` wrote.", metavar="FILE")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Rows that differ take the place of those that are there.")
    ] = False,
    cache: CacheOption = None,
) -> None:
    """Take in the answers and verdicts of FILE, all or none."""
    from cir_utils import cache as caches

    header, merged = caches.import_answers(cache or default_cache_dir(), file, replace)
    replaced = f", {merged.replaced:,} replaced" if replace else ""
    print(f"{file}: {merged.new:,} rows new, {merged.there:,} already there{replaced}")
    print("\n".join(caches.describe_models(header)))


@contextlib.contextmanager
def _only_result_on_stdout() -> Iterator[None]:
    """Whatever libraries print goes to stderr: standard output is for the command's result."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _reference(keep: bool | None) -> str | None:
    return None if keep is None else "kept" if keep else "removed"


def _fail(message: str, code: int) -> int:
    print(f"cir: {message}", file=sys.stderr)
    return code


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own warnings as one line; those of libraries about their insides are not the user's business."""
    if not issubclass(category, DeprecationWarning | PendingDeprecationWarning | FutureWarning):
        print(f"cir: warning: {' '.join(str(message).split())}", file=sys.stderr)
