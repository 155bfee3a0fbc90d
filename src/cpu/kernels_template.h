/* SPDX-License-Identifier: Apache-2.0
 * The kernels, once, for the vector words of the file that includes this: kernels_ISA.c defines KERNELS (the table's
 * name) and KERNELS_ISA, perhaps KERNELS_NARROWER, and includes its vec_ISA.h first, then this. */
#include "gemm.h"
#include "pack.h"
#include "vmath.h"
#include "divergence.h"
#include "listed.h"

const struct skl_kernels KERNELS = {
    .isa = KERNELS_ISA,
#ifdef KERNELS_NARROWER
    .narrower = KERNELS_NARROWER,
#endif
    .mr = MR,
    .nr = NR,
    .kc = KC,
    .pack_columns = pack_columns,
    .convert = convert,
    .convert_back = convert_back,
    .logits = logits,
    .grad_rows = grad_rows,
    .grad_columns = grad_columns,
    .add_listed = add_listed,
    .softcap = softcap,
    .softcap_back = softcap_back,
    .mask = mask,
    .push_kl = push_kl,
    .push_lse = push_lse,
    .push_jsd = push_jsd,
    .dz_kept = dz_kept,
    .dz_kl = dz_kl,
    .dz_jsd = dz_jsd,
    .mark_live = mark_live,
    .add_rows = add_rows,
    .exp2 = exp2_panel,
    .fma_burst = fma_burst,
};
