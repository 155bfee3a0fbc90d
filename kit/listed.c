/* SPDX-License-Identifier: Apache-2.0
 *
 * By the definition: the columns are put into categories, each with a mass p_c of the teacher and q_c of the student. A
 * listed column is a category of its own; the others are one more (bucket), or none of the sum's (zero, teacher), or do
 * not exist (renormalise).
 *
 *     log q_c = LSE over c - LSE,      d log q_c / d z_j = [j in c] q_j / q_c - q_j
 *     forward  sum_c p_c log(p_c / q_c),      reverse  sum_c q_c log(q_c / p_c)
 */
#include "listed.h"

#include "tensor.h"

#include <stdlib.h>
#include <string.h>

const char *const kit_listed_way_names[KIT_LISTED_WAYS] = {"together", "recompute", "backward"};
const char *const kit_listed_kind_names[KIT_LISTED_KINDS] = {"bucket",  "renormalise",    "zero",
                                                             "teacher", "bucket reverse", "renormalise reverse"};
enum { IGNORED = -7 };
static const int tails[KIT_LISTED_KINDS] = {SKL_TAIL_BUCKET,  SKL_TAIL_RENORMALISE, SKL_TAIL_ZERO,
                                            SKL_TAIL_TEACHER, SKL_TAIL_BUCKET,      SKL_TAIL_RENORMALISE};

enum { INPUTS = 8, OUTPUTS = 9 }; /* tensors of a call, at most */

struct kit_listed {
    struct kit_listed_case c;
    struct skl_problem p;
    struct skl_listed listed;
    struct skl_labels labels;
    float *weight, *rest, *out[5]; /* loss, da, db, dbias; [4]: what a backward needs */
    const struct kit_device *device;
    void *there[INPUTS + OUTPUTS]; /* memory of the device, while a call runs */
    int there_count;
    int32_t *label;
    double value;
    /* What is expected, and how far off it may be: [rows], [rows][dim], [cols + pad][dim], [cols + pad]. */
    double *want[4], *bound[4], want_value, value_bound;
};

/* -------------------------------------------------------------------------------------------------- cases --- */

struct kit_listed_case kit_random_listed(struct kit_random *r, int kind)
{
    static const int64_t rows[] = {1, 3, 16, 17, 40}, cols[] = {1, 2, 63, 192, 193, 400}, dims[] = {1, 7, 24, 65, 300};
    static const double temperatures[] = {1, 1, 2, 0.5};
    struct kit_listed_case c = {.kind = kind, .rows = KIT_PICK(r, rows), .cols = KIT_PICK(r, cols)};
    c.dim = KIT_PICK(r, dims);
    c.pad = kit_chance(r, 3) ? 3 : 0;
    c.k = kit_chance(r, 4) ? c.cols : kit_chance(r, 20) ? 0 : kit_between(r, 1, 12);
    c.dtype = (int)kit_between(r, SKL_F32, SKL_F16);
    c.wide_ids = (int)kit_between(r, 0, 1);
    c.dtype_logprobs = kit_chance(r, 3) ? SKL_BF16 : SKL_F32;
    c.scale = kit_chance(r, 4) ? -0.7 : 1;
    c.softcap = kit_chance(r, 4) ? 4 : 0;
    c.temperature = KIT_PICK(r, temperatures);
    c.stored = kit_chance(r, 2) ? c.temperature : 1.5;
    c.bias = kit_chance(r, 3), c.weights = kit_chance(r, 3), c.labels = kit_chance(r, 3);
    c.given_rest = kit_chance(r, 2) || kind == 4; /* a reverse KL to a bucket of no mass is infinite */
    c.mean = (int)kit_between(r, 0, 1);
    c.skip_below = kit_chance(r, 4) ? 0x1p-40 : 0;
    c.threads = (int)kit_between(r, 1, 3);
    return c;
}

static void *room(int64_t n, size_t size)
{
    void *memory = calloc((size_t)(n > 0 ? n : 1), size);
    if (!memory)
        abort();
    return memory;
}

static struct skl_tensor matrix(int dtype, int64_t rows, int64_t cols)
{
    return skl_matrix(dtype, room(rows * cols, kit_element_size(dtype)), rows, cols);
}

