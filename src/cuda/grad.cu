/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention's backward as a deterministic pair of kernels, for 16-bit operands with dim <= DIM: dA by tiles of rows and
 * dB by tiles of columns, of side x. grad.cuh has the method.
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
