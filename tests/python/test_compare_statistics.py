# SPDX-License-Identifier: Apache-2.0
"""The report's statistics against closed forms, and its intervals against the truth they claim to hold."""

import numpy as np
import pytest

from streamkl.compare.fields import FIELDS, LLAMA_PARTS, PARTS
from streamkl.compare.report import Tokens, depth_edges, describe, histogram, pairs
from streamkl.compare.statistics import (
    MEANS,
    QUANTILES,
    Bootstrap,
    columns_of,
    grouped,
    naive_error,
    paired,
    student_t,
    summarise,
)


def rows_of(n, seed=0, **given):
    """Plausible rows: what is not given is drawn."""
    draw = np.random.default_rng(seed)
    rows = {name: draw.gamma(0.5, 0.02, n) for name in ("kl", "reverse", "jsd", "tv")}
    rows.update({name: draw.random(n) * 3 for name in ("entropy_ref", "entropy_other")})
    rows.update(lse_ref=np.zeros(n), lse_other=np.zeros(n))
    rows.update({name: draw.integers(0, 3, n) for name in ("top1_ref", "top1_other", "label")})
    rows.update({name: draw.integers(0, 11, n) for name in ("rank_ref", "rank_other")})
    rows.update(
        {name: np.log(draw.uniform(0.02, 1, n)) for name in ("logprob_ref", "logprob_other", "logprob_top1_ref")}
    )
    rows.update(given)
    return rows


def alone(n):
    """No interval: one sequence."""
    return Bootstrap(np.zeros(n, int))