/* Columns of a row, some twice, some slots empty; masses that sum to at most 1. */
static void draw_list(struct kit_listed *f, int64_t i, struct kit_random *r)
{
    const struct kit_listed_case *c = &f->c;
    double total = 0, kept = f->rest ? 0.7 : kit_chance(r, 8) ? 1 : 0.2 + 0.7 * kit_uniform(r);
    int everything = c->k == c->cols && !kit_chance(r, 3), nothing = kit_chance(r, 12);
    double *mass = room(c->k, sizeof *mass);
    for (int64_t k = 0; k < c->k; k++) total += mass[k] = exp(2 * kit_normal(r));
    for (int64_t k = 0; k < c->k; k++) {
        int64_t id = everything ? c->cols - 1 - k : kit_between(r, 0, c->cols - 1);
        if (nothing || (!everything && kit_chance(r, 6)))
            id = -1;
        kit_set(&f->listed.ids, i * c->k + k, (double)id);
        kit_set(&f->listed.logprobs, i * c->k + k, log(kept * mass[k] / total));
    }
    free(mass);
}

struct kit_listed *kit_build_listed(const struct kit_listed_case *c, struct kit_random *r,
                                    const struct kit_device *device)
{
    struct kit_listed *f = room(1, sizeof *f);
    f->c = *c, f->device = device;
    f->p = skl_linear(matrix(c->dtype, c->rows, c->dim), matrix(c->dtype, c->cols + c->pad, c->dim),
                      (struct skl_tensor){0}, (struct skl_tensor){0});
    kit_fill_normal(&f->p.s.a, r, 1.5, KIT_NORMAL);
    kit_fill_normal(&f->p.s.b, r, 1 / sqrt((double)c->dim), KIT_NORMAL);
    if (c->bias) {
        f->p.s.bias = skl_vector(SKL_F32, room(c->cols + c->pad, 4), c->cols + c->pad);
        kit_fill_normal(&f->p.s.bias, r, 1, KIT_NORMAL);
    }
    f->p.columns = c->cols, f->p.s.scale = c->scale, f->p.s.softcap = c->softcap, f->p.temperature = c->temperature;
    f->p.threads = c->threads, f->p.isa = c->isa, f->p.skip_below = c->skip_below;
    f->p.reduction = c->mean ? SKL_MEAN : SKL_SUM;
    f->p.divergence = c->kind >= 4 ? SKL_REVERSE_KL : SKL_FORWARD_KL;
    f->listed = (struct skl_listed){.struct_size = sizeof f->listed, .tail = tails[c->kind]};
    f->listed.stored_temperature = c->stored;
    f->listed.ids = matrix(c->wide_ids ? SKL_I64 : SKL_I32, c->rows, c->k);
    f->listed.logprobs = matrix(c->dtype_logprobs, c->rows, c->k);
    f->p.listed = &f->listed;
    if (c->given_rest) {
        f->rest = room(c->rows, sizeof *f->rest);
        for (int64_t i = 0; i < c->rows; i++) f->rest[i] = -5 * (float)kit_uniform(r);
        f->listed.tail_logprob = skl_vector(SKL_F32, f->rest, c->rows);
    }
    for (int64_t i = 0; i < c->rows; i++) draw_list(f, i, r);
    if (c->weights) {
        f->weight = room(c->rows, sizeof *f->weight);
        for (int64_t i = 0; i < c->rows; i++) f->weight[i] = kit_chance(r, 4) ? 0 : (float)(0.1 + kit_uniform(r));
        f->p.weight = skl_vector(SKL_F32, f->weight, c->rows);
    }
    if (c->labels) {
        f->label = room(c->rows, sizeof *f->label);
        for (int64_t i = 0; i < c->rows; i++)
            f->label[i] = kit_chance(r, 4) ? IGNORED : (int32_t)kit_between(r, 0, c->cols - 1);
        f->labels = (struct skl_labels){
            sizeof f->labels, skl_vector(SKL_I32, f->label, c->rows), 0.3, 0.6, 0, IGNORED, 0.1, 0};
        f->p.labels = &f->labels;
    }
    return f;
}

void kit_destroy_listed(struct kit_listed *f)
{
    free(f->p.s.a.data), free(f->p.s.b.data), free(f->p.s.bias.data);
    free(f->listed.ids.data), free(f->listed.logprobs.data), free(f->rest), free(f->weight), free(f->label);
    for (int k = 0; k < 5; k++) free(f->out[k]);
    for (int k = 0; k < 4; k++) free(f->want[k]), free(f->bound[k]);
    free(f);
}

struct skl_problem *kit_listed_problem(struct kit_listed *f)
{
    return &f->p;
}

