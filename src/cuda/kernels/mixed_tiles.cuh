/* SPDX-License-Identifier: Apache-2.0
 *
 * t of a tile, the sum of the parts of g heads (mixture.cuh), each head's product after the other through the stages of
 * stream.cuh: what the kernels of sweep_mixed.cu and sweep_index.cu share.
 */
#ifndef SKL_MIXED_TILES_CUH
#define SKL_MIXED_TILES_CUH

#include "mixture.cuh"
#include "stream.cuh"

namespace
{

/* The last DEPTH entries of a product, group of 16 columns by group; done(group) is called when it is complete. END:
 * nothing comes behind it. */
template <bool END, int TYPE, class PARTS, class DONE>
SKL_DEVICE void last_chunk(stream<TYPE, PARTS> &f, warp_logits &x, DONE done)
{
    uint32_t a[STEPS][MT][4];
    if (!END)
        f.copy_chunk();
    f.chunks_left--;
#pragma unroll
    for (int i = 0; i < MT * 4; i++) a[0][i / 4][i % 4] = f.a[0][i / 4][i % 4];
#pragma unroll
    for (int i = MT; i < STEPS * MT; i++)
        load_matrices(a[i / MT][i % MT], ((f.a_at + f.stage) ^ (i / MT << 5)) + i % MT * 16 * DEPTH * 2);
#pragma unroll
    for (int i = 0; i < GROUPS * STEPS; i++) {
        const int group = i / STEPS, k = i % STEPS, next = i + 1;
        if (next < GROUPS * STEPS)
            load_matrices(f.b[next & 1],
                          ((f.b_at + f.stage) ^ (next % STEPS << 5)) + f.columns_before(next / STEPS) * DEPTH * 2);
        else if (!END)
            f.next_chunk();
#pragma unroll
        for (int m = 0; m < MT; m++) {
            multiply<TYPE>(x[group][m][0], a[k][m], f.b[i & 1][0], f.b[i & 1][1]);
            multiply<TYPE>(x[group][m][1], a[k][m], f.b[i & 1][2], f.b[i & 1][3]);
        }
        if (k == STEPS - 1)
            done(group);
    }
}

/* x += the products of 'dim' entries. */
template <bool END, int TYPE, class PARTS, class DONE>
SKL_DEVICE void product_then(stream<TYPE, PARTS> &f, warp_logits &x, int dim, DONE done)
{
    f.add_product(x, dim - DEPTH);
    last_chunk<END>(f, x, done);
}

/* t += the parts of a head, whose scores are x, of a group of columns; x becomes 0. */
SKL_DEVICE void add_head(const skl_gpu_mixture &m, const skl_gpu_member (&row)[2 * MT], float (&x)[MT][2][4],
                         float (&t)[MT][2][4])
{
#pragma unroll
    for (int i = 0; i < MT * 8; i++) {
        float &v = x[i / 8][i / 4 % 2][i % 4];
        t[i / 8][i / 4 % 2][i % 4] += member_part(m, row[2 * (i / 8) + i % 4 / 2], v);
        v = 0;
    }
}

/* Of the lane's rows under head k. Rows that are not there have some other's: args.h. */
template <class F> SKL_DEVICE void members_of(const F &f, int k, skl_gpu_member (&row)[2 * MT])
{
    const skl_gpu_member *of = f.p.mixture.member + k * f.p.rows + f.at.first + f.row_in_tile(0, 0);
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) row[i] = of[8 * i];
}

template <class F>
SKL_DEVICE void capped_head(F &f, const skl_gpu_mixture &m, const skl_gpu_member (&row)[2 * MT], warp_logits (&x)[2])
{
    f.add_product(x[1], f.p.side[0].dim);
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
#pragma unroll
        for (int i = 0; i < MT * 8; i++) {
            float &v = x[1][group][i / 8][i / 4 % 2][i % 4];
            v = member_score(m, v);
        }
        add_head(m, row, x[1][group], x[0][group]);
    }
}

/* t of all heads, x[0]; x[1] has room for a product, and is 0 behind it. */
template <class F> SKL_DEVICE void mix_heads(F &f, warp_logits (&x)[2])
{
    const skl_gpu_mixture &m = f.p.mixture;
    clear(x[0]), clear(x[1]);
#pragma unroll 1
    for (int k = 0; k < m.members; k++) {
        skl_gpu_member row[2 * MT];
        members_of(f, k, row);
        if (m.cap == 0) /* and inner 1: the host keeps other signs away */
            product_then<false>(f, x[1], f.p.side[0].dim,
                                [&](int group) { add_head(m, row, x[1][group], x[0][group]); });
        else
            capped_head(f, m, row, x);
    }
}

/* t becomes its score. */
SKL_DEVICE void score_mixture(warp_logits &t)
{
#pragma unroll
    for (int i = 0; i < GROUPS * MT * 8; i++) {
        float &x = t[i / (MT * 8)][i / 8 % MT][i / 4 % 2][i % 4];
        x = mixed_score(x);
    }
}

/* dx of Q, of a KL. */
SKL_DEVICE float dx_of_q(const skl_gpu_grad &g, const skl_gpu_factors &f, const row_terms &t, float x_p, float x_q)
{
    return dx_from(g, f, dz_of<SKL_DZ_Q>(t, g.problem.side, 1, f.c, x_p, x_q), x_p, x_q);
}

}  // namespace

#endif
