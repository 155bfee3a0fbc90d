/* SPDX-License-Identifier: Apache-2.0
 * A libcuda.so.1 without a GPU behind it. test_driver.c lets the CUDA runtime find it instead of NVIDIA's. */
#include <stdlib.h>

#define API __attribute__((visibility("default")))

API int cuDriverGetVersion(int *version)
{
    const char *text = getenv("STREAMKL_FAKE_DRIVER");
    *version = text ? atoi(text) : 0;
    return 0;
}

API int cuInit(unsigned flags)
{
    (void)flags;
    return 100; /* CUDA_ERROR_NO_DEVICE */
}