/* --------------------------------------------------------------------------------------------- definition --- */

/* One row: logits, the derivative of a logit by the product, masses of the teacher, which columns it lists. */
struct row {
    double *z, *chain, *p, *dz, *sensitivity;
    double *parts; /* |dz| of the divergence plus that of labels: each is rounded by itself on a device */
    char *on;
    int64_t listed;
    double rest, largest;
};

static void logits_of(const struct kit_listed *f, int64_t i, struct row *w)
{
    const struct kit_listed_case *c = &f->c;
    w->largest = 0;
    for (int64_t j = 0; j < c->cols; j++) {
        double sum = c->bias ? kit_get(&f->p.s.bias, j) : 0, t;
        for (int64_t d = 0; d < c->dim; d++)
            sum += kit_get(&f->p.s.a, i * c->dim + d) * kit_get(&f->p.s.b, j * c->dim + d);
        sum *= c->scale;
        t = c->softcap > 0 ? tanh(sum / c->softcap) : 0;
        w->chain[j] = c->scale * (1 - t * t) / c->temperature;
        w->z[j] = (c->softcap > 0 ? c->softcap * t : sum) / c->temperature;
        w->largest = fmax(w->largest, fabs(w->z[j]) * fmax(1, c->temperature));
    }
}

static void masses_of(const struct kit_listed *f, int64_t i, struct row *w)
{
    const struct kit_listed_case *c = &f->c;
    double sum = 0, power = c->stored / c->temperature, total;
    int tail = f->listed.tail, own = tail == SKL_TAIL_RENORMALISE || tail == SKL_TAIL_TEACHER;
    memset(w->on, 0, (size_t)c->cols), memset(w->p, 0, (size_t)c->cols * sizeof *w->p);
    w->listed = 0;
    for (int64_t k = 0; k < c->k; k++) {
        int64_t id = (int64_t)kit_get(&f->listed.ids, i * c->k + k);
        if (id >= 0)
            w->p[id] += exp(kit_get(&f->listed.logprobs, i * c->k + k)), w->on[id] = 1;
    }
    for (int64_t j = 0; j < c->cols; j++) sum += w->p[j], w->listed += w->on[j];
    w->rest = own || w->listed == c->cols ? 0 : f->rest ? exp((double)f->rest[i]) : fmax(1 - sum, 0);
    if (power != 1 || own) {
        total = w->rest = w->rest > 0 ? pow(w->rest, power) : 0;
        for (int64_t j = 0; j < c->cols; j++) total += w->p[j] = w->on[j] ? pow(w->p[j], power) : 0;
        for (int64_t j = 0; j < c->cols; j++) w->p[j] /= total;
        w->rest /= total;
    }
    if (tail != SKL_TAIL_BUCKET)
        w->rest = 0;
}

/* log sum e^z over the columns that are listed (1), that are not (0), or all (2). */
static double lse(const struct row *w, int64_t cols, int which, double factor)
{
    double m = -INFINITY, sum = 0;
    for (int64_t j = 0; j < cols; j++)
        if (which == 2 || w->on[j] == which)
            m = fmax(m, factor * w->z[j]);
    for (int64_t j = 0; j < cols; j++)
        if (which == 2 || w->on[j] == which)
            sum += exp(factor * w->z[j] - m);
    return m == -INFINITY ? m : m + log(sum);
}

/* The divergence of the row, its dz, and how much |dz_j| moves where a logit or an LSE is off by 1. */
static double divergence(const struct kit_listed *f, struct row *w)
{
    const int64_t n = f->c.cols;
    int tail = f->listed.tail, reverse = f->c.kind >= 4, support = tail == SKL_TAIL_RENORMALISE;
    double all = lse(w, n, support ? 1 : 2, 1), off = lse(w, n, 0, 1) - all, d = 0, slope_sum = 0, slope_off = 0;
    int bucket = tail == SKL_TAIL_BUCKET && w->listed < n;
    /* slope_c = d D / d log q_c */
    for (int64_t j = 0; j < n; j++) {
        double log_q = w->z[j] - all;
        if (!w->on[j])
            continue;
        d += reverse ? exp(log_q) * (log_q - log(w->p[j])) : w->p[j] > 0 ? w->p[j] * (log(w->p[j]) - log_q) : 0;
        slope_sum += w->dz[j] = reverse ? exp(log_q) * (log_q - log(w->p[j]) + 1) : -w->p[j];
    }
    if (bucket) {
        d += reverse ? exp(off) * (off - log(w->rest)) : w->rest > 0 ? w->rest * (log(w->rest) - off) : 0;
        slope_sum += slope_off = reverse ? exp(off) * (off - log(w->rest) + 1) : -w->rest;
    }
    for (int64_t j = 0; j < n; j++) {
        double q = support && !w->on[j] ? 0 : exp(w->z[j] - all), own = w->on[j] ? w->dz[j] : 0;
        double share = bucket && !w->on[j] ? exp(w->z[j] - all - off) : 0;
        w->dz[j] = own + slope_off * share - q * slope_sum;
        w->parts[j] = fabs(w->dz[j]);
        w->sensitivity[j] = 2 * (fabs(own) + fabs(slope_off) * share + q * (1 + fabs(slope_sum)));
    }
    return d;
}

