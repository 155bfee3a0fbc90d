/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels.h"

#include "../shapes.h"
#include "streamkl/streamkl.h"

enum { TYPE_bf16 = SKL_BF16, TYPE_f16 = SKL_F16, TYPE_any = SKL_ANY_TYPE };

static const struct skl_gpu_kernel kernels[] = {
#define SKL_KERNEL(name, source, role, type, dim, min_sm, rows, columns, threads, shared) \
    {#name, SKL_ROLE_##role, TYPE_##type, dim, min_sm, rows, columns, threads, shared},
#include "../kernels.def"
#undef SKL_KERNEL
};

/* What the sources are compiled with says the same as the list. */
#define SAME(a, b, c, d, e, f, g, h) ((a) == (e) && (b) == (f) && (c) == (g) && (d) == (h))
#define SHAPE_sweep_narrow(role, dim, ...) \
    SAME(__VA_ARGS__, SKL_FORWARD_ROWS(dim), SKL_FORWARD_COLUMNS(dim), SKL_FORWARD_THREADS, SKL_FORWARD_SHARED(dim))
#define SHAPE_sweep_wide(role, dim, ...) \
    SAME(__VA_ARGS__, SKL_STREAM_ROWS, SKL_STREAM_COLUMNS, SKL_STREAM_THREADS, SKL_STREAM_SHARED)
#define SHAPE_sweep_any(role, dim, ...) SAME(__VA_ARGS__, SKL_PLAIN_TILE, SKL_PLAIN_TILE, SKL_PLAIN_THREADS, 0)
#define SHAPE_sweep_mixed(role, dim, ...) \
    SAME(__VA_ARGS__, SKL_MIXED_ROWS, SKL_MIXED_COLUMNS, SKL_MIXED_THREADS, SKL_MIXED_SHARED)
#define SHAPE_sweep_index(role, dim, ...)                                   \
    SAME(__VA_ARGS__, SKL_MIXED_ROWS, SKL_MIXED_COLUMNS, SKL_MIXED_THREADS, \
         (role) == SKL_ROLE_index_kl ? SKL_INDEX_KL_SHARED : SKL_INDEX_DZ_SHARED)
#define SHAPE_mixed_any(role, dim, ...) SHAPE_sweep_any(role, dim, __VA_ARGS__)
#define BY_ROWS(role) ((role) == SKL_ROLE_rows_q || (role) == SKL_ROLE_rows_pj)
#define SHAPE_grad_pair(role, dim, ...) \
    SAME(__VA_ARGS__, SKL_GRAD_OWN(dim), SKL_GRAD_STREAM(dim), SKL_GRAD_THREADS, SKL_GRAD_SHARED(dim, BY_ROWS(role)))
#define SHAPE_grad_atomic(role, dim, ...) \
    SAME(__VA_ARGS__, SKL_FUSED_OWN(dim), SKL_FUSED_STREAM(dim), SKL_FUSED_THREADS, SKL_FUSED_SHARED(dim))
#define SHAPE_row_kernels(role, dim, rows, ...) ((role) != SKL_ROLE_find_ranges || (rows) == SKL_RANGE_ROWS)
#define SHAPE_mixture_kernels(role, dim, rows, columns, threads, shared) \
    ((threads) == 128 && (rows) == ((role) == SKL_ROLE_gather_heads ? 1 : 128))
#define SHAPE_index_kernels(role, dim, rows, columns, threads, shared) \
    ((threads) == 128 && (rows) == ((role) == SKL_ROLE_index_weights ? 128 : 4))
#define SHAPE_sink_kernels(role, dim, rows, columns, threads, shared) \
    ((threads) == ((role) == SKL_ROLE_sum_sinks ? 256 : (rows)))
#define SHAPE_label_kernels(role, dim, rows, columns, threads, shared) \
    ((rows) == ((role) == SKL_ROLE_label_scores ? (threads) / 32 : (threads)))
#define SHAPE_detail_kernels(role, dim, rows, columns, threads, shared) \
    ((rows) == ((role) == SKL_ROLE_put_masses ? (threads) / 32 : (threads)))
#define SHAPE_list_kernels(role, dim, rows, columns, threads, shared) \
    ((threads) == 128 && ((role) != SKL_ROLE_list_db || (columns) == SKL_LIST_COLUMNS))
#define SHAPE_topk_kernels(role, dim, rows, columns, threads, shared) \
    SAME(rows, columns, threads, shared, 1, 0, SKL_PICK_THREADS, 0)
#define SHAPE_key_kernels(role, dim, rows, columns, threads, shared)       \
    ((threads) == ((role) == SKL_ROLE_keys_rows ? 32 : SKL_KEY_THREADS) && \
     ((role) != SKL_ROLE_keys_columns || (columns) == 4 * SKL_KEY_COLUMNS))
#define SKL_KERNEL(name, source, role, type, dim, min_sm, rows, columns, threads, shared) \
    _Static_assert(SHAPE_##source(SKL_ROLE_##role, dim, rows, columns, threads, shared), "shapes.h and " #name);
#include "../kernels.def"
#undef SKL_KERNEL

const struct skl_gpu_kernel *skl_gpu_kernel_of(enum skl_gpu_role role, int type, int dim, int capability)
{
    const struct skl_gpu_kernel *best = NULL;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        const struct skl_gpu_kernel *k = &kernels[i];
        if (k->role == role && k->type == type && k->dim == dim && k->min_sm <= capability &&
            (!best || best->min_sm < k->min_sm))
            best = k;
    }
    return best;
}
