"""The methods: what each is called, where it lives, and which settings it has.

A method is a function ``run(bench, settings) -> MethodOutput`` in a module of this package. This file only
names them and checks settings, without importing a model library, so that wrong names are reported at once.

To add a method: write ``methods/my_method.py`` with such a function, and add one entry to :data:`METHODS`.

To make it tunable by ``cir tune``: give the entry a ``grid``, the values to try of every setting that only
scores anew, and name in ``scorer`` a function ``scorer(part, places, k, points) -> rank`` of its module. It
does once what costs (texts, features, verification), for one gallery ``part`` and for all ``points``, each a
dictionary of all settings; ``rank(point)`` then gives the first ``k`` or more gallery positions of every
query, ``(Q, >= k)`` int64, best first, among the candidates ``places`` ``(Q, C)``: the order that a run with
these settings gives (a test holds every scorer to that).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from cir_utils.errors import InputError

SettingValue = float | int | str


@dataclass(frozen=True)
class Setting:
    """A setting's kind and range. Numbers lie in ``[low, high]``; words are one of ``choices``."""

    kind: type
    about: str
    low: float = 0.0
    high: float = 1.0
    choices: tuple[str, ...] = ()
    default: SettingValue | None = None

    def expected(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return f"{'a whole number' if self.kind is int else 'a number'} from {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Method:
    """Where a method's function lives (``module:function``) and the settings that it reads. ``grid`` has the
    settings that can be tuned on stored scores, each with its values, rising; ``scorer`` is the function that
    ranks by them (see the head of this file). ``trained`` ones need weights that belong to the run's
    encoder."""

    where: str
    about: str
    settings: tuple[str, ...] = ()
    grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    scorer: str = ""
    trained: bool = False


SETTINGS: dict[str, Setting] = {
    "alpha": Setting(float, "Anchor: weight of the reference image in F_q = (1-alpha) F_d + alpha F_r"),
    "beta": Setting(float, "Debias: strength of the penalty in S_f = (1+beta) S_q - beta S_i", high=2.0),
    "description": Setting(
        str,
        "how the MLLM is asked for the target description: in four stages (Selective CoT) or plainly",
        choices=("selective", "plain"),
        default="selective",
    ),
    "lambda": Setting(float, "weight of S^t against S^v in X^R's re-ranking"),
    "k_prime": Setting(
        int, "how many candidates X^R's coarse stage hands to verification", low=1, high=10**6
    ),
    "kappa": Setting(float, "constant of reciprocal rank fusion, 1/(kappa + rank)", low=0, high=10**6),
    "stages": Setting(
        str, "X^R: both stages, or coarse filtering alone", choices=("full", "coarse"), default="full"
    ),
    "vision": Setting(str, "X^R: agents that look at pictures", choices=("on", "off"), default="on"),
    "text": Setting(str, "X^R: agents that read captions", choices=("on", "off"), default="on"),
    "verification": Setting(
        str,
        "xr-sdr: how answers count in the fine stage, by their probabilities or as X^R counts them",
        choices=("probabilities", "counts"),
        default="probabilities",
    ),
    "weight_text": Setting(
        float, "xr-sdr: weight of the log-likelihood of the captions' answers", default=0.03
    ),
    "weight_vision": Setting(
        float, "xr-sdr: weight of the log-likelihood of the pictures' answers", default=0.1
    ),
    "prune": Setting(
        str,
        "X^R: leave out verifications that cannot change the places that metrics look at",
        choices=("on", "off"),
        default="on",
    ),
    "captions": Setting(
        int, "LDRE, SEIZE: how many captions of the reference are sampled and edited", 1, 100, default=15
    ),
    "relevance_top": Setting(
        int, "LDRE: how many of the largest drops in similarity weigh a caption", 1, 10**6, default=5
    ),
    "relevance_temperature": Setting(
        float,
        "LDRE: temperature of the captions' weights; large is the plain mean",
        0.001,
        1000,
        default=0.04,
    ),
    "gain": Setting(float, "SEIZE: weight of a rise in similarity by the edit", high=1000, default=0.13),
    "loss": Setting(float, "SEIZE: weight of a fall in similarity by the edit", high=1000, default=2.1),
    "tau": Setting(float, "ImageScope: weight of a candidate's caption against its picture", default=0.15),
    "verified": Setting(
        int, "ImageScope: how many candidates are verified; 0 skips that stage", high=10**6, default=20
    ),
    "compared": Setting(
        int, "ImageScope: how many are compared with the reference; 0 skips that", high=10**6, default=3
    ),
    "text_weight": Setting(
        float, "WeiMoCIR: weight of the modification text against the reference image", default=0.8
    ),
    "caption_weight": Setting(
        float, "WeiMoCIR: weight of a candidate's caption against its picture", default=0.1
    ),
    "inversion": Setting(
        str,
        "where a picture's pseudo-word comes from: the trained network, or an optimisation for every picture",
        choices=("network", "optimised"),
        default="network",
    ),
    "oti_steps": Setting(int, "steps of inversion=optimised", low=1, high=10**5, default=350),
}

#: What ``cir tune`` tries: weights in steps of 0.05, and X^R's two constants.
ALPHAS = tuple(step / 20 for step in range(11))
BETAS = tuple(step / 20 for step in range(21))
LAMBDAS = tuple(step / 20 for step in range(21))
K_PRIMES = (10, 20, 30, 40, 50, 75, 100)
KAPPAS = (10, 30, 60, 100)
WEIGHTS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)