/* Cross-entropy with its smoothing at temperature 1, added to dz and returned. */
static double cross_entropy(const struct kit_listed *f, int64_t i, struct row *w)
{
    const struct skl_labels *l = &f->labels;
    const int64_t n = f->c.cols;
    double T = f->c.temperature, all = lse(w, n, 2, T), ce = 0;
    for (int64_t j = 0; j < n; j++) {
        double target = (1 - l->smoothing) * (j == f->label[i]) + l->smoothing / (double)n, z = T * w->z[j];
        ce += target * (all - z);
        w->dz[j] = l->kl_weight * w->dz[j] + l->weight * T * (exp(z - all) - target);
        w->parts[j] = l->kl_weight * w->parts[j] + l->weight * T * fabs(exp(z - all) - target);
        w->sensitivity[j] += 2 * T * (exp(z - all) + target);
    }
    return ce;
}

static double weight_of(const struct kit_listed *f, int64_t i)
{
    return f->weight ? (double)f->weight[i] : f->label && f->label[i] == IGNORED ? 0 : 1;
}

/* How far off a device may be with dx, as a part of it: half a unit in the last place where it is rounded for the
 * products. */
static double rounding_of_dx(const struct kit_listed *f)
{
    int gathered = f->listed.tail == SKL_TAIL_RENORMALISE && !f->c.labels;
    /* The tiles of AMX take dz in two parts, of 16 bits together (kit/bounds.c). */
    if (!f->device)
        return f->c.dtype == SKL_BF16 && f->c.isa == SKL_ISA_AMX ? 0x1p-17 : 0;
    return gathered || f->c.dtype == SKL_F32 ? 0 : f->c.dtype == SKL_BF16 ? 0x1p-8 : 0x1p-11;
}

static void add_gradients(struct kit_listed *f, int64_t i, double g, const struct row *w)
{
    const struct kit_listed_case *c = &f->c;
    double unit = (f->device ? 3 : 1) * 3 * 0x1p-24 * (1 + w->largest), part = rounding_of_dx(f);
    /* An f16 dx that is not a normal number, of the rows' largest weight. */
    double least = f->device && c->dtype == SKL_F16 && part > 0 ? 0x1p-32 * (1 + c->temperature) / c->temperature : 0;
    for (int64_t j = 0; j < c->cols; j++) {
        double dx = g * w->dz[j] * w->chain[j], e = unit * fabs(g * w->chain[j]) * w->sensitivity[j];
        e += part * fabs(g * w->chain[j]) * (f->device ? w->parts[j] : fabs(w->dz[j]));
        e += least * (c->mean ? fabs(g) : 1.1) * fabs(c->scale);
        for (int64_t d = 0; d < c->dim; d++) {
            double a = kit_get(&f->p.s.a, i * c->dim + d), b = kit_get(&f->p.s.b, j * c->dim + d);
            f->want[1][i * c->dim + d] += dx * b, f->bound[1][i * c->dim + d] += e * fabs(b);
            f->want[2][j * c->dim + d] += dx * a, f->bound[2][j * c->dim + d] += e * fabs(a);
        }
        f->want[3][j] += dx, f->bound[3][j] += e;
    }
}

