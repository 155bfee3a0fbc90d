/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention's backward as a deterministic pair of kernels, for 16-bit operands with dim <= DIM, of side x:
 *
 *     dx = dz(x_P, x_Q) (1 - (x'/cap)^2) spread       rounded to the operands' type; see divergence.cuh
 *     rows_*     dA[row] = alpha r sum_j dx[row, j] B_x[j]                a block: OWN rows of a query head
 *     columns_*  dB[j]   = alpha   sum_rows r dx[row, j] A_x[row]         a block: OWN columns of a head of B
 *
 * grad.cuh has the method, shapes.h the tiles. Logits are computed anew in each: three products a tile and kernel.
 *
 *   registers  own fragments 64, sums 64 (DIM 64: 2 x 16 own vectors a warp, DIM 128: 16), logits 16 or 32;
 *              DIM 256: sums 128 and P's fragments 64, Q's own tile lies in shared memory
 *   shared     two stages of both sides' streamed tiles: 32 (DIM 64), 64 (128), 32 + 32 KiB (256)
 *   ldmatrix   DIM 64: 1 for 4 products of 16 x 8 x 16, DIM 128: 1 for 2, which fills the shared memory port;
 *              columns_* load 16 bytes a lane and streamed row besides
 *   HBM        own operands and the result once; the streamed ones once for every OWN vectors, mostly from L2
 *   error      of an entry, relative to alpha sum |dx b|: half an ulp of the operands' type from dx, and what f32
 *   logits
 *              and 2^y (2 ulp) leave of dz where it is a small difference; sums are f32
 */
#include "grad.cuh"

static_assert(shared_of<grad_shape<SKL_DIM>, SKL_DIM, BY_ROWS>::BYTES == SKL_GRAD_SHARED(SKL_DIM, 1), "shapes.h");
static_assert(shared_of<grad_shape<SKL_DIM>, SKL_DIM, BY_COLUMNS>::BYTES == SKL_GRAD_SHARED(SKL_DIM, 0), "shapes.h");

#define KERNEL(name, type, dim, what, dz, by) KERNEL_(name, type, dim, what, dz, by)
#define KERNEL_(name, type, dim, what, dz, by)                                                      \
    extern "C" __global__ void __launch_bounds__(grad_shape<dim>::THREADS, grad_shape<dim>::BLOCKS) \
        skl_##name##_##type##_##dim##_##what(const __grid_constant__ skl_gpu_grad args)             \
    {                                                                                               \
        extern __shared__ __align__(128) unsigned char memory[];                                    \
        by<type, dim, dz, grad_shape<dim>>(args, memory);                                           \
    }

KERNEL(rows, SKL_TYPE, SKL_DIM, q, SKL_DZ_Q, gradient_by_rows)
KERNEL(rows, SKL_TYPE, SKL_DIM, pj, DZ_EITHER, gradient_by_rows)
KERNEL(columns, SKL_TYPE, SKL_DIM, q, SKL_DZ_Q, gradient_by_columns)
KERNEL(columns, SKL_TYPE, SKL_DIM, pj, DZ_EITHER, gradient_by_columns)
