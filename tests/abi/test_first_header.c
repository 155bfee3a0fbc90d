/* SPDX-License-Identifier: Apache-2.0
 *
 * A program of version 0.1.0: compiled with that version's header, which lies beside this file and never changes, and
 * run with today's shared library. Every call of that version, on an attention and a linear problem, against plain sums
 * in double.
 */
#include "first_sizes.h"
#include "streamkl-0.1.0.h"
#include "../test.h"

_Static_assert(sizeof(struct skl_problem) == FIRST_PROBLEM, "first_sizes.h is not of this header");
_Static_assert(sizeof(struct skl_outputs) == FIRST_OUTPUTS, "first_sizes.h is not of this header");

enum { HEADS = 2, ROWS = 3, COLUMNS = 7, DIM = 4, SPLIT = 3, A = HEADS * ROWS * DIM, B = HEADS * COLUMNS * DIM };

/* Student and teacher: operands, and what is expected. Linear has one head. */
static struct {
    float a[2][A], b[2][B];
    double da[2][A], db[2][B], loss[HEADS * ROWS], value;
    int heads;
} data;

static void fill(int heads)
{
    data.heads = heads;
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < A; i++) data.a[side][i] = (float)test_normal();
        for (int i = 0; i < B; i++) data.b[side][i] = (float)test_normal();
    }
}

/* ------------------------------------------------------------------------------------------------ expected --- */

static void log_softmax(int side, int head, int row, double scale, double *logp)
{
    double sum = 0;
    for (int j = 0; j < COLUMNS; j++) {
        logp[j] = 0;
        for (int d = 0; d < DIM; d++)
            logp[j] += scale * (double)data.a[side][(head * ROWS + row) * DIM + d] *
                       (double)data.b[side][(head * COLUMNS + j) * DIM + d];
        sum += exp(logp[j]);
    }
    for (int j = 0; j < COLUMNS; j++) logp[j] -= log(sum);
}

/* The loss of log-probabilities s and t, and its gradients by their logits: p (f - sum p f) for f = d loss / d p. */
static double divergence(int which, const double *s, const double *t, double dz[2][COLUMNS])
{
    double loss = 0, mean[2] = {0, 0}, f[2][COLUMNS];
    for (int j = 0; j < COLUMNS; j++) {
        double q = exp(s[j]), p = exp(t[j]), m = log((p + q) / 2);
        f[0][j] = which == SKL_FORWARD_KL ? -p / q : which == SKL_REVERSE_KL ? s[j] - t[j] : (s[j] - m) / 2;
        f[1][j] = which == SKL_FORWARD_KL ? t[j] - s[j] : which == SKL_REVERSE_KL ? -q / p : (t[j] - m) / 2;
        loss += which == SKL_FORWARD_KL   ? p * (t[j] - s[j])
                : which == SKL_REVERSE_KL ? q * (s[j] - t[j])
                                          : (p * (t[j] - m) + q * (s[j] - m)) / 2;
        mean[0] += q * f[0][j], mean[1] += p * f[1][j];
    }
    for (int j = 0; j < COLUMNS; j++) {
        dz[0][j] = exp(s[j]) * (f[0][j] - mean[0]);
        dz[1][j] = exp(t[j]) * (f[1][j] - mean[1]);
    }
    return loss;
}

static void expect(int which, double scale)
{
    int rows = data.heads * ROWS;
    memset(data.da, 0, sizeof data.da), memset(data.db, 0, sizeof data.db);
    data.value = 0;
    for (int row = 0; row < rows; row++) {
        double logp[2][COLUMNS], dz[2][COLUMNS];
        int head = row / ROWS;
        for (int side = 0; side < 2; side++) log_softmax(side, head, row % ROWS, scale, logp[side]);
        data.loss[row] = divergence(which, logp[0], logp[1], dz);
        data.value += data.loss[row] / rows;
        for (int side = 0; side < 2; side++)
            for (int j = 0; j < COLUMNS; j++)
                for (int d = 0; d < DIM; d++) {
                    double dx = scale * dz[side][j] / rows;
                    data.da[side][row * DIM + d] += dx * (double)data.b[side][(head * COLUMNS + j) * DIM + d];
                    data.db[side][(head * COLUMNS + j) * DIM + d] += dx * (double)data.a[side][row * DIM + d];
                }
    }
}

/* --------------------------------------------------------------------------------------------------- calls --- */

static float loss[HEADS * ROWS], lse_s[HEADS * ROWS], lse_t[HEADS * ROWS], kl_s[HEADS * ROWS], kl_t[HEADS * ROWS];
static float da[2][A], db[2][B];
static double value;

static struct skl_tensor rows_of(const float *x)
{
    return data.heads == 1
               ? skl_vector(SKL_F32, x, ROWS)
               : (struct skl_tensor){(void *)x, SKL_F32, SKL_CPU, 3, 0, {1, HEADS, ROWS}, {HEADS * ROWS, ROWS, 1}};
}

static struct skl_tensor matrix_of(const float *x, int n)
{
    return data.heads == 1 ? skl_matrix(SKL_F32, x, n, DIM) : skl_heads(SKL_F32, x, 1, HEADS, n, DIM);
}