static void expect(struct kit_listed *f)
{
    const struct kit_listed_case *c = &f->c;
    int64_t all = c->cols + c->pad, size[4] = {c->rows, c->rows * c->dim, all * c->dim, all};
    struct row w = {
        room(all, 8), room(all, 8), room(all, 8), room(all, 8), room(all, 8), room(all, 8), room(all, 1), 0, 0, 0};
    double weights = 0, sum = 0, slack = 0;
    for (int k = 0; k < 4; k++) f->want[k] = room(size[k], 8), f->bound[k] = room(size[k], 8);
    for (int64_t i = 0; i < c->rows; i++) weights += weight_of(f, i);
    for (int64_t i = 0; i < c->rows; i++) {
        double weight = weight_of(f, i), g = !c->mean ? weight : weights != 0 ? weight / weights : 0;
        logits_of(f, i, &w), masses_of(f, i, &w);
        if (weight == 0 || w.listed == 0)
            continue;
        double loss = divergence(f, &w);
        if (c->labels && f->label[i] != IGNORED)
            loss = f->labels.kl_weight * loss + f->labels.weight * cross_entropy(f, i, &w);
        else if (c->labels) {
            loss *= f->labels.kl_weight;
            for (int64_t j = 0; j < c->cols; j++) w.dz[j] *= f->labels.kl_weight;
        }
        f->want[0][i] = loss, f->bound[0][i] = 2e-6 * fabs(loss) + 1e-6 + 2 * 0x1p-24 * w.largest;
        f->bound[0][i] *= f->device ? 3 : 1;
        sum += g * loss, slack += fabs(g) * f->bound[0][i];
        add_gradients(f, i, g, &w);
    }
    f->want_value = sum, f->value_bound = slack;
    int64_t row[4] = {1, c->dim, c->dim, 1};
    for (int k = 1; k < 4; k++)
        for (int64_t i = 0; i < size[k]; i += row[k]) {
            double most = 0;
            for (int64_t d = 0; d < row[k]; d++) most = fmax(most, fabs(f->want[k][i + d]));
            for (int64_t d = 0; d < row[k]; d++) f->bound[k][i + d] += (f->device ? 3 : 1) * 5e-6 * most + 1e-30;
        }
    free(w.z), free(w.chain), free(w.p), free(w.dz), free(w.sensitivity), free(w.parts), free(w.on);
}

/* --------------------------------------------------------------------------------------------------- ways --- */

static size_t bytes_of(const struct skl_tensor *t)
{
    return (size_t)kit_count(t) * kit_element_size(t->dtype);
}

/* The tensor as the call gets it: on the device a copy, of an output one that nobody has written. */
static struct skl_tensor there(struct kit_listed *f, struct skl_tensor t, int is_input)
{
    if (!f->device || !t.data)
        return t;
    void *p = f->device->get(bytes_of(&t) + 1);
    if (is_input)
        f->device->send(p, t.data, bytes_of(&t));
    else
        f->device->spoil(p, bytes_of(&t));
    f->there[f->there_count++] = p;
    t.data = p;
    return skl_on_cuda(t, 0);
}

/* What the call wrote comes back, and the device's memory is given back. */
static void bring_back(struct kit_listed *f, const struct skl_tensor *out, const struct skl_tensor *from, int count)
{
    if (!f->device)
        return;
    f->device->wait();
    for (int k = 0; k < count; k++)
        if (out[k].data)
            f->device->fetch(out[k].data, from[k].data, bytes_of(&out[k]));
    while (f->there_count) f->device->put_back(f->there[--f->there_count]);
}

/* The problem with what a device is given of it, to which its members point. */
struct given {
    struct skl_problem p;
    struct skl_listed listed;
    struct skl_labels labels;
};

static void give(struct kit_listed *f, struct given *g)
{
    *g = (struct given){f->p, f->listed, f->labels};
    g->p.s.a = there(f, g->p.s.a, 1), g->p.s.b = there(f, g->p.s.b, 1), g->p.s.bias = there(f, g->p.s.bias, 1);
    g->p.weight = there(f, g->p.weight, 1);
    g->listed.ids = there(f, g->listed.ids, 1), g->listed.logprobs = there(f, g->listed.logprobs, 1);
    g->listed.tail_logprob = there(f, g->listed.tail_logprob, 1);
    g->labels.ids = there(f, g->labels.ids, 1);
    g->p.listed = &g->listed, g->p.labels = f->p.labels ? &g->labels : NULL;
}

/* By halves. */
static size_t least_workspace(const struct skl_problem *problem, const struct skl_outputs *out)
{
    struct skl_problem p = *problem;
    size_t low = 0, high = (size_t)1 << 40, needed;
    while (high - low > 1) {
        p.workspace_limit = low + (high - low) / 2;
        if (skl_workspace_size(SKL_CALL_VALUE_AND_GRAD, &p, out, &needed) == SKL_OK)
            high = p.workspace_limit;
        else
            low = p.workspace_limit;
    }
    return high;
}

