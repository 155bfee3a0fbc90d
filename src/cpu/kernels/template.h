/* SPDX-License-Identifier: Apache-2.0
 * The kernels, once, for the vector words of the file that includes this: ISA.c defines KERNELS (the table's
 * name) and KERNELS_ISA, perhaps KERNELS_NARROWER, and includes its vec_ISA.h first, then this. With DOT_UNIT (its
 * name) or TILE_UNIT, and the words of that unit, bf16 operands get products of their own; with tiles, f32 operands
 * too. */
#include "products.h"
#include "transpose.h"
#include "pack.h"
#include "sparse_products.h"
#include "vmath.h"
#include "states.h"
#include "kl.h"
#include "none.h"
#include "even.h"
#include "column.h"
#include "jsd.h"
#include "skew.h"
#include "total_variation.h"
#include "alpha_beta.h"
#include "details.h"
#include "gather.h"
#include "mixture.h"
#include "index.h"
#include "pool.h"
#include "shape.h"
#include "topk.h"

/* f32 fused multiply-adds on operands of any dtype, which become f32 in the packs. */
static const struct skl_products fma_products = {
    .unit = "fma",
    .kc = KC,
    .panel_bytes = panel_bytes,
    .block_bytes = block_bytes,
    .column_bytes = sizeof(float) * SKL_BK * LDK,
    .pack_row = pack_row,
    .pack_panel = pack_panel,
    .pack_block_row = pack_block_row,
    .columns = columns_of,
    .columns_back = columns_back,
    .logits = logits,
    .grad_rows = grad_rows,
    .grad_columns = grad_columns,
    .add_rows = add_listed_rows,
    .add_columns = add_listed_columns,
    .burst = fma_burst,
};

#if LANES > 4 /* with fewer lanes there are too few sums at once to hide the latency of an FMA */
#include "products_keys.h"
#define KEYS_IN_PLACE &key_products
#endif

#if defined(DOT_UNIT)
#include "pairs.h"
#include "products_dot.h"
#define BF16_PRODUCTS &dot_products
#elif defined(TILE_UNIT)
#include "pairs.h"
#include "pairs_back.h"
#include "products_tiles.h"
#define BF16_PRODUCTS &tile_products
#define BF16_ROUNDED &tile_products_rounded
#include "products_split.h"
#define F32_SPLIT &split_products
#else
#define BF16_PRODUCTS &fma_products
#endif

const struct skl_kernels KERNELS = {
    .isa = KERNELS_ISA,
#ifdef KERNELS_NARROWER
    .narrower = KERNELS_NARROWER,
#endif
    .mr = MR,
    .nr = NR,
    .products = {[SKL_F32] = &fma_products, [SKL_BF16] = BF16_PRODUCTS, [SKL_F16] = &fma_products},
#ifdef BF16_ROUNDED
    .rounded = BF16_ROUNDED,
#endif
#ifdef F32_SPLIT
    .split = F32_SPLIT,
#endif
#ifdef KEYS_IN_PLACE
    .in_place = KEYS_IN_PLACE,
#endif
    .convert = convert,
    .convert_back = convert_back,
    .write_rows = write_rows,
    .softcap = softcap,
    .softcap_back = softcap_back,
    .mask = mask,
    .mask_rows = mask_rows,
    .push_kl = push_kl,
    .push_lse = push_lse,
    .dz_kept = dz_kept,
    .form = {[SKL_FORM_KL] = {sum_kl, dz_kl},
             [SKL_FORM_JSD] = {sum_jsd, dz_jsd},
             [SKL_FORM_SKEW] = {sum_skew, dz_skew},
             [SKL_FORM_TOTAL_VARIATION] = {sum_total_variation, dz_total_variation},
             [SKL_FORM_ALPHA_BETA] = {sum_alpha_beta, dz_alpha_beta},
             [SKL_FORM_NONE] = {NULL, dz_none}},
    .details = details,
    .count_above = count_above,
    .tempered = tempered,
    .add_tile = add_tile,
    .mix = mix,
    .keep_head = keep_head,
    .mix_kept = mix_kept,
    .log2 = log2_tile,
    .pool = pool_tile,
    .pooled = pooled_tile,
    .index = index_tile,
    .index_back = index_back,
    .dot = dot,
    .add_scaled = add_scaled,
    .mark_live = mark_live,
    .sum_rows = sum_rows,
    .exp2 = exp2_panel,
    .pick = pick,
};
