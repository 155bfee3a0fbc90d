/* SPDX-License-Identifier: Apache-2.0
 *
 * Any dimension: the vocabulary's forward, and dx for its backward, for 16-bit operands. Both operands stream through
 * shared memory, DEPTH entries of the dimension at a time: stream.cuh has the method.
 *
 *     x_P = A_P B_P^T over dim_P, then x_Q = A_Q B_Q^T over dim_Q          [ROWS x COLUMNS] a tile, both in registers
 *     kl, jsd, second, top, rest: push of the tile's columns into the rows' states;   dz, second_dz: dx of the tile
 *     into a slab, rounded to 16 bits; scores: x_Q of the tile into one, f32. second and second_dz are for the
 *     divergences of column.cuh, of any width. rest and scores make x_Q alone
 *
 *   registers  logits 2 x 64; fragments 16 + 8; states 20 a thread, 255 in all
 *   shared     3 stages x 256 rows x 128 bytes = 96 KiB, and the rows' ranges: fits the 99 KiB of sm_120
 *   ldmatrix   6 for every 16 products of 16 x 8 x 16: 3/4 of the shared memory port
 *   HBM        A once for every split (small, from L2), B once for every 128 rows: 512 bytes for 128 x 128 x 2 flops of
 *   depth error      as sweep_narrow.cu; sums of dim products in f32
 */
#define STREAM_SHAPE(x) SKL_STREAM_##x
#include "stream.cuh"
#include "rest.cuh"
#include "top.cuh"

namespace
{

/* A product of each side, or of Q alone: see BOTH in push.cuh. */
template <bool BOTH> struct two_sides : usual_parts {
    static constexpr bool FINITE = true;
    static constexpr int FIRST = BOTH ? 0 : 1;

    static __device__ __forceinline__ int side(const skl_gpu_problem &, int part)
    {
        return part;
    }
    static __device__ __forceinline__ int head(const skl_gpu_problem &, int h, int part)
    {
        return h;
    }
    static __device__ __forceinline__ bool last(const skl_gpu_problem &, int part)
    {
        return part;
    }
    static __device__ __forceinline__ int next(const skl_gpu_problem &, int part)
    {
        return BOTH ? !part : 1;
    }
    static __device__ __forceinline__ int chunks(const skl_gpu_problem &p)
    {
        return (BOTH ? chunks_of(p.side[0]) : 0) + chunks_of(p.side[1]);
    }
    template <class F> static __device__ __forceinline__ void logits(F &f, warp_logits (&x)[2])
    {
        f.product(x[0], BOTH ? f.p.side[0].dim : 0);
        f.product(x[1], f.p.side[1].dim);
    }
};

template <int TYPE, class PUSH> SKL_DEVICE void sweep_sides(const skl_gpu_forward &args)
{
    sweep<TYPE, PUSH, two_sides<PUSH::BOTH>>(args);
}

}  // namespace

#define KERNEL(type, what, arguments, body) KERNEL_(type, what, arguments, body)
#define KERNEL_(type, what, arguments, body)                               \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)               \
        skl_stream_##type##_##what(const __grid_constant__ arguments args) \
    {                                                                      \
        body;                                                              \
    }

KERNEL(SKL_TYPE, kl, skl_gpu_forward, (sweep_sides<SKL_TYPE, push_kl<MT, 2>>(args)))
KERNEL(SKL_TYPE, jsd, skl_gpu_forward, (sweep_sides<SKL_TYPE, push_jsd<MT, 2>>(args)))
KERNEL(SKL_TYPE, second, skl_gpu_forward, (sweep_sides<SKL_TYPE, push_second<MT, 2>>(args)))
KERNEL(SKL_TYPE, top, skl_gpu_forward, (sweep_sides<SKL_TYPE, push_rows<MT, 2, row_top>>(args)))
KERNEL(SKL_TYPE, rest, skl_gpu_forward, (sweep_sides<SKL_TYPE, push_rows<MT, 2, row_rest>>(args)))
KERNEL(SKL_TYPE, scores, skl_gpu_slab, (slab_of_scores<SKL_TYPE, two_sides<false>>(args)))
KERNEL(SKL_TYPE, dz, skl_gpu_slab, (slab<SKL_TYPE, two_sides<true>>(args, dx_of)))
KERNEL(SKL_TYPE, second_dz, skl_gpu_slab, (slab<SKL_TYPE, two_sides<true>>(args, dx_of_column)))