static enum skl_status run(struct kit_listed *f, enum kit_listed_way way)
{
    const struct kit_listed_case *c = &f->c;
    int64_t all = c->cols + c->pad, size[5] = {c->rows, c->rows * c->dim, all * c->dim, all, 4 * c->rows};
    for (int k = 0; k < 5; k++) {
        f->out[k] = f->out[k] ? f->out[k] : room(size[k], 4);
        memset(f->out[k], 0xFF, (size_t)size[k] * 4);
    }
    /* loss, da, db, dbias, value; what a backward needs: m_rest, l_rest, l1_s, m_s */
    int swept = f->listed.tail != SKL_TAIL_RENORMALISE || c->labels;
    struct skl_tensor none = {0}, out[] = {skl_vector(SKL_F32, f->out[0], c->rows),
                                           skl_matrix(SKL_F32, f->out[1], c->rows, c->dim),
                                           skl_matrix(SKL_F32, f->out[2], all, c->dim),
                                           c->bias ? skl_vector(SKL_F32, f->out[3], all) : none,
                                           skl_vector(SKL_F32, (float *)&f->value, 2),
                                           swept ? skl_vector(SKL_F32, f->out[4], c->rows) : none,
                                           swept ? skl_vector(SKL_F32, f->out[4] + c->rows, c->rows) : none,
                                           c->labels ? skl_vector(SKL_F32, f->out[4] + 2 * c->rows, c->rows) : none,
                                           c->labels ? skl_vector(SKL_F32, f->out[4] + 3 * c->rows, c->rows) : none};
    _Static_assert(sizeof out / sizeof *out == OUTPUTS, "each has its place on a device");
    struct skl_tensor at[OUTPUTS];
    struct given g;
    enum skl_status status;
    f->value = NAN;
    give(f, &g);
    for (int k = 0; k < OUTPUTS; k++) at[k] = there(f, out[k], 0);
    struct skl_outputs value = skl_no_outputs(), grads = skl_no_outputs();
    value.value = at[4].data, value.loss = at[0];
    grads.s.a = at[1], grads.s.b = at[2], grads.s.bias = at[3];
    if (way == KIT_LISTED_BACKWARD) {
        value.m_rest = at[5], value.l_rest = at[6], value.l1_s = at[7], value.m_s = at[8];
        status = skl_value(&g.p, &value);
        value.value = NULL;
        status = status ? status : skl_backward(&g.p, &value, &grads);
    } else {
        value.s = grads.s;
        if (way == KIT_LISTED_RECOMPUTE)
            g.p.workspace_limit = least_workspace(&g.p, &value);
        status = skl_value_and_grad(&g.p, &value);
    }
    bring_back(f, out, at, OUTPUTS);
    return status;
}

static double used(double got, double want, double bound)
{
    double error = got == want ? 0 : fabs(got - want);
    return error <= bound ? (bound > 0 ? error / bound : 0) : isnan(error) || bound == 0 ? INFINITY : error / bound;
}

struct kit_listed_outcome kit_run_listed(struct kit_listed *f, enum kit_listed_way way)
{
    const struct kit_listed_case *c = &f->c;
    int64_t all = c->cols + c->pad, size[4] = {c->rows, c->rows * c->dim, all * c->dim, c->bias ? all : 0};
    static const int result[4] = {KIT_LISTED_LOSS, KIT_LISTED_GRAD_A, KIT_LISTED_GRAD_B, KIT_LISTED_GRAD_BIAS};
    struct kit_listed_outcome o = {.status = run(f, way)};
    if (o.status != SKL_OK)
        return o;
    if (!f->want[0])
        expect(f);
    for (int k = 0; k < 4; k++)
        for (int64_t i = 0; i < size[k]; i++)
            o.used[result[k]] = fmax(o.used[result[k]], used((double)f->out[k][i], f->want[k][i], f->bound[k][i]));
    o.used[KIT_LISTED_VALUE] = used(f->value, f->want_value, f->value_bound);
    return o;
}

int kit_listed_right(const struct kit_listed_outcome *o)
{
    for (int k = 0; k < KIT_LISTED_RESULTS; k++)
        if (!(o->used[k] <= 1))
            return 0;
    return o->status == SKL_OK;
}