def test_every_field_is_computed():
    found = summarise(rows_of(500), Bootstrap(np.arange(500) // 50, resamples=50))
    assert set(found) == set(FIELDS) == set(MEANS) | set(QUANTILES)
    for key, stat in found.items():
        assert stat["low"] is None or stat["low"] <= stat["value"] <= stat["high"], key


def test_names_and_order_are_those_of_llama_cpp():
    names = [[" ".join(field.name.split()) for field in part.fields] for part in PARTS[:LLAMA_PARTS]]
    assert [part.title for part in PARTS[:LLAMA_PARTS]] == [
        "Perplexity statistics",
        "KL divergence statistics",
        "Token probability statistics",
    ]
    kld = "Mean,Maximum,99.9%,99.0%,95.0%,90.0%,Median,10.0%,5.0%,1.0%,0.1%,Minimum".split(",")
    dp = "Mean,Maximum,99.9%,99.0%,95.0%,90.0%,75.0%,Median,25.0%,10.0%,5.0%,1.0%,0.1%,Minimum".split(",")
    assert names[0] == [
        "Mean PPL(Q)",
        "Mean PPL(base)",
        "Cor(ln(PPL(Q)), ln(PPL(base)))",
        "Mean ln(PPL(Q)/PPL(base))",
        "Mean PPL(Q)/PPL(base)",
        "Mean PPL(Q)-PPL(base)",
    ]
    assert names[1] == [f"{word} KLD" for word in kld]
    assert names[2] == [f"{word} Δp" for word in dp] + ["RMS Δp", "Same top p"]


def test_percentiles_interpolate_linearly():
    found = summarise(rows_of(101, kl=np.random.default_rng(1).permutation(np.arange(101.0))), alone(101))
    for key, want in dict(
        max_kld=100, p99_9_kld=99.9, p99_kld=99, p90_kld=90, median_kld=50, p0_1_kld=0.1, min_kld=0
    ).items():
        assert found[key]["value"] == pytest.approx(want, abs=1e-9), key
    assert summarise(rows_of(2, kl=np.array([0.0, 1.0])), alone(2))["median_kld"]["value"] == 0.5


def test_errors_are_llama_cpps():
    """Written out as perplexity.cpp has them: variances of means, covariance, propagation, binomial."""
    n = 400
    rows = rows_of(n)
    found = summarise(rows, alone(n))
    q, b = -rows["logprob_other"], -rows["logprob_ref"]

    def covariance(x, y):
        return ((x * y).mean() - x.mean() * y.mean()) / (n - 1)

    ppl_q, ppl_b = np.exp(q.mean()), np.exp(b.mean())
    assert found["mean_ppl_q"]["value"] == pytest.approx(ppl_q)
    assert found["mean_ppl_q"]["error"] == pytest.approx(ppl_q * np.sqrt(covariance(q, q)))
    ratio = np.sqrt(covariance(q, q) + covariance(b, b) - 2 * covariance(q, b))
    assert found["mean_ln_ppl_ratio"]["error"] == pytest.approx(ratio)
    assert found["mean_ppl_ratio"]["error"] == pytest.approx(ppl_q / ppl_b * ratio)
    gap = ppl_q**2 * covariance(q, q) + ppl_b**2 * covariance(b, b) - 2 * ppl_q * ppl_b * covariance(q, b)
    assert found["mean_ppl_diff"]["error"] == pytest.approx(np.sqrt(gap))
    assert found["mean_kld"]["error"] == pytest.approx(rows["kl"].std() / np.sqrt(n - 1))
    dp = np.exp(-q) - np.exp(-b)
    rms = np.sqrt((dp**2).mean())
    assert found["rms_delta_p"]["value"] == pytest.approx(rms)
    assert found["rms_delta_p"]["error"] == pytest.approx(0.5 / rms * np.sqrt(covariance(dp**2, dp**2)))
    same = (rows["top1_ref"] == rows["top1_other"]).mean()
    assert found["same_top_p"]["error"] == pytest.approx(np.sqrt(same * (1 - same) / (n - 1)))
    assert found["cor_ln_ppl"]["value"] == pytest.approx(np.corrcoef(q, b)[0, 1])


def test_flips_and_agreement():
    rows = rows_of(4, top1_ref=np.array([1, 1, 2, 2]), top1_other=np.array([1, 2, 1, 2]), label=np.array([1, 1, 1, 1]))
    rows.update(rank_ref=np.array([0, 4, 5, 10]), rank_other=np.array([0, 0, 9, 10]))
    found = {key: stat["value"] for key, stat in summarise(rows, alone(4)).items()}
    assert (found["same_top_p"], found["flips"], found["broken"], found["fixed"]) == (0.5, 0.5, 0.25, 0.25)
    assert (found["accuracy_base"], found["accuracy_q"]) == (0.5, 0.5)
    assert (found["top5_base_in_q"], found["top10_base_in_q"]) == (0.5, 0.75)
    assert (found["top5_q_in_base"], found["top10_q_in_base"]) == (0.5, 0.75)


def test_equal_models():
    """No division by zero where nothing differs."""
    rows = rows_of(50)
    rows.update(kl=np.zeros(50), logprob_other=rows["logprob_ref"], top1_other=rows["top1_ref"])
    found = summarise(rows, Bootstrap(np.arange(50) // 10, 100))
    assert found["mean_kld"]["value"] == 0 and found["mean_kld"]["high"] == 0
    assert found["rms_delta_p"]["value"] == 0 and found["rms_delta_p"]["error"] == 0
    assert found["cor_ln_ppl"]["value"] == pytest.approx(1) and found["mean_ppl_ratio"]["value"] == 1
    assert paired(rows["kl"], rows["kl"], Bootstrap(np.arange(50) // 10, 100))["verdict"] == "cannot tell"


def test_student_t():
    for freedom, want in {1: 12.706, 2: 4.303, 5: 2.571, 10: 2.228, 30: 2.042, 120: 1.980}.items():
        assert student_t(freedom) == pytest.approx(want, abs=2e-3)


def skewed(draw, sequences, tokens):
    """Numbers that a sequence shares: their mean is 0.1, and tokens alone know less of it than it seems."""
    level = draw.gamma(4, 0.25, sequences)
    return 0.1 * np.repeat(level, tokens) * draw.gamma(2, 0.5, sequences * tokens), np.repeat(
        np.arange(sequences), tokens
    )


@pytest.mark.parametrize("sequences", (6, 24))
def test_intervals_cover(sequences):
    """95 % intervals hold the truth about 95 times of 100, where the naive ones do so half of the time."""
    inside = naive = 0
    times = 400
    for seed in range(times):
        values, sequence = skewed(np.random.default_rng(seed), sequences, 40)
        bootstrap = Bootstrap(sequence, resamples=400, seed=seed)
        mean = values.mean()
        low, high = bootstrap.interval(mean, bootstrap.means({"kl": values})["kl"])
        inside += low <= 0.1 <= high
        naive += abs(mean - 0.1) <= 1.96 * naive_error(values)
    assert 0.90 <= inside / times <= 0.99
    assert naive / times < 0.75


def test_quantiles_of_draws():
    """The median of draws spreads around the median of all."""
    draw = np.random.default_rng(3)
    values, sequence = draw.random(3000), np.repeat(np.arange(30), 100)
    found = Bootstrap(sequence, 300).quantiles(values, [0.5, 0.9])
    assert found.shape == (300, 2)
    assert np.abs(found.mean(0) - np.quantile(values, [0.5, 0.9])).max() < 0.01
    assert 0.004 < found[:, 0].std() < 0.02  # 0.009 for independent tokens


@pytest.mark.parametrize("shift, verdict", ((0.5, "better"), (2.0, "worse"), (1.0, "cannot tell")))
def test_paired_verdict(shift, verdict):
    values, sequence = skewed(np.random.default_rng(1), 20, 50)
    noise = np.random.default_rng(2).normal(0, 0.01, len(values))
    assert paired(values * shift + noise, values, Bootstrap(sequence))["verdict"] == verdict


def test_paired_verdict_is_seldom_wrong():
    """Two equal candidates are called different in about 5 of 100 texts, though single errors would allow more."""
    called = 0
    for seed in range(200):
        draw = np.random.default_rng(seed)
        a, sequence = skewed(draw, 12, 30)
        b = a + np.repeat(draw.normal(0, 0.02, 12), 30) + draw.normal(0, 0.05, len(a))
        called += paired(a, b, Bootstrap(sequence, 300))["verdict"] != "cannot tell"
    assert called <= 20


def test_one_sequence_has_no_interval():
    found = summarise(rows_of(60), alone(60))
    assert all(stat["low"] is None and stat["high"] is None for stat in found.values())
    assert paired(np.ones(9), np.zeros(9), alone(9))["verdict"] == "cannot tell"


def test_without_labels():
    rows = {
        name: column for name, column in rows_of(40).items() if name not in ("label", "logprob_ref", "logprob_other")
    }
    found = summarise(rows, alone(40))
    assert "mean_kld" in found and "mean_ppl_q" not in found and "p99_delta_p" not in found
    assert "nll_q" not in columns_of(rows)


def test_groups():
    rows = rows_of(6, kl=np.array([1.0, 3, 5, 7, 9, 11]), top1_ref=np.zeros(6), top1_other=np.array([0, 0, 0, 1, 1, 1]))
    first, second, third = grouped(rows, np.array([0, 0, 0, 1, 1, 1]), 3)
    assert (first["tokens"], first["mean_kld"], first["median_kld"], first["same_top"]) == (3, 3, 3, 1)
    assert (second["mean_kld"], second["same_top"]) == (9, 0)
    assert third["tokens"] == 0 and third["mean_kld"] is None


def test_depth_edges_cover_all_positions():
    for positions in (1, 15, 17, 128, 511, 131072):
        edges = depth_edges(positions)
        assert edges[0] == 0 and edges == sorted(set(edges)) and edges[-1] < positions and len(edges) <= 16


def test_histogram_counts_every_token():
    found = histogram(np.array([0.0, -1e-9, 1e-12, 1e-3, 1e-3, 1e6]))
    assert sum(found["counts"]) == 6 and found["counts"][0] == 3 and found["counts"][-1] == 1


def test_rows_that_are_not_finite_are_counted_and_left_out():
    rows = rows_of(100)
    for name, at in (("lse_ref", 3), ("lse_other", 4), ("lse_other", 5), ("kl", 6)):
        rows[name][at] = np.nan
    rows["lse_other"][7] = np.inf
    kl = rows["kl"].copy()
    tokens = Tokens(rows, np.arange(100) // 10, np.arange(100) % 10 + 1)
    found = describe({"name": "x"}, tokens, resamples=20)
    assert found["not_finite"] == {"rows": 5, "reference": 1, "other": 3} and found["tokens"] == 95
    assert found["metrics"]["mean_kld"]["value"] == pytest.approx(np.delete(kl, [3, 4, 5, 6, 7]).mean())
    (pair,) = pairs({"a": tokens, "b": tokens}, resamples=20)
    assert pair["tokens"] == 95 and pair["verdict"] == "cannot tell"
