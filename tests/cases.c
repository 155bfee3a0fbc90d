/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases: descriptions, random ones, and building them in guarded memory.
 */
#include "cases.h"

#include "../src/cpu/team.h"

#include <inttypes.h>

static struct test_case plain_case(int use, int64_t rows, int64_t cols, int64_t dim)
{
    struct test_case c = {0};
    c.use = use;
    c.batch = c.heads = 1, c.rows = rows, c.cols = cols, c.lead = 1;
    c.dim[S] = c.dim[T] = dim;
    c.beta = 0.5, c.temperature = 1, c.spread = 1.5;
    c.left = c.right = -1;
    c.grads = GRAD_ALL, c.threads = 1;
    return c;
}

struct test_case test_attention_case(int64_t rows, int64_t cols, int64_t dim)
{
    return plain_case(SKL_ATTENTION, rows, cols, dim);
}

struct test_case test_linear_case(int64_t rows, int64_t cols, int64_t dim)
{
    return plain_case(SKL_LINEAR, rows, cols, dim);
}

void test_describe(const struct test_case *c, char *text, size_t size)
{
    static const char *const divergence[] = {"forward", "reverse", "jsd"};
    static const char *const type[] = {"f32", "bf16", "f16"};
    snprintf(text, size,
             "%s %s rows %" PRId64 "x%" PRId64 "x%" PRId64 " (lead %d) cols %" PRId64 "+%" PRId64 "/%" PRId64
             " key heads %" PRId64 "/%" PRId64 " D %" PRId64 "/%" PRId64 " %s/%s bias %d/%d scale %g/%g cap %g/%g T %g"
             " beta %g spread %g causal %d window %" PRId64 ",%" PRId64 " ranges %d weights %d reduction %d layout %d"
             " place %d grads %u own %d threads %d",
             c->use == SKL_ATTENTION ? "attention" : "linear", divergence[c->divergence], c->batch, c->heads, c->rows,
             c->lead, c->cols, c->pad[S], c->pad[T], c->key_heads[S], c->key_heads[T], c->dim[S], c->dim[T],
             type[c->dtype[S]], type[c->dtype[T]], c->bias[S], c->bias[T], c->scale[S], c->scale[T], c->softcap[S],
             c->softcap[T], c->temperature, c->beta, c->spread, c->causal, c->left, c->right, c->ranges, c->weights,
             c->reduction, c->layout, c->place, c->grads, c->own, c->threads);
}

/* ------------------------------------------------------------------------------------------------ random --- */

/* Sizes on and next to the edges where loops begin and end, or any size below. */
static int64_t edge_size(int64_t most)
{
    static const int64_t edges[] = {1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 252, 256, 384, 504, 512};
    int64_t size = test_chance(3) ? test_between(1, most) : PICK(edges) + test_between(-1, 1);
    return size < 1 ? 1 : size > most ? 1 + size % most : size;
}

static int64_t divisor_of(int64_t n)
{
    int64_t d = test_between(1, n);
    while (n % d != 0) d--;
    return d;
}

