/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention's backward in one kernel, for 16-bit operands with dim <= DIM: dB of a tile of columns in registers as in
 * columns_*, and with the same dx the tile's part of dA by atomic additions, in whatever order they come. Four products
 * a tile instead of the six of rows_* and columns_*. grad.cuh has the method; what is added to it:
 *
 *     dx        [OWN x STREAM], rounded, from registers to shared memory; barrier
 *     dA       += dx^T B_x  [STREAM x DIM], a warp STREAM/2 rows x DIM/2 entries, over all OWN columns of the tile
 *
 *   registers  fragments of both B 64, dB 64, logits 2 x 16 MT; dA 32 when the logits are done
 *   shared     B_x again, dx, two stages of both A: 16 + 4 + 33.5 KiB (DIM 128), 16 + 16 + 35 KiB (DIM 64)
 *   atomics    one f32 for each row, entry and tile of columns: 8 OWN flops of products for each
 *   barriers   two a tile
 *   error      as columns_*; dA's sums over tiles in any order
 */
#include "grad.cuh"

template <int DIM> struct fused_shape {
    static constexpr int THREADS = SKL_FUSED_THREADS, WARPS = THREADS / 32;
    static constexpr int OWN = SKL_FUSED_OWN(DIM), MT = OWN / WARPS / 16, STREAM = SKL_FUSED_STREAM(DIM);
    static constexpr int KEPT = 2, BLOCKS = 2;
    static constexpr bool CHAINED = DIM == 64;                                          /* see tile() */
    static constexpr int B_X = 2 * OWN * DIM, DX = 2 * OWN * STREAM, BESIDE = B_X + DX; /* bytes */
    static constexpr int QT = STREAM / 32, STEPS = DIM / 32; /* a warp's part of dA in tiles of 16 */

    /* Bytes to chunk c (8 rows of the logits) of dx's column r. Lines of 128 bytes: whole columns or two of 64 bytes,
     * whose chunks are permuted by the line's number. */
    static __device__ __forceinline__ uint32_t dx_at(int r, int c)
    {
        constexpr int EACH = 64 / STREAM; /* columns in a line */
        const int line = r / EACH, chunk = r % EACH * (STREAM / 8) + c;
        return (uint32_t)(line * 128 + ((chunk ^ (line & 7)) << 4));
    }

    template <class G> static __device__ __forceinline__ void start(G &g, const property &at)
    {
        const skl_gpu_matrix &b = g.args.x ? g.p.side[1].b : g.p.side[0].b;
        load_tile<OWN, DIM, THREADS>(g.shared + G::M::BESIDE, vector_of(b, at.b, at.h, at.own), b.stride[2],
                                     at.end - at.own, g.args.x ? g.p.side[1].dim : g.p.side[0].dim);
    }

    /* dx of the streamed vectors j .. j+15. */
    template <class G> static __device__ __forceinline__ void take_dx(G &g, const uint32_t (&dx)[MT][4], int j)
    {
#pragma unroll
        for (int i = 0; i < 4 * MT; i++) {
            const int m = i / 4, block = i / 2 % 2, half = i % 2;
            const uint32_t to = g.shared + G::M::BESIDE + B_X +
                                dx_at(g.own_in_tile(threadIdx.x, m, half), j / 8 + block) + 4 * (g.lane & 3);
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(dx[m][2 * block + half]) : "memory");
        }
    }

    /* The tile's part of dA. */
    template <class G> static __device__ __forceinline__ void end_tile(G &g, int first)
    {
        const uint32_t b_x = g.shared + G::M::BESIDE, dx = b_x + B_X;
        const int lane = g.lane, q = (g.warp & 1) * QT, d = (g.warp >> 1) * STEPS; /* first of the warp's tiles */
        float sum[QT][2 * STEPS][4];
#pragma unroll
        for (int i = 0; i < QT * 8 * STEPS; i++) sum[i / (8 * STEPS)][i / 4 % (2 * STEPS)][i % 4] = 0;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < OWN; k += 16) {
            uint32_t a[QT][4];
#pragma unroll
            for (int m = 0; m < QT; m++)
                load_matrices_transposed(
                    a[m], dx + dx_at(k + (lane & 7) + ((lane >> 4) << 3), 2 * (q + m) + ((lane >> 3) & 1)));
#pragma unroll
            for (int n = 0; n < STEPS; n++) {
                uint32_t v[4];
                load_matrices_transposed(v, b_x + left_at<DIM>(lane, d + n) + k * DIM * 2);
#pragma unroll
                for (int m = 0; m < QT; m++) {
                    multiply<G::KIND>(sum[m][2 * n], a[m], v[0], v[1]);
                    multiply<G::KIND>(sum[m][2 * n + 1], a[m], v[2], v[3]);
                }
            }
        }
        const skl_gpu_matrix &to = g.args.grad_a;
        const float factor = factor_of(g.args);
        /* DIM 64 has no registers left to remember them */
        const int b = DIM == 64 ? g.head / g.p.heads : g.batch, h = DIM == 64 ? g.head - b * g.p.heads : g.h;
        const int dim = g.args.x ? g.p.side[1].dim : g.p.side[0].dim;
#pragma unroll
        for (int m = 0; m < QT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = first + (q + m) * 16 + half * 8 + (lane >> 2);
                float *row = (float *)to.data + b * to.stride[0] + h * to.stride[1] + i * to.stride[2] + d * 16 +
                             2 * (lane & 3);
#pragma unroll
                for (int n = 0; n < 2 * STEPS; n++)
                    if (i < g.p.n && d * 16 + 8 * n < dim) {
                        atomicAdd(row + 8 * n, sum[m][n][2 * half] * factor);
                        atomicAdd(row + 8 * n + 1, sum[m][n][2 * half + 1] * factor);
                    }
            }
    }
};

static_assert(shared_of<fused_shape<SKL_DIM>, SKL_DIM, BY_COLUMNS>::BYTES == SKL_FUSED_SHARED(SKL_DIM), "shapes.h");

#define KERNEL(name, type, dim, what, dz, by) KERNEL_(name, type, dim, what, dz, by)
#define KERNEL_(name, type, dim, what, dz, by)                                                        \
    extern "C" __global__ void __launch_bounds__(fused_shape<dim>::THREADS, fused_shape<dim>::BLOCKS) \
        skl_##name##_##type##_##dim##_##what(const __grid_constant__ skl_gpu_grad args)               \
    {                                                                                                 \
        extern __shared__ __align__(128) unsigned char memory[];                                      \
        by<type, dim, dz, fused_shape<dim>>(args, memory);                                            \
    }

KERNEL(fused, SKL_TYPE, SKL_DIM, q, SKL_DZ_Q, gradient_by_columns)
KERNEL(fused, SKL_TYPE, SKL_DIM, pj, DZ_EITHER, gradient_by_columns)
