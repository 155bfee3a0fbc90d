/* SPDX-License-Identifier: Apache-2.0 */
#include "labels.h"

#include "logits.h"

#include <math.h>

int64_t kit_label(const struct skl_problem *p, int64_t row)
{
    if (!p->labels)
        return -1;
    const struct skl_tensor *ids = &p->labels->ids;
    int64_t id = (int64_t)kit_element(ids, kit_row_offset(ids, p->s.a.shape, p->s.a.ndim - 1, row));
    return id == p->labels->ignore ? -1 : id;
}

static double mass_of(const struct skl_problem *p, int64_t row, int64_t lo, int64_t n, const double *logp)
{
    const struct skl_tensor *ids = &p->mass_ids;
    int lead = p->s.a.ndim - 1;
    double mass = 0;
    for (int64_t k = 0; ids->data && k < ids->shape[lead]; k++) {
        int64_t at = kit_row_offset(ids, p->s.a.shape, lead, row) + k * ids->stride[lead];
        int64_t j = (int64_t)kit_element(ids, at) - lo;
        mass += j >= 0 && j < n && j + lo >= 0 ? exp(logp[j]) : 0;
    }
    return mass;
}

struct kit_told kit_tell(const struct skl_problem *p, int64_t row, int64_t lo, int64_t n, const double *logp)
{
    struct kit_told told = {.top1 = (double)lo, .margin = INFINITY, .mass = mass_of(p, row, lo, n, logp)};
    double first = -INFINITY, second = -INFINITY;
    for (int64_t j = 0; j < n; j++) {
        double x = exp(logp[j]);
        told.entropy -= x > 0 ? x * logp[j] : 0;
        if (logp[j] > first)
            second = first, first = logp[j], told.top1 = (double)(lo + j);
        else
            second = fmax(second, logp[j]);
    }
    told.margin = second > -INFINITY ? first - second : INFINITY;
    return told;
}

double kit_kl(int64_t n, const double *logp, const double *logq)
{
    double sum = 0;
    for (int64_t j = 0; j < n; j++) sum += exp(logp[j]) > 0 ? exp(logp[j]) * (logp[j] - logq[j]) : 0;
    return sum;
}

double kit_jsd(int64_t n, const double *logp, const double *logq)
{
    double sum = 0;
    for (int64_t j = 0; j < n; j++) {
        double p = exp(logp[j]), q = exp(logq[j]), m = (p + q) / 2;
        sum += (p > 0 ? p * log(p / m) / 2 : 0) + (q > 0 ? q * log(q / m) / 2 : 0);
    }
    return sum;
}

double kit_variation(int64_t n, const double *logp, const double *logq)
{
    double sum = 0;
    for (int64_t j = 0; j < n; j++) sum += fabs(exp(logp[j]) - exp(logq[j])) / 2;
    return sum;
}

void kit_add_label(const struct skl_problem *p, int64_t label, int64_t n, const double *z, double g,
                   struct skl_reference_row *out, double *dz)
{
    const struct skl_labels *l = p->labels;
    double lse = kit_log_sum_exp(n, z), mean = 0;
    for (int64_t j = 0; j < n; j++) mean += z[j] / (double)n, dz[j] = 0;
    out->loss = l->kl_weight * out->kl;
    if (label < 0)
        return;
    out->lse1_s = lse;
    out->ce = (1 - l->smoothing) * (lse - z[label]) + l->smoothing * (lse - mean) + l->z_loss * lse * lse;
    out->loss += l->weight * out->ce + l->lse_weight * lse;
    for (int64_t j = 0; j < n; j++) {
        double q = exp(z[j] - lse);
        double of_ce = q * (1 + 2 * l->z_loss * lse) - (1 - l->smoothing) * (j == label) - l->smoothing / (double)n;
        dz[j] = g * (l->weight * of_ce + l->lse_weight * q);
    }
}
