/* SPDX-License-Identifier: Apache-2.0
 *
 * A vocabulary over the ranks of MPI: each holds some rows of both heads and all hidden states, and gets the loss of
 * the whole vocabulary, its part of dW, and the sum of dx. Every rank then does the whole alone, and compares.
 *
 *     mpicc -O2 vocabulary.c -lstreamkl -lm -o vocabulary && mpirun -n 4 ./vocabulary
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <streamkl/streamkl.h>

enum { TOKENS = 300, WORDS = 5000, DIM_S = 64, DIM_T = 96, ROWS_AT_ONCE = 128 };

/* ---------------------------------------------------------------------------------------------- exchange --- */

/* What the callback needs: a communicator, and room for the states of all ranks. */
struct ranks {
    MPI_Comm comm;
    int size;
    struct skl_state *all; /* [size][ROWS_AT_ONCE] */
};

/* Everybody's states to everybody, 48 bytes a row and rank; merged in the order of the ranks: the same bits
 * everywhere. */
static int exchange(void *data, struct skl_state *states, int64_t rows)
{
    struct ranks *r = data;
    int doubles = (int)(rows * (int64_t)(sizeof *states / sizeof(double)));
    if (MPI_Allgather(states, doubles, MPI_DOUBLE, r->all, doubles, MPI_DOUBLE, r->comm) != MPI_SUCCESS)
        return 1;
    memcpy(states, r->all, (size_t)rows * sizeof *states);
    for (int k = 1; k < r->size; k++)
        if (skl_merge(rows, states, r->all + k * rows) != SKL_OK)
            return 1;
    return 0;
}

/* --------------------------------------------------------------------------------------------- operands --- */

static float *numbers(int64_t n, unsigned seed, double scale)
{
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u; /* the same on every rank */
        x[i] = (float)(scale * ((double)(seed >> 8) / (1 << 24) - 0.5));
    }
    return x;
}

static void *must_have(void *memory)
{
    if (!memory)
        MPI_Abort(MPI_COMM_WORLD, 3);
    return memory;
}

/* The columns first .. first+n-1 of the vocabulary: value, dx [TOKENS, DIM_S], dw [n, DIM_S]. */
static double divergence(const float *x_s, const float *w_s, const float *x_t, const float *w_t, int64_t first,
                         int64_t n, const struct skl_shard *shard, int divergence, float *dx, float *dw)
{
    struct skl_problem p = skl_linear(
        skl_matrix(SKL_F32, x_s, TOKENS, DIM_S), skl_matrix(SKL_F32, w_s + first * DIM_S, n, DIM_S),
        skl_matrix(SKL_F32, x_t, TOKENS, DIM_T), skl_matrix(SKL_F32, w_t + first * DIM_T, n, DIM_T));
    struct skl_outputs out = skl_no_outputs();
    double value = NAN;
    p.divergence = divergence;
    p.shard = shard;
    p.threads = 1;
    out.value = &value;
    out.s.a = skl_matrix(SKL_F32, dx, TOKENS, DIM_S);
    out.s.b = skl_matrix(SKL_F32, dw, n, DIM_S);
    if (skl_value_and_grad(&p, &out) != SKL_OK) {
        fprintf(stderr, "%s\n", skl_last_error());
        MPI_Abort(MPI_COMM_WORLD, 1); /* or the others wait for this rank */
    }
    return value;
}

/* The largest difference beside the largest number. NaN stays. */
static double apart(const float *x, const float *y, int64_t n)
{
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        double error = fabs((double)x[i] - (double)y[i]);
        worst = error <= worst ? worst : error;
        largest = fmax(largest, fabs((double)y[i]));
    }
    return worst / largest;
}

int main(int argc, char **argv)
{
    static const struct {
        int divergence;
        const char *name;
    } each[] = {{SKL_FORWARD_KL, "forward KL"}, {SKL_REVERSE_KL, "reverse KL"}, {SKL_JSD, "JSD"}};
    int rank, right = 1;
    struct ranks ranks = {.comm = MPI_COMM_WORLD};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(ranks.comm, &rank);
    MPI_Comm_size(ranks.comm, &ranks.size);
    ranks.all = must_have(malloc((size_t)ranks.size * ROWS_AT_ONCE * sizeof *ranks.all));
    struct skl_shard shard = {.struct_size = sizeof shard, .exchange = exchange, .data = &ranks, .rows = ROWS_AT_ONCE};

    /* Parts need not be equal: the first rank has the rest. */
    int64_t part = WORDS / ranks.size - (ranks.size > 1 ? 7 : 0), rest = WORDS - (ranks.size - 1) * part;
    int64_t first = rank ? rest + (rank - 1) * part : 0, n = rank ? part : rest;
    float *x_s = must_have(numbers(TOKENS * DIM_S, 1, 3)), *w_s = must_have(numbers(WORDS * DIM_S, 2, 1));
    float *x_t = must_have(numbers(TOKENS * DIM_T, 3, 3)), *w_t = must_have(numbers(WORDS * DIM_T, 4, 1));
    float *dx = must_have(malloc(TOKENS * DIM_S * sizeof *dx)), *dw = must_have(malloc((size_t)n * DIM_S * sizeof *dw));
    float *whole_dx = must_have(malloc(TOKENS * DIM_S * sizeof *dx)),
          *whole_dw = must_have(malloc((size_t)WORDS * DIM_S * sizeof *dw));

    for (int k = 0; k < (int)(sizeof each / sizeof *each); k++) {
        double value = divergence(x_s, w_s, x_t, w_t, first, n, &shard, each[k].divergence, dx, dw), least, most;
        MPI_Allreduce(MPI_IN_PLACE, dx, TOKENS * DIM_S, MPI_FLOAT, MPI_SUM, ranks.comm);
        MPI_Allreduce(&value, &least, 1, MPI_DOUBLE, MPI_MIN, ranks.comm);
        MPI_Allreduce(&value, &most, 1, MPI_DOUBLE, MPI_MAX, ranks.comm);
        double alone = divergence(x_s, w_s, x_t, w_t, 0, WORDS, NULL, each[k].divergence, whole_dx, whole_dw);
        double error[3] = {fabs(value - alone) / alone, apart(dx, whole_dx, TOKENS * DIM_S),
                           apart(dw, whole_dw + first * DIM_S, n * DIM_S)};
        int good = least == most && error[0] <= 1e-6 && error[1] <= 1e-5 && error[2] <= 1e-5, all;
        MPI_Allreduce(&good, &all, 1, MPI_INT, MPI_MIN, ranks.comm);
        right &= all;
        if (rank == 0)
            printf("%-10s on %d rank%s: %.9f, alone %.9f; dx off by %.1e, dW by %.1e: %s\n", each[k].name, ranks.size,
                   ranks.size > 1 ? "s" : "", value, alone, error[1], error[2], all ? "right" : "WRONG");
    }
    float *owned[] = {x_s, w_s, x_t, w_t, dx, dw, whole_dx, whole_dw};
    for (int i = 0; i < (int)(sizeof owned / sizeof *owned); i++) free(owned[i]);
    free(ranks.all);
    MPI_Finalize();
    return right ? 0 : 2;
}
