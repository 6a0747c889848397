"""The explorer: move a setting and watch the ranking, with what every score is made of.

Plain functions make the HTML (:func:`strip_html`, :func:`why_html`, :func:`query_html`) from what
:func:`cir_utils.rescoring.rank` found; :class:`Explorer` only wires them to ipywidgets. Pictures are cached
thumbnails in ``data:`` addresses and every text is escaped (queries are typed, captions come from models), so
nothing is asked of a network.

True targets have a thick blue frame and a tick, the reference image a dashed orange frame and an R, as in all
figures of the notebooks."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import ipywidgets as widgets
from torch import Tensor

from cir_utils.errors import InputError
from cir_utils.methods import METHODS, SettingValue, resolve_settings
from cir_utils.report import thumbnail_address
from cir_utils.rescoring import (
    MOVABLE,
    Evidence,
    Ranked,
    SdrEvidence,
    State,
    XrEvidence,
    fine,
    gather,
    gather_part,
    kappas,
    most_verified,
    one_query,
    rank,
    rank_in,
    said,
    sdr_scores,
    ticks,
)
from cir_utils.runs import TABLE_METRICS
from cir_utils.workbench import Workbench

#: How many of a ranking's first pictures a strip shows, and of a query's true targets.
SHOWN, TARGETS = 12, 4
#: Side of a thumbnail in pixels.
THUMBNAIL = 96
SIDES = {"text": "caption", "vision": "picture"}

STYLE = """<style>
.cir { font: 14px/1.4 system-ui, sans-serif; }
.cir h4 { margin: .5em 0 .2em; } .cir p { margin: .2em 0; }
.cir dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 .8em; margin: .2em 0; }
.cir dt, .cir dd { float: none; width: auto; margin: 0; }
.cir dt { font-weight: bold; white-space: nowrap; }
.cir-strip { display: flex; flex-wrap: wrap; gap: 6px; }
.cir-strip figure { margin: 0; width: 112px; }
.cir-strip img { box-sizing: border-box; width: 112px; height: 112px; object-fit: contain;
  border: 1px solid #9a9a9a; display: block; }
.cir-strip .target img { border: 5px solid #0072b2; }
.cir-strip .reference img { border: 4px dashed #d55e00; }
.cir-strip img[onclick] { cursor: pointer; }
.cir-strip .picked { outline: 3px double currentColor; outline-offset: 1px; }
.cir-strip figcaption { font-weight: bold; text-align: center; }
.cir table { border-collapse: collapse; font-size: 12px; margin: 0; }
.cir td, .cir th { padding: 1px 5px; line-height: 1.6; text-align: left;
  vertical-align: top; background: none; }
.cir td.num { text-align: right; font-variant-numeric: tabular-nums; }
.cir sub, .cir sup { line-height: 0; font-size: 75%; }
</style>"""


# --- HTML -------------------------------------------------------------------------------------------------


def strip_html(ranked: Ranked, picked: int | None = None, count: int = SHOWN) -> str:
    """The first ``count`` pictures of a ranking, best first, each with its rank, its sign and what its score
    is made of; ``picked`` is the gallery position of a picture to outline.

    A click on a picture presses the button of the same rank, where the strip stands in an explorer."""
    figures = []
    for number, position in enumerate(ranked.order[:count], start=1):
        buttons = "this.closest('.cir-side')?.querySelectorAll('.cir-pick button')"
        press = f'onclick="{buttons}[{number - 1}]?.click()"'
        rows = [(_symbol(name), _number(values, position)) for name, values in ranked.terms.items()]
        rows += [(SIDES[side], signs) for side, signs in ticks(*ranked.state.shown, position).items()]
        lines = "".join(f"<tr><td>{name}</td><td class='num'>{value}</td></tr>" for name, value in rows)
        table = f"<table>{lines}</table>"
        figures.append(_figure(ranked, position, number, position == picked, press, table))
    return f"<div class='cir cir-strip'>{''.join(figures)}</div>"


def head_html(ranked: Ranked) -> str:
    """One line above a strip: the method with its settings, its metric over the split, and how the query
    shown fares."""
    state, name = ranked.state, TABLE_METRICS[ranked.state.bench.benchmark.name][0]
    moved = ", ".join(f"{key} {float(state.settings[key]):g}" for key in MOVABLE.get(state.method, ()))
    parts = [f"<b>{_text(state.method)}</b>{f' ({_text(moved)})' if moved else ''}"]
    if ranked.metrics:
        count = len(state.bench.queries)
        parts.append(f"{_text(name)} over {count} queries: <b>{100 * ranked.metrics[name]:.1f} %</b>")
    else:
        parts.append("no public answers, so no metric")
    own = name.rpartition("/")[2]
    if own in ranked.own_metrics:
        found = len(set(_images(ranked, SHOWN)) & set(ranked.query.targets))
        parts.append(
            f"this query {_text(own.replace('mAP', 'AP'))}: {100 * ranked.own_metrics[own]:.1f} %, "
            f"{found} of its {len(ranked.query.targets)} true targets among the first {SHOWN}"
        )
    return f"<div class='cir' aria-live='polite'>{'; '.join(parts)}</div>"


def query_html(rankeds: Sequence[Ranked]) -> str:
    """The query (reference image, text, some true targets) and what the MLLM wrote about it for each
    method."""
    ranked = rankeds[0]
    place = ranked.bench.place_of
    known = [place[image] for image in ranked.query.targets[:TARGETS]]
    pictures = [_figure(ranked, place[ranked.query.reference])] + [_figure(ranked, p) for p in known]
    parts = [
        f"<h4>“{_text(ranked.query.text)}” <small>query {_text(ranked.query.id)}</small></h4>"
        f"<div class='cir-strip'>{''.join(pictures)}</div>"
    ]
    for each in rankeds:
        lines = said(*each.state.shown)
        if lines:
            listed = "".join(f"<dt>{_text(name)}</dt><dd>{_text(text)}</dd>" for name, text in lines)
            parts.append(f"<h4>What the MLLM wrote for {_text(each.state.method)}</h4><dl>{listed}</dl>")
    return f"<div class='cir'>{''.join(parts)}</div>"


def why_html(rankeds: Sequence[Ranked], position: int) -> str:
    """Why the picture at a gallery position stands where it stands, in each of the rankings of one query: its
    score as a sum with numbers, its rank by every term alone, and its rank had a step been left out."""
    ranked = rankeds[0]
    image = ranked.bench.benchmark.gallery[position]
    kind = "a true target" if image in ranked.query.targets else "no true target"
    if image == ranked.query.reference:
        kind = "the reference image"
    if not ranked.query.targets:
        kind = "the reference image" if image == ranked.query.reference else "a picture of the gallery"
    parts = [
        f"<h4>Why is image {_text(image)} here?</h4>"
        f"<div class='cir-strip'>{_figure(ranked, position)}</div><p>It is {kind}.</p>"
    ]
    for each in rankeds:
        number = each.rank_of(position)
        count = len(each.order)
        where = f"rank {number:,} of {count:,}" if number else "not ranked: the protocol removes it"
        parts.append(f"<h4>{_text(each.state.method)}: {where}</h4>")
        if number:
            evidence, row = each.state.shown
            if isinstance(evidence, SdrEvidence):
                parts.append(_why_sdr(each, evidence, row, position))
            elif isinstance(evidence, XrEvidence):
                parts.append(_why_xr(each, evidence, row, position))
            else:
                parts.append(f"<p>Ranked by: {_text(METHODS[each.state.method].about)}.</p>")
    return f"<div class='cir'>{''.join(parts)}</div>"


def _why_sdr(ranked: Ranked, evidence: SdrEvidence, row: int, position: int) -> str:
    alpha, beta = (float(ranked.state.settings[name]) for name in MOVABLE["sdr-cir"])
    places, own = evidence.bench.places[row], slice(row, row + 1)

    def at(a: float, b: float) -> str:
        return f"{rank_in(sdr_scores(evidence, a, b, own)['S_f'][0], places, position):,}"

    if bool(evidence.vague[row]):
        return (
            "<p>The text names no change that can be seen, so the ranking is by the reference image alone: "
            f"S<sub>r</sub> = {_number(evidence.S_r[row], position)}.</p>"
        )
    S_q, S_d, S_m, S_f = (float(values[position]) for values in ranked.terms.values())
    terms = {
        "S_q, nearness to the anchored query": ranked.terms["S_q"],
        "S_d, nearness to the description": evidence.S_d[row],
        "S_m, nearness to the modification text": evidence.S_m[row],
        "S_r, nearness to the reference image": evidence.S_r[row],
    }
    formula = _symbol("S_f = (1 + β)·S_q − β·(S_d − S_m)")
    return (
        f"<p>{formula} = {1 + beta:.2f}·{S_q:.3f} − {beta:.2f}·({S_d:.3f} − {S_m:.3f}) = <b>{S_f:.3f}</b></p>"
        f"{_ranked_terms(terms, places, position)}"
        f"<p>Its rank without Anchor (α = 0): {at(0, beta)}; without Debias (β = 0): {at(alpha, 0)}; by the "
        f"description alone: {at(0, 0)}.</p>"
    )


def _why_xr(ranked: Ranked, evidence: XrEvidence, row: int, position: int) -> str:
    settings, places = ranked.state.settings, evidence.bench.places[row]
    kappa, k_prime, lam = float(settings["kappa"]), int(settings["k_prime"]), float(settings["lambda"])
    terms = dict(list(ranked.terms.items())[:4])
    terms |= {"S^t": evidence.S_t[row], "S^v": evidence.S_v[row], "RRF": ranked.terms["RRF"]}
    coarse = int((evidence.coarse[kappa][row] == position).nonzero()[0]) + 1
    parts = [
        f"<p>Its caption: “{_text(evidence.captions[position])}”</p>",
        _ranked_terms(terms, places, position),
        f"<p>Fused, with κ = {kappa:g}, it is number <b>{coarse:,}</b> of the coarse order.</p>",
    ]
    if coarse > k_prime:
        parts.append(
            f"<p>Only the first k' = {k_prime} are verified, so no question was asked and it keeps that "
            "place.</p>"
        )
        return "".join(parts)
    found = fine(evidence, settings, slice(row, row + 1))
    similarity = float(found.similarity[0, coarse - 1])
    text, vision = (int(counts[row, position]) for counts in evidence.correct)
    answers, signs = evidence.answers[row][position], ticks(evidence, row, position)
    lines = "".join(
        f"<tr><td>{_text(statement.statement)}</td><td>{'true' if statement.answer else 'false'}</td>"
        + "".join(f"<td>{signs[side][n]} p(true) {answers[side][n]:.2f}</td>" for side in SIDES)
        + "</tr>"
        for n, statement in enumerate(evidence.asked.asked[row].statements)
    )
    score = float(found.scores[0, coarse - 1])
    formula = _symbol("(right from caption + right from picture) · normalise(λ·S^t + (1 − λ)·S^v)")
    parts.append(
        "<table><tr><th>statement</th><th>expected</th><th>from its caption</th><th>from its picture</th>"
        f"</tr>{lines}</table><p>Score = {formula}, with λ = {lam:g} and over the first k' = {k_prime}: "
        f"({text} + {vision}) · {similarity:.3f} = <b>{score:.3f}</b>. From coarse rank {coarse:,} to "
        f"{ranked.rank_of(position):,}.</p>"
    )
    return "".join(parts)


def _ranked_terms(terms: Mapping[str, Tensor], places: Tensor, position: int) -> str:
    """A table of terms with their value for one picture and its rank by each alone."""
    lines = "".join(
        f"<tr><td>{_symbol(name)}</td><td class='num'>{_number(values, position)}</td>"
        f"<td class='num'>{rank_in(values, places, position):,}</td></tr>"
        for name, values in terms.items()
    )
    return f"<table><tr><th>term</th><th>value</th><th>rank by it alone</th></tr>{lines}</table>"


def _figure(
    ranked: Ranked, position: int, number: int = 0, picked: bool = False, more: str = "", below: str = ""
) -> str:
    """A gallery picture with the frame and the sign of its role in the query, and its rank where there is
    one."""
    image = ranked.bench.benchmark.gallery[position]
    target, reference = image in ranked.query.targets, image == ranked.query.reference
    kind = "target" if target else "reference" if reference else ""
    role = "true target" if target else "reference image" if reference else ""
    alt = ", ".join(word for word in (f"rank {number}" if number else "", f"image {image}", role) if word)
    sign = "✓" if target else "R" if reference else ""
    caption = f"{number or ''} {sign}".strip()
    return (
        f"<figure class='{kind}{' picked' if picked else ''}'><img src='{thumbnail(_path(ranked, image))}' "
        f'alt="{_text(alt)}" title="{_text(alt)}" {more}><figcaption>{caption}</figcaption>{below}</figure>'
    )


def _path(ranked: Ranked, image: Any) -> Path:
    return ranked.bench.benchmark.image_path(image)


@lru_cache(maxsize=8192)
def thumbnail(path: Path) -> str:
    """A picture file as a small JPEG in a ``data:`` address, made once."""
    return thumbnail_address(path, THUMBNAIL)


def _images(ranked: Ranked, count: int) -> list[Any]:
    return [ranked.bench.benchmark.gallery[position] for position in ranked.order[:count]]


def _number(values: Tensor, position: int) -> str:
    value = float(values[position])
    return "–" if value != value else f"{value:.3f}" if abs(value) >= 0.1 else f"{value:.4f}"


def _symbol(name: str) -> str:
    """``s_t^v`` and the like with their index and exponent set low and high."""
    safe = _text(name)
    return re.sub(r"\b([sSF])(?:_(\w))?(?:\^(\w))?(?!\w)", _set, safe)


def _set(match: re.Match[str]) -> str:
    letter, low, high = match.groups()
    return letter + (f"<sub>{low}</sub>" if low else "") + (f"<sup>{high}</sup>" if high else "")


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)


# --- widgets ----------------------------------------------------------------------------------------------


@dataclass
class Side:
    """The widgets of one method and the ranking that they show."""

    method: widgets.Dropdown
    head: widgets.HTML
    strip: widgets.HTML
    pick: widgets.ToggleButtons
    box: widgets.VBox
    ranked: Ranked | None = None


class Explorer:
    """Widgets over the functions above for the queries of ``benches``, workbenches of different benchmarks.

    :meth:`show` displays them. What a method asks of the MLLM is asked when the method is first chosen, for
    all queries of the workbench (a small ``limit`` keeps that short); sliders only score anew. Everything can
    be reached with the keyboard: Tab moves, arrows change sliders and lists, Space presses the numbered
    buttons, which do what a click on the picture of that rank does."""

    def __init__(self, benches: Sequence[Workbench]) -> None:
        self.benches = {bench.benchmark.name: bench for bench in benches}
        self.picked: int | None = None
        self._own: Workbench | None = None
        self._evidence: dict[tuple[Any, ...], Any] = {}
        self._quiet = False
        wide = widgets.Layout(width="420px")
        self.benchmark = widgets.Dropdown(options=list(self.benches), description="benchmark")
        self.query = widgets.Dropdown(description="query", layout=wide)
        self.reference = widgets.Combobox(description="reference", continuous_update=False)
        self.text = widgets.Text(description="text", layout=wide, continuous_update=False)
        self.search = widgets.Button(description="search", tooltip="Search with this reference and text")
        self.sliders: dict[str, Any] = {
            "alpha": widgets.FloatSlider(min=0, max=1, step=0.05, description="α Anchor"),
            "beta": widgets.FloatSlider(min=0, max=2, step=0.05, description="β Debias"),
            "lambda": widgets.FloatSlider(min=0, max=1, step=0.05, description="λ"),
            "k_prime": widgets.IntSlider(min=1, description="k'"),
            "kappa": widgets.SelectionSlider(options=[("60", 60.0)], description="κ"),
        }
        methods = list(METHODS)
        self.sides = (
            self._side("method", methods, "sdr-cir"),
            self._side("beside it", [("nothing", ""), *((name, name) for name in methods)], ""),
        )
        self.asked = widgets.HTML()
        self.why = widgets.HTML()
        self.use = widgets.Button(
            description="use as reference",
            tooltip="Search with it as reference",
            disabled=True,
        )
        self.status = widgets.HTML()
        self.root = widgets.VBox(
            [
                widgets.HTML(STYLE),
                widgets.HBox([self.benchmark, self.query], layout=_WRAP),
                widgets.HBox([self.reference, self.text, self.search], layout=_WRAP),
                self.status,
                self.asked,
                widgets.HBox([side.method for side in self.sides], layout=_WRAP),
                widgets.HBox(list(self.sliders.values()), layout=_WRAP),
                widgets.HBox([side.box for side in self.sides], layout=_WRAP),
                self.why,
                self.use,
            ]
        )
        self.root.add_class("cir-explorer")
        self._wire()
        self._choose_benchmark()

    def show(self) -> None:
        """Display the widgets."""
        from IPython.display import display

        display(self.root)

    def state(self, method: str) -> State:
        """What is chosen now, for one of the two methods."""
        bench = self.benches[self.benchmark.value]
        query = bench.queries[self.query.value]
        part = bench.parts[query.category]
        own: Evidence | None = None
        mine = self._own
        if mine is not None:
            asked = mine.queries[0]
            own = self._kept(
                (bench.benchmark.name, query.category, asked.reference, asked.text, method),
                f"asking about “{asked.text}” for {method}",
                lambda: gather_part(mine, method),
            )
        evidence = self._kept(
            (bench.benchmark.name, method),
            f"asking about {len(bench.queries)} queries for {method}",
            lambda: gather(bench, method),
        )
        settings: dict[str, SettingValue] = {
            name: self.sliders[name].value for name in MOVABLE.get(method, ())
        }
        usual = resolve_settings(method, bench.settings, settings)
        return State(bench, method, evidence, usual, query.category, part.queries.index(query), own)

    def update(self, moved: str = "") -> None:
        """Rank and draw again; after a setting has ``moved``, only for the methods that have it."""
        try:
            for side in self.sides:
                method = side.method.value
                side.box.layout.display = "" if method else "none"
                if not method:
                    side.ranked = None
                elif not moved or moved in MOVABLE.get(method, ()):
                    side.ranked = rank(self.state(method))
            self.status.value = ""
        except InputError as error:
            self.status.value = f"<p role='alert'>{_text(error)}</p>"
            return
        chosen = {name for side in self.sides for name in MOVABLE.get(side.method.value, ())}
        for name, slider in self.sliders.items():
            slider.layout.display = "" if name in chosen else "none"
        for side in self.sides:
            if side.ranked is not None:
                side.head.value = head_html(side.ranked)
        self._draw()
        if not moved:
            self.asked.value = query_html(self._rankeds())

    # --- wiring -------------------------------------------------------------------------------------------

    def _side(self, name: str, methods: Sequence[Any], method: str) -> Side:
        chosen = widgets.Dropdown(options=methods, value=method, description=name)
        head, strip = widgets.HTML(), widgets.HTML()
        pick = widgets.ToggleButtons(
            options=[(str(number), number) for number in range(1, SHOWN + 1)],
            value=None,
            description="why here?",
            tooltips=[f"Why is the picture of rank {number} here?" for number in range(1, SHOWN + 1)],
            style={"button_width": "3.4em"},
        )
        pick.add_class("cir-pick")
        box = widgets.VBox([head, strip, pick], layout=widgets.Layout(flex="1 1 480px", min_width="0"))
        box.add_class("cir-side")
        return Side(chosen, head, strip, pick, box)

    def _wire(self) -> None:
        self.benchmark.observe(self._heard(self._choose_benchmark), names="value")
        self.query.observe(self._heard(self._choose_query), names="value")
        self.search.on_click(lambda _: self._search())
        self.use.on_click(lambda _: self._use())
        for name, slider in self.sliders.items():
            slider.observe(self._heard(partial(self.update, name)), names="value")
        for side in self.sides:
            side.method.observe(self._heard(self.update), names="value")
            side.pick.observe(self._heard(partial(self._pick, side)), names="value")

    def _heard(self, what: Callable[[], None]) -> Callable[[Any], None]:
        """``what`` as an observer that does nothing while the explorer itself sets values."""

        def observer(change: Any) -> None:
            if not self._quiet:
                what()

        return observer

    def _set(self, widget: Any, **values: Any) -> None:
        """Set traits of a widget without being heard."""
        self._quiet = True
        try:
            for name, value in values.items():
                setattr(widget, name, value)
        finally:
            self._quiet = False

    def _choose_benchmark(self) -> None:
        bench = self.benches[self.benchmark.value]
        usual = bench.settings
        for name in ("alpha", "beta", "lambda"):
            self._set(self.sliders[name], value=float(usual[name]))
        most = max(most_verified(part) for part in bench.parts.values())
        self._set(self.sliders["k_prime"], max=most, value=min(int(usual["k_prime"]), most))
        choices = [(f"{value:g}", value) for value in kappas(usual)]
        self._set(self.sliders["kappa"], options=choices, value=float(usual["kappa"]))
        labels = [(f"{query.id}: {query.text}"[:80], place) for place, query in enumerate(bench.queries)]
        self._set(self.query, options=labels, value=0)
        self._choose_query()

    def _choose_query(self) -> None:
        bench = self.benches[self.benchmark.value]
        query = bench.queries[self.query.value]
        self._set(self.reference, options=[str(i) for i in bench.parts[query.category].benchmark.gallery])
        self._set(self.reference, value=str(query.reference))
        self._set(self.text, value=query.text)
        self._own, self.picked = None, None
        self.update()

    def _search(self) -> None:
        """Search with the reference and the text as they stand in the fields."""
        bench = self.benches[self.benchmark.value]
        query = bench.queries[self.query.value]
        part = bench.parts[query.category]
        named = {str(image): image for image in part.benchmark.gallery}
        reference = named.get(self.reference.value.strip(), self.reference.value)
        same = reference == query.reference and self.text.value == query.text
        try:
            own = None if same else one_query(part, reference, self.text.value)
        except InputError as error:
            self.status.value = f"<p role='alert'>{_text(error)}</p>"
            return
        self._own, self.picked = own, None
        self.update()

    def _use(self) -> None:
        if self.picked is not None:
            gallery = self._rankeds()[0].bench.benchmark.gallery
            self._set(self.reference, value=str(gallery[self.picked]))
            self._search()

    def _pick(self, side: Side) -> None:
        if side.ranked is not None and side.pick.value is not None:
            self.picked = side.ranked.order[side.pick.value - 1]
            self._draw()

    def _draw(self) -> None:
        """Strips, buttons and the explanation, all with the same picture picked."""
        for side in self.sides:
            if side.ranked is None:
                continue
            side.strip.value = strip_html(side.ranked, self.picked)
            number = side.ranked.rank_of(self.picked) if self.picked is not None else None
            self._set(side.pick, value=number if number is not None and number <= SHOWN else None)
        self.use.disabled = self.picked is None
        self.why.value = "" if self.picked is None else why_html(self._rankeds(), self.picked)

    def _rankeds(self) -> list[Ranked]:
        return [side.ranked for side in self.sides if side.ranked is not None]

    def _kept(self, key: tuple[Any, ...], what: str, make: Callable[[], Any]) -> Any:
        """What was gathered before, or ``make()``, said to the reader while it lasts."""
        if key not in self._evidence:
            self.status.value = f"<p>{_text(what)} …</p>"
            self._evidence[key] = make()
        return self._evidence[key]


_WRAP = widgets.Layout(flex_flow="row wrap")