static struct skl_problem problem(int which)
{
    struct skl_tensor t[4] = {matrix_of(data.a[0], ROWS), matrix_of(data.b[0], COLUMNS), matrix_of(data.a[1], ROWS),
                              matrix_of(data.b[1], COLUMNS)};
    struct skl_problem p = data.heads == 1 ? skl_linear(t[0], t[1], t[2], t[3]) : skl_attention(t[0], t[1], t[2], t[3]);
    p.divergence = which;
    return p;
}

static struct skl_outputs rows_out(int which)
{
    struct skl_outputs out = skl_no_outputs();
    out.loss = rows_of(loss), out.lse_s = rows_of(lse_s), out.lse_t = rows_of(lse_t);
    if (which == SKL_JSD)
        out.kl_s = rows_of(kl_s), out.kl_t = rows_of(kl_t);
    memset(loss, KIT_CANARY, sizeof loss);
    value = (double)NAN;
    return out;
}

static void add_grads(struct skl_outputs *out)
{
    out->s.a = matrix_of(da[0], ROWS), out->s.b = matrix_of(db[0], COLUMNS);
    out->t.a = matrix_of(da[1], ROWS), out->t.b = matrix_of(db[1], COLUMNS);
    memset(da, KIT_CANARY, sizeof da), memset(db, KIT_CANARY, sizeof db);
}

static void check_values(void)
{
    CHECK_NEAR(value, data.value, 1e-6, "value");
    for (int i = 0; i < data.heads * ROWS; i++) CHECK_NEAR((double)loss[i], data.loss[i], 2e-6, "loss");
}

static void check_grads(void)
{
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < data.heads * ROWS * DIM; i++) CHECK_NEAR((double)da[side][i], data.da[side][i], 2e-6, "da");
        for (int i = 0; i < data.heads * COLUMNS * DIM; i++)
            CHECK_NEAR((double)db[side][i], data.db[side][i], 2e-6, "db");
    }
}

static void whole(int which)
{
    struct skl_problem p = problem(which);
    struct skl_outputs out = rows_out(which), saved, grads = skl_no_outputs();
    size_t bytes = 0;
    out.value = &value;
    CHECK_STATUS(skl_value(&p, &out), SKL_OK);
    check_values();
    saved = out, saved.value = NULL;
    add_grads(&grads);
    CHECK_STATUS(skl_backward(&p, &saved, &grads), SKL_OK);
    check_grads();
    out = rows_out(which), out.value = &value;
    add_grads(&out);
    CHECK_STATUS(skl_workspace_size(SKL_CALL_VALUE_AND_GRAD, &p, &out, &bytes), SKL_OK);
    CHECK(bytes > 0, "no workspace");
    CHECK_STATUS(skl_value_and_grad(&p, &out), SKL_OK);
    check_values();
    check_grads();
}

/* The columns in two pieces. */
static void pieces(int which)
{
    struct skl_problem p[2] = {problem(which), problem(which)};
    struct skl_state state[2][HEADS * ROWS];
    struct skl_outputs out = rows_out(which), saved = skl_no_outputs();
    int k = p[0].s.b.ndim - 2;
    p[0].s.b.shape[k] = p[0].t.b.shape[k] = SPLIT;
    p[1].s.b.shape[k] = p[1].t.b.shape[k] = COLUMNS - SPLIT;
    p[1].s.b.data = (float *)p[1].s.b.data + SPLIT * DIM;
    p[1].t.b.data = (float *)p[1].t.b.data + SPLIT * DIM;
    saved.lse_s = out.lse_s, saved.lse_t = out.lse_t;
    for (int sweep = 0; sweep < (which == SKL_JSD ? 2 : 1); sweep++) {
        for (int i = 0; i < 2; i++) CHECK_STATUS(skl_partial(&p[i], sweep ? &saved : NULL, state[i]), SKL_OK);
        CHECK_STATUS(skl_merge(data.heads * ROWS, state[0], state[1]), SKL_OK);
        if (which == SKL_JSD && !sweep) {
            CHECK_STATUS(skl_finish(&p[0], state[0], &saved), SKL_OK);
            out.lse_s.data = out.lse_t.data = NULL; /* the second sweep's states do not hold them */
        }
    }
    out.value = &value;
    CHECK_STATUS(skl_finish(&p[0], state[0], &out), SKL_OK);
    check_values();
}

int main(void)
{
    test_begin("test_first_header");
    for (int heads = 1; heads <= HEADS; heads++) {
        fill(heads);
        for (int which = SKL_FORWARD_KL; which <= SKL_JSD; which++) {
            test_context("%s, divergence %d", heads == 1 ? "linear" : "attention", which);
            expect(which, heads == 1 ? 1 : 1 / sqrt((double)DIM));
            whole(which);
            pieces(which);
        }
    }
    test_context("names");
    CHECK(skl_status_string(SKL_NO_LIBRARY) && skl_version() && skl_isa_name(skl_isa_best()), "a name is missing");
    CHECK(skl_isa_available(SKL_ISA_BASELINE) && skl_max_threads() > 0, "the machine is not described");
    CHECK(skl_cuda_built() == 0 || skl_cuda_devices() >= 0, "CUDA is not described");
    CHECK_STATUS(skl_value(NULL, NULL), SKL_BAD_ARGUMENT);
    CHECK(skl_last_error()[0], "no sentence");
    return test_end();
}
