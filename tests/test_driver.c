/* SPDX-License-Identifier: Apache-2.0
 *
 * What is said of a driver that is missing, too old, or new enough but without a device. The runtime inside the library
 * is NVIDIA's; the driver is fake_driver.c's libcuda.so.1, in a child process whose LD_LIBRARY_PATH names its
 * directory.
 */
#define _POSIX_C_SOURCE 200809L
#include "test.h"

#include <streamkl/streamkl.h>

#include <cuda_runtime_api.h>

static const char *program;

/* What the library says in a process that has only this driver. */
static void ask(const char *directory, const char *version, char *answer, size_t size)
{
    char command[2048];
    snprintf(command, sizeof command, "LD_LIBRARY_PATH='%s' STREAMKL_FAKE_DRIVER=%s '%s' child", directory, version,
             program);
    FILE *child = popen(command, "r");
    size_t n = child ? fread(answer, 1, size - 1, child) : 0;
    answer[n] = 0;
    CHECK(child && pclose(child) == 0, "\"%s\" failed", command);
}

static void says(const char *answer, const char *want)
{
    CHECK(strstr(answer, want), "said \"%s\", expected \"%s\"", answer, want);
}

static void drivers(const char *directory)
{
    char answer[600], built[32];
    snprintf(built, sizeof built, "CUDA %d.%d", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    static const char *const old[][2] = {{"11080", "CUDA 11.8"}, {"10020", "CUDA 10.2"}};
    for (int i = 0; i < COUNT(old); i++) {
        test_context("a driver for %s", old[i][1]);
        ask(directory, old[i][0], answer, sizeof answer);
        says(answer, "0 no CUDA device: ");
        says(answer, old[i][1]);
        says(answer, built);
        says(answer, "525");
        says(answer, "580");
        says(answer, "(end)"); /* nothing was cut off */
    }
    test_context("no driver");
    ask(directory, "0", answer, sizeof answer);
    says(answer, "0 no CUDA device: no NVIDIA driver");
    says(answer, "580");
    says(answer, "(end)");
    test_context("a driver for a later CUDA, and no device");
    ask(directory, "99000", answer, sizeof answer);
    says(answer, "no CUDA-capable device");
    CHECK(!strstr(answer, "580"), "said \"%s\" of a driver that is new enough", answer);
    test_context("a driver for the first CUDA of this number: such a one will do");
    char first[16];
    snprintf(first, sizeof first, "%d", CUDART_VERSION / 1000 * 1000);
    ask(directory, first, answer, sizeof answer);
    says(answer, "no CUDA-capable device");
}

int main(int count, char **arguments)
{
    program = arguments[0];
    if (count == 2 && !strcmp(arguments[1], "child")) {
        int n = skl_cuda_devices();
        printf("%d %s (end)\n", n, skl_last_error());
        return 0;
    }
    test_begin("test_driver");
    drivers(count > 1 ? arguments[1] : TEST_DRIVER);
    return test_end();
}