METHODS: dict[str, Method] = {
    "random": Method("baselines:random_order", "the gallery in random order, another one for every query"),
    "image-only": Method("baselines:image_only", "the reference image's feature F_r as the query"),
    "text-only": Method("baselines:text_only", "the modification text's feature F_m as the query"),
    "image+text": Method("baselines:image_and_text", "the mean of F_r and F_m as the query"),
    "description-only": Method(
        "description_only:run", "the MLLM's description of the target, F_d, as the query", ("description",)
    ),
    "sdr-cir": Method(
        "sdr_cir:run",
        "SDR-CIR: Selective CoT, then Anchor and Debias",
        ("alpha", "beta", "description"),
        grid={"alpha": ALPHAS, "beta": BETAS},
        scorer="sdr_cir:scorer",
    ),
    "xr": Method(
        "xr:run",
        "X^R: imagination, coarse filtering by similarity, fine filtering by verification",
        ("lambda", "k_prime", "kappa", "stages", "vision", "text", "prune"),
        grid={"k_prime": K_PRIMES, "lambda": LAMBDAS, "kappa": KAPPAS},
        scorer="xr:scorer",
    ),
    "cirevl": Method("cirevl:run", "CIReVL: the reference's caption, edited by the text, as the query"),
    "ldre": Method(
        "ldre:run",
        "LDRE: many sampled captions, each edited, as one query weighted by how far their edits carry",
        ("captions", "relevance_top", "relevance_temperature"),
    ),
    "seize": Method(
        "seize:run",
        "SEIZE: edited captions, with what the edit adds to or takes from each similarity",
        ("captions", "gain", "loss"),
    ),
    "imagescope": Method(
        "imagescope:run",
        "ImageScope: three levels of target text, then verification and comparison with the reference",
        ("tau", "verified", "compared"),
    ),
    "weimocir": Method(
        "weimocir:run",
        "WeiMoCIR: a weighted mean of image and text, against pictures and captions",
        ("text_weight", "caption_weight"),
    ),
    "pic2word": Method("pic2word:run", "Pic2Word: the reference as a word of the text", trained=True),
    "searle": Method(
        "searle:run",
        "SEARLE: the reference as a word, inverted by optimisation or by the network that learnt it",
        ("inversion", "oti_steps"),
        trained=True,
    ),
    "isearle": Method(
        "isearle:run",
        "iSEARLE: SEARLE with noise against the modality gap, and hard negatives",
        ("inversion", "oti_steps"),
        trained=True,
    ),
    "lincir": Method(
        "lincir:run", "LinCIR: the reference as a word, by a network trained on texts alone", trained=True
    ),
    "palavra": Method(
        "palavra:run",
        "PALAVRA: a word guessed by a set network, then optimised for the picture",
        trained=True,
    ),
    "fti4cir": Method(
        "fti4cir:run", "FTI4CIR: one word for the subject and several for its attributes", trained=True
    ),
    "xr-sdr": Method(
        "xr_sdr:run",
        "ours: X^R with SDR-CIR's query in its coarse stage and verification by probability",
        (
            "alpha",
            "beta",
            "lambda",
            "k_prime",
            "kappa",
            "weight_text",
            "weight_vision",
            "stages",
            "verification",
        ),
        grid={"weight_text": WEIGHTS, "weight_vision": WEIGHTS},
        scorer="xr_sdr:scorer",
    ),
}

