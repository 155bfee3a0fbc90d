/* SPDX-License-Identifier: Apache-2.0
 * A row's listed columns: sorted, and behind the last one that is larger than all. */
#ifndef SKL_LISTED_CUH
#define SKL_LISTED_CUH

#include "ptx.cuh"

/* The first place whose column is not below 'first'; of 'room' places, if none is. */
SKL_DEVICE int first_place(const int32_t *column, int room, int first)
{
    int low = 0, high = room;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (column[middle] < first)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

#endif
