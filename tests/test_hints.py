"""Hints of SDR-CIR: which sign is seen, and what is advised."""

from __future__ import annotations

import pytest
import torch

from cir_utils.hints import hints, standing, summary
from cir_utils.scoring import rank_by


def _world() -> tuple[torch.Tensor, torch.Tensor]:
    """100 items: the first 10 are like the reference, the next 10 like the description, the rest like
    neither."""
    S_r, S_d = torch.zeros(1, 100), torch.zeros(1, 100)
    S_r[0, :10] = 0.9
    S_d[0, 10:20] = 0.3
    return S_r, S_d


def test_standing_is_in_standard_deviations_of_the_gallery() -> None:
    S_r, _ = _world()
    order = rank_by(S_r)
    # mean 0.09, deviation 0.27: the head of 0.9 stands (0.9 - 0.09) / 0.27 = 3 above.
    assert standing(S_r, order).item() == pytest.approx(3.0, abs=1e-6)
    assert standing(torch.ones(1, 100), order).item() == 0.0


def test_results_like_the_reference_ask_for_more_beta() -> None:
    S_r, S_d = _world()
    (hint,) = hints(S_r, S_d, rank_by(S_r), alpha=0.15, beta=0.35)
    assert hint.sign == "close"
    assert hint.text == "too close to the reference: try beta 0.45 instead of 0.35"
    assert hint.to_reference == pytest.approx(3.0, abs=1e-6)
    assert hint.to_description == pytest.approx(-1 / 3, abs=1e-6)


def test_results_unlike_the_reference_ask_for_more_alpha() -> None:
    S_r, S_d = _world()
    (hint,) = hints(S_r, S_d, rank_by(S_d), alpha=0.15, beta=0.35)
    assert hint.sign == "lost"
    assert hint.text == "the reference's look is lost: try alpha 0.2 instead of 0.15"


def test_results_near_both_need_no_advice() -> None:
    S_r, S_d = _world()
    (hint,) = hints(S_r + 3 * S_d.roll(-10, 1), S_d.roll(-10, 1), rank_by(S_r), alpha=0.15, beta=0.35)
    assert (hint.sign, hint.text) == ("", "")


def test_no_advice_beyond_the_known_range() -> None:
    S_r, S_d = _world()
    assert hints(S_r, S_d, rank_by(S_r), 0.15, 0.5)[0].text.endswith(
        "beta is 0.5 already; look at the descriptions instead"
    )
    assert hints(S_r, S_d, rank_by(S_r), 0.15, 0.45)[0].text.endswith("try beta 0.5 instead of 0.45")
    # 0.2 would be warned of by the scoring
    assert hints(S_r, S_d, rank_by(S_r), 0.15, 0.1)[0].text.endswith("try beta 0.3 instead of 0.1")
    assert hints(S_r, S_d, rank_by(S_d), 0.3, 0.4)[0].text.endswith(
        "alpha is 0.3 already; look at the descriptions instead"
    )


def test_a_run_is_advised_when_enough_queries_show_one_sign() -> None:
    S_r, S_d = _world()
    close, lost = hints(S_r, S_d, rank_by(S_r), 0.1, 0.4), hints(S_r, S_d, rank_by(S_d), 0.1, 0.4)
    fine = hints(S_r + 3 * S_d.roll(-10, 1), S_d.roll(-10, 1), rank_by(S_r), 0.1, 0.4)
    assert (
        summary(close + fine * 3, 0.1, 0.4)
        == "hint for 1 of 4 queries: too close to the reference: try beta 0.5 instead of 0.4"
    )
    assert summary(close + fine * 4, 0.1, 0.4) == ""
    assert "look is lost" in summary(close + lost * 2, 0.1, 0.4)
    assert summary([], 0.1, 0.4) == ""
