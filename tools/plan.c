/* SPDX-License-Identifier: Apache-2.0
 *
 * streamkl plan: how the CPU engine would run a call on any number of threads, without such a machine and without
 * operands.
 */
#include "calls.h"
#include "commands.h"
#include "cpu/phases.h"
#include "options.h"

#include <stdio.h>
#include <stdlib.h>

/* Addresses that nobody reads, 4 TiB apart. */
static struct skl_tensor nowhere(int use, int dtype, int k, int64_t batch, int64_t heads, int64_t n, int64_t dim)
{
    const void *at = (const void *)((uintptr_t)(k + 1) << 42);
    return use == SKL_LINEAR ? skl_matrix(dtype, at, n, dim) : skl_heads(dtype, at, batch, heads, n, dim);
}

/* A number for each row. */
static struct skl_tensor rows_nowhere(const struct kit_case *c, int k)
{
    if (c->use == SKL_LINEAR)
        return skl_vector(SKL_F32, nowhere(c->use, SKL_F32, k, 1, 1, c->rows, 1).data, c->rows);
    struct skl_tensor rows = nowhere(c->use, SKL_F32, k, c->batch, c->heads, c->rows, 1);
    rows.ndim = 3;
    return rows;
}

/* The problem, and what the call writes and finds. */
static void describe(const struct kit_case *c, enum skl_call call, struct skl_problem *p, struct skl_outputs *out,
                     struct skl_outputs *saved)
{
    struct skl_tensor a[2], b[2];
    for (int i = S; i <= T; i++) {
        a[i] = nowhere(c->use, c->dtype[S], 2 * i, c->batch, c->heads, c->rows, c->dim[i]);
        b[i] = nowhere(c->use, c->dtype[S], 2 * i + 1, c->batch, c->key_heads[S], c->cols, c->dim[i]);
    }
    *p = c->use == SKL_LINEAR ? skl_linear(a[S], b[S], a[T], b[T]) : skl_attention(a[S], b[S], a[T], b[T]);
    p->threads = c->threads, p->isa = c->isa;
    p->causal = c->causal, p->window_left = c->left, p->window_right = c->right;
    *out = *saved = skl_no_outputs();
    static double value;
    if (call == SKL_CALL_BACKWARD)
        saved->lse_s = rows_nowhere(c, 6), saved->lse_t = rows_nowhere(c, 7);
    else
        out->value = &value;
    if (call == SKL_CALL_VALUE)
        return;
    out->s.a = nowhere(c->use, SKL_F32, 4, c->batch, c->heads, c->rows, c->dim[S]);
    out->s.b = nowhere(c->use, SKL_F32, 5, c->batch, c->key_heads[S], c->cols, c->dim[S]);
}

static void print_plan(const struct skl_work *w, const struct skl_plan *plan)
{
    struct skl_phase phases[SKL_PHASES_MAX];
    int n = skl_count_phases(w, plan, phases);
    double all = 0;
    for (int i = 0; i < n; i++) all += phases[i].work;
    printf("threads %d of %d asked for, %.1f MiB, %s, ", plan->threads, w->threads, (double)plan->bytes / 1048576,
           skl_isa_name(plan->kernels->isa));
    if (plan->alone)
        printf("%lld groups, each one thread's alone", (long long)plan->groups);
    else
        printf("blocks of %d rows, %d at once, %lld tiles of %d columns, %lld chunks a block", plan->block_rows,
               plan->blocks, (long long)plan->tiles, plan->bk, (long long)plan->chunks);
    if (plan->fine)
        printf(", each in %d parts of its rows", plan->fine);
    printf("\n");
    printf("%-14s %8s %12s %7s %11s\n", "phase", "tasks", "work", "share", "efficiency");
    for (int i = 0; i < n; i++)
        printf("%-14s %8lld %12.4g %6.1f%% %11.3f\n", phases[i].name, (long long)phases[i].tasks, phases[i].work,
               100 * phases[i].work / all, skl_efficiency(plan, &phases[i], 1));
    printf("%-14s %8s %12.4g %6.1f%% %11.3f\n", "all", "", all, 100.0, skl_efficiency(plan, phases, n));
}

int command_plan(int argc, char **argv)
{
    enum { most = 1 << 30 };
    const char *about = "How the CPU engine would run a call: its phases between barriers, the tasks of a wave, their "
                        "work in multiply-adds, and the\n"
                        "efficiency work / (threads x longest share of a thread). Nothing is computed or measured.";
    struct kit_case c = usual_case(SKL_ATTENTION, 0, 0, 0);
    int64_t threads = 128;
    int call = SKL_CALL_VALUE;
    c.heads = c.key_heads[S] = 0;
    struct option_spec options[] = {
        {"op", OPTION_NAME, &c.use, 0, 0, kit_use_names, "what to run", 0},
        {"pass", OPTION_NAME, &call, 0, 0, call_names, "value; value and gradient together; gradient alone", 0},
        {"dtype", OPTION_NAME, &c.dtype[S], 0, 0, kit_dtype_names, "of the operands; gradients are f32", 0},
        {"batch", OPTION_INT, &c.batch, 1, most, NULL, "attention: batch", 0},
        {"heads", OPTION_INT, &c.heads, 0, most, NULL, "attention: query heads; 0: 4", 0},
        {"kv-heads", OPTION_INT, &c.key_heads[S], 0, most, NULL, "attention: key heads; 0: as many as heads", 0},
        {"rows", OPTION_INT, &c.rows, 0, most, NULL, "queries or tokens; 0: 4096, linear 256", 0},
        {"cols", OPTION_INT, &c.cols, 0, most, NULL, "keys or vocabulary; 0: 4096, linear 32000", 0},
        {"dim-s", OPTION_INT, &c.dim[S], 0, most, NULL, "student width; 0: 128, linear 2048", 0},
        {"dim-t", OPTION_INT, &c.dim[T], 0, most, NULL, "teacher width; 0: as the student", 0},
        {"causal", OPTION_FLAG, &c.causal, 0, 0, NULL, "row i sees columns up to i + cols - rows", 0},
        {"window-left", OPTION_INT, &c.left, -1, most, NULL, "columns left of the diagonal; -1: no limit", 0},
        {"window-right", OPTION_INT, &c.right, -1, most, NULL, "columns right of it; -1: no limit", 0},
        {"threads", OPTION_INT, &threads, 1, SKL_THREADS_MAX, NULL, "number of threads", 0},
        {"isa", OPTION_NAME, &c.isa, 0, 0, isa_names, "instruction set", 0},
        {0},
    };
    struct command command = {"plan", about, options};
    options_parse(&command, argc, argv);
    require_isa(&command, c.isa);
    fill_usual(&c);
    require_shape(&command, &c);
    c.threads = (int)threads;
    struct skl_problem p;
    struct skl_outputs out, saved;
    struct skl_work w;
    struct skl_plan plan;
    describe(&c, (enum skl_call)call, &p, &out, &saved);
    enum skl_status status = skl_check((enum skl_call)call, &p, call == SKL_CALL_BACKWARD ? &saved : NULL, &out, NULL,
                                       &w);
    if (!status)
        status = skl_make_plan((enum skl_call)call, &w, &plan);
    if (status) {
        fprintf(stderr, "streamkl plan: %s\n", skl_last_error());
        return EXIT_WRONG;
    }
    print_plan(&w, &plan);
    return 0;
}
