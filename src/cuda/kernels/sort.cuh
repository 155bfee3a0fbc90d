/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of columns in order, by a block of 128 threads: of listed teachers (list_kernels.cu) and of keys
 * (key_kernels.cu).
 */
#ifndef SKL_SORT_CUH
#define SKL_SORT_CUH

#include "ptx.cuh"

#define NO_COLUMN 0x7FFFFFFF /* behind the last of a list */

/* Behind a loop whose last turn is not every lane's. */
SKL_DEVICE void meet()
{
    __syncwarp();
    __syncthreads();
}

/* Bitonic, in global memory; room: a power of two. */
template <class KEY> SKL_DEVICE void sort(KEY *keys, int room)
{
    __syncwarp();
    room = __shfl_sync(~0u, room, 0); /* the same for all lanes, and whoever reads the machine code sees it */
    for (int size = 2; size <= room; size <<= 1)
        for (int step = size >> 1; step; step >>= 1) {
            meet();
            for (int k = threadIdx.x; k < room / 2; k += 128) {
                const int i = 2 * k - (k & (step - 1)), j = i + step;
                const KEY a = keys[i], b = keys[j];
                if ((a > b) == ((i & size) == 0))
                    keys[i] = b, keys[j] = a;
            }
        }
    meet();
}

#endif