#: The methods whose settings make up a profile's, which ``cir tune`` without a method tunes.
PROFILE_METHODS = ("sdr-cir", "xr", "xr-sdr")


def get_method(name: str) -> Method:
    """The method called ``name``; :class:`InputError` lists the choices."""
    if name not in METHODS:
        raise InputError(f"unknown method {name!r}: choose {', '.join(METHODS)}")
    return METHODS[name]


def load_method(name: str) -> Callable[..., Any]:
    """The function of the method called ``name`` (this imports its module, and with it the model
    libraries)."""
    return _function(get_method(name).where)


def tunable() -> list[str]:
    """The methods with settings that can be tuned on stored scores."""
    return [name for name, method in METHODS.items() if method.grid]


def check_tunable(name: str) -> Method:
    """The method called ``name``; :class:`InputError` where it has no setting to tune."""
    method = get_method(name)
    if not method.grid:
        raise InputError(
            f"method {name} has no setting that is tuned on stored scores; choose {', '.join(tunable())}"
        )
    return method


def load_scorer(name: str) -> Callable[..., Any]:
    """The scorer of the method called ``name``; :class:`InputError` where it has no setting to tune."""
    return _function(check_tunable(name).scorer)


def _function(where: str) -> Callable[..., Any]:
    module, function = where.split(":")
    return getattr(import_module(f"cir_utils.methods.{module}"), function)


def parse_assignments(assignments: list[str], what: str = "--set") -> dict[str, str]:
    """``["alpha=0.2", ...]`` as a dictionary of texts; :class:`InputError` for anything else or a name given
    twice."""
    found: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            raise InputError(f"{what} {assignment!r} is not of the form name=value")
        if name.strip() in found:
            raise InputError(f"{what} gives {name.strip()!r} twice; keep one")
        found[name.strip()] = value.strip()
    return found


def resolve_settings(
    method: str, defaults: Mapping[str, SettingValue], overrides: Mapping[str, Any] | None = None
) -> dict[str, SettingValue]:
    """Every setting of ``method`` with its value: the override, else the profile's value, else the setting's
    own default.

    Overrides may be texts (from the command line) or values. Raises :class:`InputError` for a setting that
    the method does not have (its settings are listed) and for a value outside the setting's range."""
    names = get_method(method).settings
    overrides = dict(overrides or {})
    for name in overrides:
        if name not in names:
            have = f"its settings are {', '.join(names)}" if names else "it has none"
            raise InputError(f"unknown setting {name!r} of method {method}: {have}")
    resolved = {}
    for name in names:
        setting = SETTINGS[name]
        value = overrides.get(name, defaults.get(name, setting.default))
        if value is None:
            raise InputError(
                f"setting {name!r} of method {method} has no value here; give it with --set {name}=..."
            )
        resolved[name] = _checked(name, setting, value)
    if resolved.get("vision") == "off" and resolved.get("text") == "off":
        raise InputError(
            "settings vision=off and text=off together leave method xr without agents; switch one on"
        )
    return resolved


def _checked(name: str, setting: Setting, value: Any) -> SettingValue:
    """``value`` as the setting's kind, or :class:`InputError`."""
    fault = InputError(f"setting {name}={value} is not valid: {name} must be {setting.expected()}")
    if setting.choices:
        if value not in setting.choices:
            raise fault
        return str(value)
    if isinstance(value, bool):
        raise fault
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise fault from None
    if not setting.low <= number <= setting.high or (setting.kind is int and number != int(number)):
        raise fault
    return int(number) if setting.kind is int else number