struct test_case test_random_case(void)
{
    static const double temperatures[] = {1, 1, 0.5, 2.5}, caps[] = {0, 0, 3, 20}, betas[] = {0.5, 0.1, 0.9};
    static const double spreads[] = {1.5, 1.5, 0.3, 2.5};
    struct test_case c = plain_case((int)test_between(0, 1), 1, 1, 1);
    /* The cost is near the product, so at most one of the sizes is large. */
    int large = (int)test_between(0, 3);
    c.rows = edge_size(large == 0 ? 530 : 70);
    c.cols = edge_size(large == 1 ? 530 : 140);
    for (int side = 0; side < 2; side++) {
        c.dim[side] = edge_size(large == 2 ? 530 : 70);
        c.dtype[side] = (int32_t)test_between(SKL_F32, SKL_F16);
        c.scale[side] = test_chance(3) ? (test_uniform() + 0.5) * (test_chance(4) ? -0.3 : 0.3) : 0;
        c.softcap[side] = PICK(caps);
    }
    c.divergence = (int)test_between(0, 2);
    c.reduction = (int)test_between(0, 1);
    c.batch = large == 3 ? test_between(1, 3) : 1, c.heads = large == 3 ? test_between(1, 6) : 1;
    if (test_chance(3))
        c.pad[S] = test_between(0, 70), c.pad[T] = test_between(0, 70);
    if (c.use == SKL_ATTENTION) {
        c.key_heads[S] = divisor_of(c.heads), c.key_heads[T] = divisor_of(c.heads);
        c.causal = test_chance(2);
        c.left = test_chance(3) ? edge_size(300) : -1, c.right = test_chance(3) ? edge_size(300) - 1 : -1;
    } else {
        c.lead = (int)test_between(1, 3);
        for (int side = 0; side < 2; side++)
            c.bias[side] = test_chance(2) ? 0 : 1 + (int)test_between(SKL_F32, SKL_F16);
    }
    c.temperature = PICK(temperatures), c.beta = PICK(betas), c.spread = PICK(spreads);
    c.ranges = test_chance(3);
    c.weights = test_chance(2) ? TEST_UNWEIGHTED : (int)test_between(TEST_POSITIVE, TEST_ALL_ZERO);
    if (c.weights == TEST_SIGNED)
        c.reduction = SKL_SUM; /* a mean by weights that may cancel is not a mean */
    c.layout = (int)test_between(0, TEST_LAYOUTS - 1), c.place = (int)test_between(0, TEST_PLACES - 1);
    c.grads = test_chance(2) ? GRAD_ALL : (unsigned)test_between(1, GRAD_ALL);
    c.own = test_chance(2), c.threads = test_chance(8) ? (int)test_between(0, 3) : 1;
    return c;
}

/* ---------------------------------------------------------------------------------------------- building --- */

const char *const test_output_name[OUTPUTS] = {"loss",     "lse_s",    "lse_t",      "kl_s",
                                               "kl_t",     "grad a_s", "grad b_s",   "grad bias_s",
                                               "grad a_t", "grad b_t", "grad bias_t"};

struct skl_tensor *test_slot(struct skl_outputs *out, int output)
{
    struct skl_tensor *const slots[OUTPUTS] = {&out->loss, &out->lse_s, &out->lse_t, &out->kl_s,
                                               &out->kl_t, &out->s.a,   &out->s.b,   &out->s.bias,
                                               &out->t.a,  &out->t.b,   &out->t.bias};
    return slots[output];
}

static void build_side(struct test_fixture *f, int side, struct skl_side *into)
{
    const struct test_case *c = &f->c;
    struct test_tensor *in = f->in + 3 * side;
    int attention = c->use == SKL_ATTENTION;
    int lead = attention ? 3 : c->lead;
    int64_t D = c->dim[side], height = c->cols + c->pad[side];
    int64_t key_heads = c->key_heads[side] ? c->key_heads[side] : c->heads;
    int64_t a_shape[4] = {c->batch, c->heads, c->rows, D}, b_shape[4] = {c->batch, key_heads, height, D};
    in[0] = test_tensor(c->dtype[side], lead + 1, a_shape + 3 - lead, 1, c->layout, c->place);
    in[1] = test_tensor(c->dtype[side], attention ? 4 : 2, b_shape + (attention ? 0 : 2), 1,
                        attention || c->layout != TEST_BROADCAST ? c->layout : TEST_GAPS, c->place);
    if (c->bias[side])
        in[2] = test_tensor(c->bias[side] - 1, 1, &height, 1, c->layout, c->place);

    double scale = c->scale[side] != 0 ? fabs(c->scale[side]) : attention ? 1 / sqrt((double)D) : 1;
    test_fill_normal(&in[0].t, 1, 1);
    test_fill_normal(&in[1].t, c->spread * c->temperature / (scale * sqrt((double)D)), 0);
    if (c->bias[side])
        test_fill_normal(&in[2].t, 0.5 * c->temperature / scale, 0);
    into->a = in[0].t, into->b = in[1].t, into->bias = in[2].t;
    into->scale = c->scale[side], into->softcap = c->softcap[side];
}

