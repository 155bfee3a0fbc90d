/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
#include "kit/divergence.h"
#include "options.h"
#include "units.h"

#include <math.h>
#include <stdio.h>

void report_header(void)
{
    printf("%-9s %-14s %-7s %-4s %-18s %-9s %2s %8s %8s %7s %7s %7s %8s %7s\n", "op", "pass", "KL", "type",
           "heads x rows x cols", "dims", "th", "min", "median", "GF/s", "of peak", "of mem", "extra", "error");
}

static const char *mask_name(const struct kit_case *c)
{
    int window = c->left >= 0 || c->right >= 0;
    if (c->support)
        return c->causal ? " cl" : " l";
    return c->causal && window ? " cw" : c->causal ? " c" : window ? " w" : "";
}

static void print_fraction(double x, double whole)
{
    if (whole > 0)
        printf(" %6.1f%%", 100 * x / whole);
    else
        printf(" %7s", "-");
}

void report_row(const struct bench *bench, const struct bench_result *r)
{
    const struct kit_case *c = &bench->c;
    char shape[64], dims[32];
    snprintf(shape, sizeof shape, "%lldx%lldx%lld%s", (long long)c->batch * c->heads, (long long)c->rows,
             (long long)c->cols, mask_name(c));
    if (c->dim[S] == c->dim[T])
        snprintf(dims, sizeof dims, "%lld", (long long)c->dim[S]);
    else
        snprintf(dims, sizeof dims, "%lld/%lld", (long long)c->dim[S], (long long)c->dim[T]);
    printf("%-9s %-14s %-7s %-4s %-18s %-9s %2d %8s", kit_use_names[c->use], call_names[bench->call],
           kit_divergence_names[c->divergence], kit_dtype_names[c->dtype[S]], shape, dims, r->threads,
           human_seconds((struct text){0}.chars, r->seconds_min));
    printf(" %8s", human_seconds((struct text){0}.chars, r->seconds_median));
    printf(" %7.1f", r->gflops);
    print_fraction(r->gflops, r->peak_gflops);
    print_fraction(r->bytes / r->seconds_min, r->bandwidth);
    printf(" %8s %7.1e\n", human_bytes((struct text){0}.chars, r->extra_bytes), r->max_rel_error);
    fflush(stdout);
}

/* JSON has no infinities. */
static void json_number(const char *key, double x)
{
    if (isfinite(x))
        printf(", \"%s\": %.6g", key, x);
    else
        printf(", \"%s\": null", key);
}

static void json_int(const char *key, int64_t x)
{
    printf(", \"%s\": %lld", key, (long long)x);
}

void report_json(const struct bench *bench, const struct bench_result *r)
{
    const struct kit_case *c = &bench->c;
    printf("{\"op\": \"%s\", \"pass\": \"%s\", \"divergence\": \"%s\", \"dtype\": \"%s\"", kit_use_names[c->use],
           call_names[bench->call], kit_divergence_names[c->divergence], kit_dtype_names[c->dtype[S]]);
    json_int("batch", c->batch), json_int("heads", c->heads), json_int("kv_heads", c->key_heads[S]);
    json_int("rows", c->rows), json_int("cols", c->cols);
    json_int("dim_s", c->dim[S]), json_int("dim_t", c->dim[T]);
    printf(", \"causal\": %s", c->causal ? "true" : "false");
    json_int("window_left", c->left), json_int("window_right", c->right);
    json_number("spread", c->spread), json_number("skip_below", c->skip_below);
    printf(", \"round_dz\": %s", c->round_dz ? "true" : "false");
    json_int("threads", r->threads);
    printf(", \"isa\": \"%s\"", bench->device == SKL_CUDA ? "cuda" : isa_names[r->isa]);
    printf(", \"unit\": \"%s\"", r->unit);
    json_number("seconds_min", r->seconds_min), json_number("seconds_median", r->seconds_median);
    json_number("gflops", r->gflops), json_number("peak_gflops", r->peak_gflops);
    json_number("fraction_of_peak", r->gflops / r->peak_gflops);
    json_number("fraction_of_bandwidth", r->bytes / r->seconds_min / r->bandwidth);
    json_number("extra_bytes", r->extra_bytes), json_number("max_rel_error", r->max_rel_error);
    printf("}\n");
    fflush(stdout);
}