/* One of the tensors over the rows. */
static struct skl_tensor build_rows(struct test_fixture *f, int input, int32_t dtype,
                                    double (*value)(const struct test_case *))
{
    struct skl_tensor *a = &f->in[0].t;
    f->in[input] = test_tensor(dtype, a->ndim - 1, a->shape, 0, f->c.layout, f->c.place);
    for (int64_t i = 0; i < test_count(&f->in[input].t); i++) test_set(&f->in[input].t, i, value(&f->c));
    return f->in[input].t;
}

static double random_begin(const struct test_case *c)
{
    return test_chance(2) ? 0 : (double)test_between(-2, c->cols);
}

static double random_end(const struct test_case *c)
{
    return test_chance(2) ? (double)c->cols : (double)test_between(-1, c->cols + 3);
}

static double random_weight(const struct test_case *c)
{
    double positive = 0.5 + test_uniform();
    switch (c->weights) {
    case TEST_POSITIVE: return positive;
    case TEST_SOME_ZERO: return test_chance(3) ? 0 : positive;
    case TEST_SIGNED: return test_chance(2) ? -positive : positive;
    default: return 0;
    }
}

uint64_t test_checksum(const struct test_fixture *f)
{
    uint64_t sum = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (int k = 0; k < INPUTS; k++)
        for (size_t i = 0; f->in[k].memory.data && i < f->in[k].memory.size; i++)
            sum = (sum ^ f->in[k].memory.data[i]) * UINT64_C(0x100000001b3);
    return sum;
}

void test_build(struct test_fixture *f, const struct test_case *c)
{
    memset(f, 0, sizeof *f);
    skl_team_waits = 1;
    f->c = *c;
    struct skl_tensor none = {0};
    f->p = skl_problem_of(c->use, none, none, none, none);
    build_side(f, S, &f->p.s), build_side(f, T, &f->p.t);
    f->p.divergence = c->divergence, f->p.reduction = c->reduction, f->p.causal = c->causal;
    f->p.beta = c->beta, f->p.temperature = c->temperature, f->p.threads = c->threads;
    f->p.window_left = c->left, f->p.window_right = c->right;
    f->p.columns = c->pad[S] || c->pad[T] ? c->cols : 0;
    if (c->ranges) {
        f->p.begin = build_rows(f, 6, SKL_I32, random_begin);
        f->p.end = build_rows(f, 7, SKL_I32, random_end);
    }
    if (c->weights)
        f->p.weight = build_rows(f, 8, SKL_F32, random_weight);

    int64_t most = 0;
    for (int k = 0; k < OUTPUTS; k++) {
        const struct skl_tensor *like = &f->in[k < A_S ? 0 : k - A_S].t;
        int grad = k >= A_S;
        int wanted = grad ? (int)(c->grads >> (k - A_S) & 1) : k < KL_S || c->divergence == SKL_JSD;
        if (!like->data || !wanted)
            continue;
        f->out[k] = test_tensor(grad && c->own ? like->dtype : SKL_F32, like->ndim - !grad, like->shape, grad,
                                c->layout == TEST_BROADCAST ? TEST_GAPS : c->layout, c->place);
        int64_t n = test_count(&f->out[k].t);
        f->want[k] = calloc((size_t)n, sizeof(double)), f->bound[k] = calloc((size_t)n, sizeof(double));
        most = n > most ? n : most;
    }
    f->got = calloc((size_t)most, sizeof(double));
    f->checksum = test_checksum(f);
}

void test_destroy(struct test_fixture *f)
{
    CHECK(test_checksum(f) == f->checksum, "a call changed its inputs");
    for (int k = 0; k < INPUTS; k++) test_tensor_free(&f->in[k]);
    for (int k = 0; k < OUTPUTS; k++) {
        test_tensor_free(&f->out[k]);
        free(f->want[k]), free(f->bound[k]);
    }
    free(f->got);
}
